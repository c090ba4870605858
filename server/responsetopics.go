package server

import (
	"hash/maphash"
	"slices"
	"sync"

	"github.com/tenurelock/tenure/server/internal/envelope"
)

// maxResponseTopics bounds how many response topics are reserved for each client. A client has
// one, or one for each of its libraries.
const maxResponseTopics = 64

// responseTopics has the topics below clients/ on which the store answers, so that no client
// publishes a forged reply there. It stores hashes instead of topics, which can be 65,535 bytes
// long. Two topics with one hash are both reserved; a client, which does not know the seed, cannot
// search for such a pair. It is safe for concurrent use.
type responseTopics struct {
	seed maphash.Seed

	mu       sync.Mutex
	sessions map[string]*reservedTopics // by client id
}

// reservedTopics are the response topics of a session, as hashes.
type reservedTopics struct {
	will     uint64 // of the present Will or the last one; 0: none
	requests []uint64
}

func newResponseTopics() *responseTopics {
	return &responseTopics{seed: maphash.MakeSeed(), sessions: make(map[string]*reservedTopics)}
}

// reserve reserves the response topic of a request. It reports false if the client has too many.
func (t *responseTopics) reserve(client, topic string) bool {
	if !needsReservation(topic) {
		return true
	}
	hash := maphash.String(t.seed, topic)
	t.mu.Lock()
	defer t.mu.Unlock()
	session := t.sessionLocked(client)
	if slices.Contains(session.requests, hash) {
		return true // a topic of the Will does not count, since the next Will replaces it
	}
	if len(session.requests) >= maxResponseTopics {
		return false
	}
	session.requests = append(session.requests, hash)
	return true
}

// reserveForWill reserves the response topic of a Will, in place of the topic of the Will before.
func (t *responseTopics) reserveForWill(client, topic string) {
	if !needsReservation(topic) {
		return
	}
	hash := maphash.String(t.seed, topic)
	t.mu.Lock()
	defer t.mu.Unlock()
	t.sessionLocked(client).will = hash
}

func (t *responseTopics) sessionLocked(client string) *reservedTopics {
	session := t.sessions[client]
	if session == nil {
		session = new(reservedTopics)
		t.sessions[client] = session
	}
	return session
}

// release removes the topics of a client when its session has ended.
func (t *responseTopics) release(client string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.sessions, client)
}

// reserved reports whether a topic is reserved for replies to a client.
func (t *responseTopics) reserved(client, topic string) bool {
	hash := maphash.String(t.seed, topic)
	t.mu.Lock()
	defer t.mu.Unlock()
	session := t.sessions[client]
	return session != nil && (session.will == hash || slices.Contains(session.requests, hash))
}

// needsReservation reports whether a response topic must be stored: ordinary topics are open to
// others by the rules, and recommended ones are reserved for every client.
func needsReservation(topic string) bool {
	_, rest, ok := envelope.SplitClientTopic(topic)
	return ok && !envelope.IsRecommended(rest)
}
