package server

import (
	"hash/maphash"
	"slices"

	"github.com/tenurelock/tenure/server/internal/envelope"
)

// Topics below clients/ on which the store answers are reserved for it until the session ends, so that no
// client publishes a forged reply there. A client has their hashes in place of the topics, which can be 65,535
// bytes long. Two topics with one hash are both reserved; a client, which does not know the seed, cannot
// search for such a pair.

// maxResponseTopics bounds how many response topics are reserved for each client. A client has
// one, or one for each of its libraries.
const maxResponseTopics = 64

// reserveTopic reserves the response topic of a request. It reports false if the client has too many.
func (s *Server) reserveTopic(c *client, topic string) bool {
	if !needsReservation(topic) {
		return true
	}
	hash := maphash.String(s.seed, topic)
	s.mu.Lock()
	defer s.mu.Unlock()
	if slices.Contains(c.answered, hash) {
		return true // a topic of the Will does not count, since the next Will replaces it
	}
	if len(c.answered) >= maxResponseTopics {
		return false
	}
	c.answered = append(c.answered, hash)
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
