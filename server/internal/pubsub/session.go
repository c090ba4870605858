package pubsub

import (
	"cmp"
	"errors"
	"runtime"
	"sync"
	"sync/atomic"
	"time"
)

// Subscription is one filter of a SUBSCRIBE with its options.
type Subscription struct {
	Filter            string // with $share/{group}/ if it is shared
	QoS               byte   // the highest that is granted; 2 means 1
	NoLocal           bool   // excludes messages of the client itself
	RetainAsPublished bool
	RetainHandling    byte // 0, 1 or 2 [MQTT-3.8.3.1]
	Identifier        int  // 0: none
}

// subscription is a Subscription of a session. It is constant, except for at, entry and group, which
// tree.mu guards.
type subscription struct {
	Subscription
	session          *Session
	number           uint64 // unique in the session; a replacement has the number of the one before
	groupName, plain string // of Filter
	identifiers      []int  // none or one

	entry *entry
	group *group // nil: not shared
	at    int    // its index in the list of entry or group

	wildAt int // its index in Session.wild, which Session.filters guards
}

// list returns the list of entry or group.
func (sub *subscription) list() []*subscription {
	if sub.group != nil {
		return sub.group.members
	}
	return sub.entry.plain
}

// Session has the subscriptions of a client and the messages that wait for it. [Broker.Session]
// creates it. After End its methods have no effect.
type Session struct {
	broker *Broker
	client string
	id     uint64 // among all sessions
	at     int    // its index in Broker.order, which Broker.mu guards

	reader atomic.Pointer[reader] // nil: never attached

	changing sync.Mutex // held by Subscribe, Unsubscribe and End
	isOver   bool       // guarded by changing, as are
	made     uint64     // counts all subscriptions that were made
	bytesOf  int64      // what the present subscriptions take up

	filters       sync.Mutex
	subscriptions map[string]*subscription // by key
	wild          []*subscription          // not shared, and with a wildcard
	asked         string                   // the latest topic of Matches, if wild is not empty,
	answer        []int                    // and the answer to it
	matched       bool

	queue
}

// reader decides which topics the session may read.
type reader struct {
	mayRead   func(topic string) bool // nil: any
	connected bool
	epoch     uint64
}

// compare orders subscriptions by session, and then by filter.
func (sub *subscription) compare(other *subscription) int {
	if sub.session == other.session {
		return cmp.Compare(sub.number, other.number)
	}
	return cmp.Compare(sub.session.id, other.session.id)
}

// Errors of Subscribe.
var (
	// ErrTooManySubscriptions: Limits.Subscriptions or Limits.SubscriptionBytes is reached;
	// 0x97 Quota exceeded.
	ErrTooManySubscriptions = errors.New("too many subscriptions")
	// ErrFilter: the filter is not valid, or a shared one without a group; 0x8F Topic Filter
	// invalid.
	ErrFilter = errors.New("the topic filter is not valid")
	// ErrSessionOver: End was called.
	ErrSessionOver = errors.New("the session is over")
)

// Subscribe adds a subscription, or replaces the one with the same filter, and reports whether
// there was one. The error is ErrTooManySubscriptions, ErrFilter or ErrSessionOver.
func (s *Session) Subscribe(asked Subscription) (existed bool, err error) {
	sub := &subscription{Subscription: asked, session: s}
	var ok bool
	if sub.groupName, sub.plain, ok = divide(asked.Filter); !ok {
		return false, ErrFilter
	}
	sub.QoS = min(sub.QoS, 1)
	if sub.Identifier > 0 {
		sub.identifiers = []int{sub.Identifier}
	}
	name := key(asked.Filter)

	s.changing.Lock()
	defer s.changing.Unlock()
	if s.isOver {
		return false, ErrSessionOver
	}
	before := s.subscriptions[name] // constant while changing is held
	switch {
	case before != nil:
		sub.number = before.number
	case len(s.subscriptions) >= s.broker.limits.Subscriptions || !s.broker.subBytes.Take(s.bytesOf, sub.size(), assured):
		return false, ErrTooManySubscriptions
	default:
		s.broker.subCount.Add(1)
		s.bytesOf += sub.size()
		s.made++
		sub.number = s.made
	}
	s.broker.tree.add(sub, before)
	s.filters.Lock()
	defer s.filters.Unlock()
	if s.subscriptions == nil {
		s.subscriptions = make(map[string]*subscription)
	}
	s.subscriptions[name] = sub
	s.asked = ""
	switch {
	case sub.groupName != "" || !isWildcard(sub.plain):
	case before != nil:
		sub.wildAt = before.wildAt
		s.wild[sub.wildAt] = sub
	default:
		sub.wildAt = len(s.wild)
		s.wild = append(s.wild, sub)
	}
	return before != nil, nil
}

