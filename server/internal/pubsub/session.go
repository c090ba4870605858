package pubsub

import (
	"errors"
	"sync"
)

// Subscription is one filter of a SUBSCRIBE with its options.
type Subscription struct {
	Filter     string // valid, and not shared
	QoS        byte   // the highest that is granted; 2 means 1
	NoLocal    bool   // excludes messages of the client itself
	Identifier int    // 0: none
	choice     int64  // what its choice of levels cost when the session was the first that had it
}

// size is about how many bytes a subscription takes: its filter, in the session and in the index of all. It does not
// include the choice, which others may use when the subscription is gone.
func (sub *Subscription) size() int64 { return 768 + 2*int64(len(sub.Filter)) }

// Session has the subscriptions of a client and the messages that wait for it. [Broker.Session]
// creates it. After End its methods have no effect.
type Session struct {
	broker *Broker
	client string

	// subscribing is held while the session waits for the index of all, and mu is not: messages go on.
	subscribing   sync.Mutex
	subscriptions index[*Subscription]
	most          int    // how many there were at most, since these maps were made
	bytesOf       int64  // what these take up
	latest        *match // nil: Matches was not called since the subscriptions changed

	mu    sync.Mutex
	ended bool // changes with both locks held
	queue
}

// match is the answer of Session.Matches for a topic.
type match struct {
	topic       string
	identifiers []int
	ok          bool
}

// Errors of Subscribe.
var (
	// ErrTooManySubscriptions: Limits.Subscriptions or Limits.SubscriptionBytes is reached;
	// 0x97 Quota exceeded.
	ErrTooManySubscriptions = errors.New("too many subscriptions")
	// ErrSessionOver: End was called.
	ErrSessionOver = errors.New("the session is over")
)

// Subscribe adds a subscription, or replaces the one with the same filter. The error is
// ErrTooManySubscriptions or ErrSessionOver.
func (s *Session) Subscribe(sub Subscription) error {
	sub.QoS = min(sub.QoS, 1)
	s.subscribing.Lock()
	defer s.subscribing.Unlock()
	b := s.broker
	b.filters.Lock()
	defer b.filters.Unlock()
	before := s.subscriptions.values[sub.Filter]
	switch {
	case s.ended:
		return ErrSessionOver
	case before != nil:
		sub.choice = before.choice
	default:
		sub.choice = b.subscriptions.cost(sub.Filter)
		bytes := sub.size() + sub.choice
		if len(s.subscriptions.values) >= b.limits.Subscriptions || !b.subBytes.Take(s.bytesOf, bytes, assured) {
			return ErrTooManySubscriptions
		}
		b.subCount.Add(1)
		s.bytesOf += bytes
	}
	s.subscriptions.set(sub.Filter, &sub)
	s.most = max(s.most, len(s.subscriptions.values))
	s.latest = nil
	sessions := b.subscriptions.values[sub.Filter]
	if sessions == nil {
		sessions = make(map[*Session]*Subscription)
		b.subscriptions.set(sub.Filter, sessions)
	}
	sessions[s] = &sub
	return nil
}

// Unsubscribe removes the subscription with a filter, and reports whether there was one. Messages
// that wait stay.
func (s *Session) Unsubscribe(filter string) (existed bool) {
	s.subscribing.Lock()
	defer s.subscribing.Unlock()
	return s.unsubscribeLocked(filter)
}

func (s *Session) unsubscribeLocked(filter string) (existed bool) {
	sub, existed := s.subscriptions.values[filter]
	if !existed {
		return false
	}
	s.subscriptions.remove(filter)
	s.latest = nil
	if left := s.subscriptions.values; 8*len(left) < s.most { // maps do not shrink
		s.subscriptions, s.most = index[*Subscription]{}, len(left)
		for filter, sub := range left {
			s.subscriptions.set(filter, sub)
		}
	}
	s.bytesOf -= sub.size() + sub.choice
	b := s.broker
	b.subCount.Add(-1)
	b.filters.Lock()
	defer b.filters.Unlock()
	sessions := b.subscriptions.values[filter]
	if delete(sessions, s); len(sessions) == 0 {
		b.subscriptions.remove(filter)
	}
	b.subBytes.Release(sub.size() + b.subscriptions.cost(filter)) // the choice is free when its last filter is gone
	return true
}

// Matches reports whether a subscription of the session matches a topic, and returns the identifiers of
// all that do, not to be changed. It is for replies, which the server writes directly to the client: most have one
// topic, so it remembers the latest.
func (s *Session) Matches(topic string) (identifiers []int, ok bool) {
	s.subscribing.Lock()
	defer s.subscribing.Unlock()
	if s.latest == nil || s.latest.topic != topic {
		s.latest = &match{topic: topic}
		s.subscriptions.search(topic, func(int) bool { return true }, func(sub *Subscription) {
			s.latest.ok = true
			if sub.Identifier > 0 {
				s.latest.identifiers = append(s.latest.identifiers, sub.Identifier)
			}
		})
	}
	return s.latest.identifiers, s.latest.ok
}

// End ends the session: it deletes the subscriptions and the messages, and Broker.Session will
// create a new session for the client. Only the first call has an effect.
func (s *Session) End() {
	s.broker.leave(s)
	s.subscribing.Lock()
	defer s.subscribing.Unlock()
	s.mu.Lock()
	s.ended = true
	s.clearLocked()
	s.mu.Unlock()
	for filter := range s.subscriptions.values {
		s.unsubscribeLocked(filter) // one at a time, so that others can take the lock of the index in between
	}
}
