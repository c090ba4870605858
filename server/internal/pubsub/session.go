package pubsub

import (
	"maps"
	"slices"
	"strings"
	"sync"

	"github.com/tenurelock/tenure/internal/shrinkmap"
)

// Subscription has the options of one filter of a SUBSCRIBE.
type Subscription struct {
	QoS     byte // the highest that is granted: 0 or 1
	NoLocal bool // excludes messages of the client itself
}

// sizeOf is about how many bytes a subscription takes up.
func sizeOf(filter string) int64 {
	return 768 + 2*int64(len(filter)) + 320*int64(strings.Count(filter, "/"))
}

// Session has the subscriptions of a client and the messages that wait for it. [Broker.NewSession]
// creates it. After End its methods have no effect.
type Session struct {
	broker  *Broker
	client  string
	mayRead func(topic string) bool

	// Guarded by Broker.filters.
	filters shrinkmap.Map[string, struct{}]
	bytesOf int64 // what these take up

	mu    sync.Mutex
	ended bool // changes with both locks held
	queue
}

// Subscribe adds a subscription, or replaces the one with the same filter, which must be valid and not shared. It
// reports false if the client, or all together, have as many as they may.
func (s *Session) Subscribe(filter string, sub Subscription) (ok bool) {
	b := s.broker
	b.filters.Lock()
	defer b.filters.Unlock()
	if _, existed := s.filters.All[filter]; !existed {
		bytes := sizeOf(filter)
		if s.ended || len(s.filters.All) >= maxSubscriptions || !b.subBytes.Take(s.bytesOf, bytes, assured) {
			return false
		}
		s.filters.Set(filter, struct{}{})
		s.bytesOf += bytes
		b.subscriptions++
	}
	b.root.at(filter, func(l *level) { l.sessions.Set(s, sub) })
	return true
}

// Unsubscribe removes the subscription with a filter, and reports whether there was one. Messages
// that wait stay.
func (s *Session) Unsubscribe(filter string) (existed bool) {
	b := s.broker
	b.filters.Lock()
	defer b.filters.Unlock()
	if _, existed = s.filters.All[filter]; !existed {
		return false
	}
	s.filters.Delete(filter)
	s.bytesOf -= sizeOf(filter)
	b.subBytes.Release(sizeOf(filter))
	b.subscriptions--
	b.root.at(filter, func(l *level) { l.sessions.Delete(s) })
	return true
}

// End ends the session: it deletes the subscriptions and the messages. Only the first call has an effect.
func (s *Session) End() {
	s.broker.filters.Lock()
	s.mu.Lock()
	s.ended = true
	s.clearLocked()
	s.mu.Unlock()
	filters := slices.Collect(maps.Keys(s.filters.All))
	s.broker.filters.Unlock()
	for _, filter := range filters {
		s.Unsubscribe(filter) // one at a time, so that others can take the lock in between
	}
}