// size is about how many bytes a subscription takes: its filter and its group, here and in the tree,
// with the pointers to them.
func (sub *subscription) size() int64 { return 768 + 2*int64(len(sub.Filter)) }

// unsubscribe removes a subscription from what the sessions share.
func (b *Broker) unsubscribe(sub *subscription) {
	b.tree.remove(sub)
	b.subCount.Add(-1)
	b.subBytes.Release(sub.size())
}

// Unsubscribe removes the subscription with a filter, and reports whether there was one. Messages
// that wait stay.
func (s *Session) Unsubscribe(filter string) (existed bool) {
	s.changing.Lock()
	defer s.changing.Unlock()
	name := key(filter)
	sub := s.subscriptions[name]
	if sub == nil {
		return false
	}
	s.broker.unsubscribe(sub)
	s.bytesOf -= sub.size()
	s.filters.Lock()
	defer s.filters.Unlock()
	delete(s.subscriptions, name)
	s.asked = ""
	if sub.groupName == "" && isWildcard(sub.plain) {
		s.wild = removeAt(s.wild, sub.wildAt, func(sub *subscription) *int { return &sub.wildAt })
	}
	return true
}

// removeAt removes an element of a list. The last one takes its place; index returns where an
// element keeps its index.
func removeAt[T any](list []*T, at int, index func(*T) *int) []*T {
	last := len(list) - 1
	list[at] = list[last]
	*index(list[at]) = at
	list[last] = nil
	return list[:last]
}

// Matches reports whether a subscription of the session that is not shared matches a topic, and
// returns the identifiers of all that do. The caller must not change them. It is for messages
// that the server writes directly to the client. For a topic that is also a filter, or the same
// topic as before, it takes one step. Otherwise it takes one for each filter with a wildcard that
// the client has.
func (s *Session) Matches(topic string) (identifiers []int, ok bool) {
	s.filters.Lock()
	defer s.filters.Unlock()
	if len(s.wild) > 0 && s.asked == topic && topic != "" {
		return s.answer, s.matched
	}
	sub := s.subscriptions[topic]
	if ok = sub != nil && sub.groupName == ""; ok {
		identifiers = sub.identifiers[:len(sub.identifiers):len(sub.identifiers)]
	}
	if len(s.wild) == 0 {
		return identifiers, ok
	}
	for _, sub := range s.wild {
		if match(sub.plain, topic) {
			identifiers, ok = append(identifiers, sub.identifiers...), true
		}
	}
	s.asked, s.answer, s.matched = topic, identifiers, ok
	return identifiers, ok
}

// End ends the session: it deletes the subscriptions and the messages, and Broker.Session will
// create a new session for the client. Messages of a shared subscription that the client has not
// acknowledged go to other members. Only the first call has an effect. It may take some tens of
// milliseconds, and releases its locks repeatedly for other goroutines.
func (s *Session) End() { s.end(runtime.Gosched) }

func (s *Session) end(pause func()) {
	s.broker.leave(s)
	left := s.close()
	s.changing.Lock()
	s.isOver = true
	s.filters.Lock()
	subs := s.subscriptions
	s.subscriptions, s.wild, s.asked = nil, nil, ""
	s.filters.Unlock()
	for _, sub := range subs {
		s.broker.unsubscribe(sub) // one at a time, so that others can take the lock of the tree in between
	}
	s.changing.Unlock()
	now, steps := time.Now(), &steps{pause: pause}
	for w := left; w != nil; w = w.next {
		switch {
		case w.group == nil:
		case w.message.isOver(now):
			s.broker.dropped.count(Expired)
		case !s.broker.share(w.message, w.group, steps):
			s.broker.dropped.count(Absent)
		}
	}
}
