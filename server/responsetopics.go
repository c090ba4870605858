package server

import (
	"hash/maphash"
	"slices"
	"sync"

	"github.com/tenurelock/tenure/server/internal/envelope"
)

// maxResponseTopics is how many response topics of each client are reserved. A client
// has one, or one for each of its libraries.
const maxResponseTopics = 64

// responseTopics knows on which topics below clients/ the store answers, so that no
// client publishes there in the store's place. It keeps a hash of each topic and not its
// text, which a client can make 65,535 bytes long: of two topics with the same hash, which
// no client can search for without the seed, one would be reserved in vain.
//
// It is safe for concurrent use.
type responseTopics struct {
	seed maphash.Seed

	mu       sync.Mutex
	sessions map[string]*reservedTopics // by client id
}

// reservedTopics are the response topics of a session, as hashes.
type reservedTopics struct {
	will     uint64 // of the present Will, or of the last; 0: none
	requests []uint64
}

func (r *reservedTopics) has(hash uint64) bool {
	return r != nil && (r.will == hash || slices.Contains(r.requests, hash))
}

func newResponseTopics() *responseTopics {
	return &responseTopics{seed: maphash.MakeSeed(), sessions: make(map[string]*reservedTopics)}
}

// reserve notes the response topic of a request. It reports false if the client has too
// many.
func (t *responseTopics) reserve(client, topic string) bool {
	if !needsReservation(topic) {
		return true
	}
	hash := maphash.String(t.seed, topic)
	t.mu.Lock()
	defer t.mu.Unlock()
	session := t.sessionLocked(client)
	if slices.Contains(session.requests, hash) {
		return true // the hash of the Will does not count: the next Will replaces it
	}
	if len(session.requests) >= maxResponseTopics {
		return false
	}
	session.requests = append(session.requests, hash)
	return true
}

// reserveForWill notes the response topic of a Will, in place of the one before.
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

// release forgets a client whose session ended.
func (t *responseTopics) release(client string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.sessions, client)
}

// reserved reports whether a topic is one on which the store answers a client.
func (t *responseTopics) reserved(client, topic string) bool {
	hash := maphash.String(t.seed, topic)
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.sessions[client].has(hash)
}

// needsReservation reports whether a response topic must be remembered: an ordinary topic
// is open to all, as the rules say, and a recommended one is reserved anyway.
func needsReservation(topic string) bool {
	_, rest, ok := envelope.SplitClientTopic(topic)
	return ok && !envelope.IsRecommended(rest)
}
