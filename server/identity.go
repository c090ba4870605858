package server

import (
	"encoding/hex"
	"strings"

	"github.com/tenurelock/tenure/internal/protocol"
	"github.com/tenurelock/tenure/server/access"
)

// What follows decides who may use which topic. Topics are where the protocol keeps
// clients apart: a request says by its response topic where the reply goes, and
// a client that could read the replies or write the notifications of another could read or
// forge that client's messages.

const (
	clientTopics = "clients/"
	// storeTopics is not a client's, whatever a client may be called.
	storeTopics = clientTopics + "statestore"
)

// mayPublish reports whether a client may publish to a topic. Requests are judged
// elsewhere. Below clients/ applications answer each other, so a client may publish to
// the topics of another, except those on which the store answers.
func (s *Server) mayPublish(who access.Identity, topic string) bool {
	if !isClientTopic(topic) {
		return s.mayUse(who, topic)
	}
	level, rest, ok := clientTopic(topic)
	if !ok || isRecommended(rest) || s.isAnswered(level, topic) {
		return false
	}
	return owns(who.Client, topic) || s.topics == nil || s.topics.AuthorizeTopic(who, topic, true)
}

// isAnswered reports whether the store answers on a topic below clients/{level}. The level
// is the client id of its owner, or the hex of that.
func (s *Server) isAnswered(level, topic string) bool {
	name, isHex := fromHex(level)
	return s.responseTopics.reserved(level, topic) || isHex && s.responseTopics.reserved(name, topic)
}

// mayBeAnswered reports whether a client may be answered on a topic: below clients/ on
// its own ones only, or the store would publish in its name where it may not.
func (s *Server) mayBeAnswered(who access.Identity, topic string) bool {
	if isClientTopic(topic) {
		return owns(who.Client, topic)
	}
	return s.mayUse(who, topic)
}

// mayLeaveWill reports whether a client may have a Will on a topic: below clients/ on its
// own ones only, and on none on which the store answers every client. This is asked at
// CONNECT, so that a Will without a chance is refused while its client can be told;
// mayPublishWill is asked when the Will is due.
func (s *Server) mayLeaveWill(who access.Identity, topic string) bool {
	if !isClientTopic(topic) {
		return s.mayUse(who, topic)
	}
	_, rest, _ := clientTopic(topic)
	return owns(who.Client, topic) && !isRecommended(rest)
}

// mayPublishWill reports whether the Will of a client may be published now. The rules, the
// response topics and the owner of the topic may have changed since CONNECT: a Will with a
// delay can be due after the session of its client has ended, when another client may own
// the level.
func (s *Server) mayPublishWill(who access.Identity, topic string) bool {
	if isClientTopic(topic) && s.collides(who.Client) {
		return false
	}
	return s.mayLeaveWill(who, topic) && s.mayPublish(who, topic)
}

// mayUse reports whether a client may publish to a topic outside of clients/, or be
// answered there.
func (s *Server) mayUse(who access.Identity, topic string) bool {
	if strings.HasPrefix(topic, "$") || isBelow(topic, protocol.Service) {
		return false
	}
	return s.topics == nil || s.topics.AuthorizeTopic(who, topic, true)
}

// mayRead reports whether a client may subscribe to a filter, or be sent a message on
// a topic. A filter that covers with a wildcard what the client may not read is
// granted, and delivers none of that, since each delivery is asked about too.
func (s *Server) mayRead(who access.Identity, filter string) bool {
	if group, shared := strings.CutPrefix(filter, "$share/"); shared {
		_, filter, _ = strings.Cut(group, "/")
	}
	if isBelow(filter, protocol.ReservedPrefix) {
		return strings.HasPrefix(filter, strings.TrimSuffix(protocol.NotifyFilter(who.Client), "+"))
	}
	first, rest, _ := strings.Cut(filter, "/")
	second, _, _ := strings.Cut(rest, "/")
	switch {
	case filter == protocol.InvokeTopic:
		return false
	case first+"/" == clientTopics && second != "+" && second != "#":
		return owns(who.Client, filter)
	case strings.ContainsAny(filter, "+#"), strings.HasPrefix(filter, "$"):
		return true
	}
	return s.topics == nil || s.topics.AuthorizeTopic(who, filter, false)
}

// isClientTopic reports whether a topic lies below clients/, the store's included.
func isClientTopic(topic string) bool {
	return isBelow(topic, strings.TrimSuffix(clientTopics, "/"))
}

// isBelow reports whether a topic is a level or stands below it.
func isBelow(topic, level string) bool {
	rest, ok := strings.CutPrefix(topic, level)
	return ok && (rest == "" || rest[0] == '/')
}

// owns reports whether a topic below clients/ is a client's own: clients/{id}/… or,
// as one deployed client writes it, clients/{upper-case hex of id}/….
//
// The two forms can meet: to a client that is called "70" the plain form is what the
// hex form is to one that is called "p". The server knows only one of two such clients at
// a time (collides), so a level has one owner.
func owns(client, topic string) bool {
	level, _, ok := clientTopic(topic)
	if !ok {
		return false
	}
	name, isHex := fromHex(level)
	return level == client || isHex && name == client
}

// collides reports whether another client that is connected, or has a session that is
// kept, owns a level below clients/ that would be this client's too: the id of one is the
// upper-case hex of the id of the other. The answer holds while the lock on the client id
// is held.
func (s *Server) collides(client string) bool {
	if name, isHex := fromHex(client); isHex && s.hasSession(name) {
		return true
	}
	return s.hasSession(toHex(client))
}

func fromHex(level string) (name string, ok bool) {
	if level == "" || strings.Trim(level, "0123456789ABCDEF") != "" {
		return "", false // mostly, and without a copy
	}
	decoded, err := hex.DecodeString(level)
	return string(decoded), err == nil
}

func toHex(name string) string {
	return strings.ToUpper(hex.EncodeToString([]byte(name)))
}

// hasSession reports whether a client is connected or its session is kept.
func (s *Server) hasSession(client string) bool {
	_, known := s.broker.Clients.Get(client)
	return known
}

func (s *Server) isConnected(client string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.connections[client] != nil
}

// notRetained is the reason that the sender of a retained message below clients/ gets: by
// the time the message is read, the topic may be a response topic or have another owner.
const notRetained = "nothing below clients/ is retained; publish it without the retain flag"
