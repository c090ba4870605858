package server

import (
	"strings"

	"github.com/tenurelock/tenure/internal/protocol"
	"github.com/tenurelock/tenure/internal/wire"
	"github.com/tenurelock/tenure/server/access"
	"github.com/tenurelock/tenure/server/internal/envelope"
)

// What follows decides who may use which topic. Topics are where the protocol keeps
// clients apart: a request says by its response topic where the reply goes, and
// a client that could read the replies or write the notifications of another could read or
// forge that client's messages.

// mayPublish reports whether a client may publish to a topic. Requests are judged
// elsewhere. Below clients/ applications answer each other, so a client may publish to
// the topics of another, except those on which the store answers.
func (s *Server) mayPublish(who access.Identity, topic string) bool {
	if !envelope.IsClientTopic(topic) {
		return s.mayUse(who, topic)
	}
	level, rest, ok := envelope.SplitClientTopic(topic)
	if !ok || envelope.IsRecommended(rest) || s.isAnswered(level, topic) {
		return false
	}
	return owns(who.Client, topic) || s.topics == nil || s.topics.AuthorizeTopic(who, topic, true)
}

// isAnswered reports whether the store answers on a topic below clients/{level}. The level
// is the client id of its owner, or the hex of that.
func (s *Server) isAnswered(level, topic string) bool {
	name, isHex := envelope.FromHexLevel(level)
	return s.responseTopics.reserved(level, topic) || isHex && s.responseTopics.reserved(name, topic)
}

// mayBeAnswered reports whether a client may be answered on a topic: below clients/ on
// its own ones only, or the store would publish in its name where it may not.
func (s *Server) mayBeAnswered(who access.Identity, topic string) bool {
	if envelope.IsClientTopic(topic) {
		return owns(who.Client, topic)
	}
	return s.mayUse(who, topic)
}

// mayLeaveWill reports whether a client may have a Will on a topic: below clients/ on its
// own ones only, and on none on which the store answers every client. This is asked at
// CONNECT, so that a Will without a chance is refused while its client can be told;
// mayPublishWill is asked when the Will is due.
func (s *Server) mayLeaveWill(who access.Identity, topic string) bool {
	if !envelope.IsClientTopic(topic) {
		return s.mayUse(who, topic)
	}
	_, rest, _ := envelope.SplitClientTopic(topic)
	return owns(who.Client, topic) && !envelope.IsRecommended(rest)
}

// mayPublishWill reports whether the Will of a client may be published now. The rules, the
// response topics and the owner of the topic may have changed since CONNECT: a Will with a
// delay can be due after the session of its client has ended, when another client may own
// the level.
func (s *Server) mayPublishWill(who access.Identity, topic string) bool {
	if envelope.IsClientTopic(topic) && s.collides(who.Client) {
		return false
	}
	return s.mayLeaveWill(who, topic) && s.mayPublish(who, topic)
}

// mayUse reports whether a client may publish to a topic outside of clients/, or be
// answered there.
func (s *Server) mayUse(who access.Identity, topic string) bool {
	if strings.HasPrefix(topic, "$") || envelope.IsBelow(topic, protocol.Service) {
		return false
	}
	return s.topics == nil || s.topics.AuthorizeTopic(who, topic, true)
}

// maySubscribe reports whether a client may subscribe to a filter. It is asked at
// SUBSCRIBE; mayRead is asked for each delivery. A filter that covers with a wildcard
// what the client may not read is granted, and delivers none of that. A shared one is not:
// what mayRead then keeps from its client would be lost for the other members of the group.
func (s *Server) maySubscribe(who access.Identity, filter string) bool {
	// MQTT has $share in lower case. Libraries take it in any, so a filter that only looks like
	// a shared one is judged as one.
	if _, shared, ok := wire.Share(filter); ok {
		return s.mayShare(who, shared)
	}
	first, rest, _ := strings.Cut(filter, "/")
	second, _, _ := strings.Cut(rest, "/")
	switch {
	case !hasWildcard(filter):
		return s.mayRead(who, filter)
	case strings.HasPrefix(filter, "$"):
		return false // as in mayRead
	case envelope.IsBelow(filter, protocol.ReservedPrefix):
		return isNotified(who, filter)
	case first+"/" == envelope.ClientTopics && second != "+" && second != "#":
		return owns(who.Client, filter)
	}
	return true
}

