package pubsub

import (
	"cmp"
	"errors"
	"runtime"
	"sync"
	"sync/atomic"
	"time"
)

// Subscription is what a client asks for with one filter.
type Subscription struct {
	Filter            string // as in SUBSCRIBE, with $share/{group}/ if it is shared
	QoS               byte   // the most that is granted; 2 is as 1
	NoLocal           bool   // not for messages of the client itself
	RetainAsPublished bool
	RetainHandling    byte // 0, 1 or 2 [MQTT-3.8.3.1]
	Identifier        int  // 0: none
}

// subscription is a Subscription of a session. It is never changed, except at, entry and
// group, which tree.mu guards.
type subscription struct {
	Subscription
	session          *Session
	number           uint64 // within the session; the same if it replaces another
	groupName, plain string // of Filter
	identifiers      []int  // none or one

	entry *entry
	group *group // nil: not shared
	at    int    // its place in the list of entry or group

	wildAt int // its place in Session.wild, which Session.filters guards
}

// list returns the list that the subscription is in.
func (sub *subscription) list() []*subscription {
	if sub.group != nil {
		return sub.group.members
	}
	return sub.entry.plain
}

// Session has the subscriptions of a client and the messages that wait for it. It is made
// by [Broker.Session], and lives until End. Afterwards its methods have no effect.
type Session struct {
	broker *Broker
	client string
	id     uint64 // among all sessions
	at     int    // its place in Broker.order, which Broker.mu guards

	reader atomic.Pointer[reader] // nil: never attached

	changing sync.Mutex // held by Subscribe, Unsubscribe and End
	isOver   bool       // guarded by changing, as are
	made     uint64     // how many subscriptions there have been
	bytesOf  int64      // what those that there are take up

	filters       sync.Mutex
	subscriptions map[string]*subscription // by key
	wild          []*subscription          // those that are plain and have a wildcard
	asked         string                   // the latest topic of Matches, if wild is not empty,
	answer        []int                    // and the answer to it
	matched       bool

	queue
}

// reader is what is asked before a message is queued.
type reader struct {
	mayRead   func(topic string) bool // nil: everything
	connected bool
	epoch     uint64
}

// compare puts those of the same session, and those of the same filter, side by side.
func (sub *subscription) compare(other *subscription) int {
	if sub.session == other.session {
		return cmp.Compare(sub.number, other.number)
	}
	return cmp.Compare(sub.session.id, other.session.id)
}

// Errors of Subscribe.
var (
	// ErrTooManySubscriptions: the client has as many as it may, or there is no room for
	// more; 0x97 Quota exceeded.
	ErrTooManySubscriptions = errors.New("too many subscriptions")
	// ErrFilter: no filter, or a shared one without a group; 0x8F Topic Filter invalid.
	ErrFilter = errors.New("the topic filter is not valid")
	// ErrSessionOver: End was called.
	ErrSessionOver = errors.New("the session is over")
)

// Subscribe adds a subscription, or replaces that with the same filter, and reports whether
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
	before := s.subscriptions[name] // only changing lets it change
	if before == nil && len(s.subscriptions) >= s.broker.limits.Subscriptions {
		return false, ErrTooManySubscriptions
	}
	if before != nil {
		sub.number = before.number
	} else {
		if !s.reserve(sub.size()) {
			return false, ErrTooManySubscriptions
		}
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
	if before == nil {
		s.broker.subCount.Add(1)
	}
	return before != nil, nil
}

// size is about what a subscription takes up: its filter and its group, here and in the
// tree, and what refers to them.
func (sub *subscription) size() int64 { return 768 + 2*int64(len(sub.Filter)) }

// reserve takes room for a subscription, and reports false if there is not as much. It is
// called with changing held.
func (s *Session) reserve(bytes int64) bool {
	if !s.broker.subBytes.Take(s.bytesOf, bytes, assured) {
		return false
	}
	s.bytesOf += bytes
	return true
}

// Unsubscribe removes the subscription with a filter, and reports whether there was one.
// What waits stays.
func (s *Session) Unsubscribe(filter string) (existed bool) {
	s.changing.Lock()
	defer s.changing.Unlock()
	name := key(filter)
	sub := s.subscriptions[name]
	if sub == nil {
		return false
	}
	s.broker.tree.remove(sub)
	s.broker.subCount.Add(-1)
	s.broker.subBytes.Release(sub.size())
	s.bytesOf -= sub.size()
	s.filters.Lock()
	defer s.filters.Unlock()
	delete(s.subscriptions, name)
	s.asked = ""
	if sub.groupName == "" && isWildcard(sub.plain) {
		last := len(s.wild) - 1
		s.wild[sub.wildAt] = s.wild[last]
		s.wild[sub.wildAt].wildAt = sub.wildAt
		s.wild[last] = nil
		s.wild = s.wild[:last]
	}
	return true
}

// Matches reports whether a plain subscription of the session matches a topic, and returns
// the identifiers of all that do. The caller must not change them. It is for messages that
// go straight to the client. With a filter without wildcards, or the same topic as before,
// it takes one step. Else it takes one for each filter with a wildcard that the client has.
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

// End ends the session: its subscriptions and its messages are gone, and the broker makes a
// new session when it is asked for the client. What the client did not acknowledge of a
// shared subscription goes to other members. Only the first call has an effect. It may take
// some tens of milliseconds, and lets other goroutines go before it again and again.
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
		s.broker.tree.remove(sub) // each by itself: others must get in between
		s.broker.subCount.Add(-1)
		s.broker.subBytes.Release(sub.size())
	}
	s.changing.Unlock()
	now, steps := time.Now(), &steps{pause: pause}
	for w := left; w != nil; w = w.next {
		switch {
		case w.group == nil:
		case w.message.isOver(now):
			s.broker.dropped.count(expired)
		case !s.broker.share(w.message, w.group, steps):
			s.broker.dropped.count(absent)
		}
	}
}
