package server

import (
	"hash/maphash"
	"slices"
	"strings"

	"github.com/tenurelock/tenure/internal/protocol"
	"github.com/tenurelock/tenure/server/access"
	"github.com/tenurelock/tenure/server/internal/envelope"
)

// The rules in this file say which client may use which topic. The protocol separates clients by
// topics: the response topic of a request decides which client reads the reply, and a client that
// could subscribe or publish to the topics of another could read or forge its messages.

// mayPublish reports whether a client may publish an ordinary message to a topic. Below clients/,
// applications answer each other, so a client may publish to the topics of another, except
// those on which the store answers.
func (s *Server) mayPublish(identity access.Identity, topic string) bool {
	if !envelope.IsClientTopic(topic) {
		return s.mayUse(identity, topic)
	}
	level, rest, ok := envelope.SplitClientTopic(topic)
	if !ok || envelope.IsRecommended(rest) || s.isAnswered(level, topic) {
		return false
	}
	return owns(identity.Client, topic) || s.topics == nil || s.topics.AuthorizeTopic(identity, topic, true)
}

// isAnswered reports whether the store answers on a topic below clients/{level}. The level is the
// client id of the owner, or its upper-case hex.
func (s *Server) isAnswered(level, topic string) bool {
	name, isHex := envelope.FromHexLevel(level)
	return s.isReserved(level, topic) || isHex && s.isReserved(name, topic)
}

// mayBeAnswered reports whether a client may name a topic as its response topic: below clients/ only
// its own, or the store would publish for the client where the client itself may not.
func (s *Server) mayBeAnswered(identity access.Identity, topic string) bool {
	if envelope.IsClientTopic(topic) {
		return owns(identity.Client, topic)
	}
	return s.mayUse(identity, topic)
}

// mayLeaveWill reports whether a client may have a Will on a topic: below clients/ only on its
// own topics, and on none that is recommended for the store's replies. It is called at CONNECT.
func (s *Server) mayLeaveWill(identity access.Identity, topic string) bool {
	if !envelope.IsClientTopic(topic) {
		return s.mayUse(identity, topic)
	}
	_, rest, _ := envelope.SplitClientTopic(topic)
	return owns(identity.Client, topic) && !envelope.IsRecommended(rest)
}

// mayUse reports whether a client may publish to a topic outside of clients/, or name it as its
// response topic.
func (s *Server) mayUse(identity access.Identity, topic string) bool {
	if strings.HasPrefix(topic, "$") || envelope.IsBelow(topic, protocol.Service) {
		return false
	}
	return s.topics == nil || s.topics.AuthorizeTopic(identity, topic, true)
}

// maySubscribe reports whether a client may subscribe to a filter. It is called at SUBSCRIBE, and
// mayRead for each message. A filter with a wildcard that also matches topics which the client
// may not read is granted, and delivers no messages on these.
func (s *Server) maySubscribe(identity access.Identity, filter string) bool {
	first, rest, _ := strings.Cut(filter, "/")
	second, _, _ := strings.Cut(rest, "/")
	switch {
	case !hasWildcard(filter):
		return s.mayRead(identity, filter)
	case strings.HasPrefix(filter, "$"):
		return false // as in mayRead
	case envelope.IsBelow(filter, protocol.ReservedPrefix):
		return isNotified(identity, filter)
	case first+"/" == envelope.ClientTopics && second != "+" && second != "#":
		return owns(identity.Client, filter)
	}
	return true
}

// mayRead reports whether a client may receive messages on a topic, or subscribe to that topic
// alone. No messages are published on topics that begin with $.
func (s *Server) mayRead(identity access.Identity, topic string) bool {
	switch {
	case topic == protocol.InvokeTopic || strings.HasPrefix(topic, "$"):
		return false
	case envelope.IsBelow(topic, protocol.ReservedPrefix):
		return isNotified(identity, topic)
	case envelope.IsClientTopic(topic):
		return owns(identity.Client, topic)
	}
	return s.topics == nil || s.topics.AuthorizeTopic(identity, topic, false)
}

// isNotified reports whether the store notifies a client on a topic below the reserved prefix, or on
// all topics that a filter there matches.
//
// The AIO SDK for .NET subscribes to a topic with its id as it is, where the store publishes nothing, and stops
// waiting for its lock unless that is granted.
func isNotified(identity access.Identity, filter string) bool {
	return filter == protocol.ReservedPrefix+"/"+identity.Client+"/command/notify" ||
		strings.HasPrefix(filter, strings.TrimSuffix(protocol.NotifyFilter(identity.Client), "+"))
}

func hasWildcard(filter string) bool { return strings.ContainsAny(filter, "+#") }

// owns reports whether a topic below clients/ is a client's own: clients/{id}/… or, as one deployed
// client writes it, clients/{upper-case hex of id}/….
//
// The two forms can collide: clients/70/ belongs to the client "70", and to the client "p" in the
// form with hex. The server admits only one of two such clients at a time (collides), so a
// level has one owner.
func owns(client, topic string) bool {
	level, _, ok := envelope.SplitClientTopic(topic)
	if !ok {
		return false
	}
	name, isHex := envelope.FromHexLevel(level)
	return level == client || isHex && name == client
}

// noneRetained is the reason for refusing a retained message.
const noneRetained = "this server retains no messages: publish without the retain flag"

// Topics below clients/ on which the store answers are reserved for it until the session ends, so that no
// client publishes a forged reply there. A client has their hashes in place of the topics, which can be 65,535
// bytes long. Two topics with one hash are both reserved; a client, which does not know the seed, cannot
// search for such a pair.

// maxResponseTopics bounds how many response topics are reserved for each client. A client has
// one, or one for each of its libraries.
const maxResponseTopics = 64

// reserveTopic reserves the response topic of a request. It reports false if the client has too many. The
// goroutine that reads the connection calls it.
func (s *Server) reserveTopic(conn *connection, topic string) bool {
	if conn.reserved == topic { // as for nearly all requests
		return true
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	c, hash := conn.client, maphash.String(s.seed, topic)
	switch {
	case !needsReservation(topic) || slices.Contains(c.answered, hash):
	case len(c.answered) >= maxResponseTopics:
		return false // a topic of the Will does not count, since the next Will replaces it
	default:
		c.answered = append(c.answered, hash)
	}
	conn.reserved = topic
	return true
}

// isReserved reports whether a topic is reserved for replies to a client.
func (s *Server) isReserved(id, topic string) bool {
	hash := maphash.String(s.seed, topic)
	s.mu.Lock()
	defer s.mu.Unlock()
	c := s.clients[id]
	return c != nil && (c.answeredWill == hash || slices.Contains(c.answered, hash))
}

// needsReservation reports whether a response topic must be stored: ordinary topics are open to
// others by the rules, and recommended ones are reserved for every client.
func needsReservation(topic string) bool {
	_, rest, ok := envelope.SplitClientTopic(topic)
	return ok && !envelope.IsRecommended(rest)
}