// mayShare reports whether a client may take messages from the other members of a group:
// only if it may read all that could come by the filter.
func (s *Server) mayShare(who access.Identity, filter string) bool {
	switch {
	case filter == "" || strings.HasPrefix(filter, "$"): // a group in a group among them
		return false
	case !hasWildcard(filter):
		return s.mayRead(who, filter)
	case owns(who.Client, filter):
		return true // the level is its own, so all below it is
	case reaches(filter, strings.TrimSuffix(envelope.ClientTopics, "/")) || reaches(filter, protocol.Service):
		return false
	case s.topics == nil:
		return true
	}
	filters, ok := s.topics.(access.FilterAuthorizer)
	return ok && filters.AuthorizeFilter(who, filter)
}

// mayRead reports whether a client may be sent what is published on a topic, or subscribe
// to that topic alone. No topic that begins with $ is ever published.
func (s *Server) mayRead(who access.Identity, topic string) bool {
	switch {
	case topic == protocol.InvokeTopic || strings.HasPrefix(topic, "$"):
		return false
	case envelope.IsBelow(topic, protocol.ReservedPrefix):
		return isNotified(who, topic)
	case envelope.IsClientTopic(topic):
		return owns(who.Client, topic)
	}
	return s.topics == nil || s.topics.AuthorizeTopic(who, topic, false)
}

// isNotified reports whether the store notifies a client on a topic below the reserved
// prefix, or on all topics of a filter there.
func isNotified(who access.Identity, filter string) bool {
	return strings.HasPrefix(filter, strings.TrimSuffix(protocol.NotifyFilter(who.Client), "+"))
}

func hasWildcard(filter string) bool { return strings.ContainsAny(filter, "+#") }

// reaches reports whether a filter matches a level, given with all above it, or a topic
// below it.
func reaches(filter, level string) bool {
	for more := true; more; {
		if filter == "#" {
			return true
		}
		var f, l string
		var deeper bool
		f, filter, deeper = strings.Cut(filter, "/")
		l, level, more = strings.Cut(level, "/")
		if f != "+" && f != l || more && !deeper {
			return false
		}
	}
	return true
}

// owns reports whether a topic below clients/ is a client's own: clients/{id}/… or,
// as one deployed client writes it, clients/{upper-case hex of id}/….
//
// The two forms can meet: to a client that is called "70" the plain form is what the
// hex form is to one that is called "p". The server knows only one of two such clients at
// a time (collides), so a level has one owner.
func owns(client, topic string) bool {
	level, _, ok := envelope.SplitClientTopic(topic)
	if !ok {
		return false
	}
	name, isHex := envelope.FromHexLevel(level)
	return level == client || isHex && name == client
}

// collides reports whether another client that connects, is connected, or has a session that
// is kept, owns a level below clients/ that would be this client's too (see rivals). The
// answer may not hold any more when it is returned: to connect a client, see names.claim.
func (s *Server) collides(client string) bool { return s.clientIDs.collides(client, s.hasSession) }

// hasSession reports whether a client is connected or its session is kept.
func (s *Server) hasSession(client string) bool {
	_, known := s.mochi.Clients.Get(client)
	return known
}

// notRetained is the reason that the sender of a retained message below clients/ gets: by
// the time the message is read, the topic may be a response topic or have another owner.
const notRetained = "nothing below clients/ is retained; publish it without the retain flag"

// noneRetained is the reason without Options.Retain.
const noneRetained = "this server retains no messages: publish without the retain flag, or start the server with --retain (Options.Retain)"
