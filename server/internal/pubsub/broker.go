package pubsub

import (
	"bytes"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tenurelock/tenure/server/internal/sharedquota"
)

// Limits bounds what clients can make a [Broker] hold. See [DefaultLimits].
type Limits struct {
	// Subscriptions is how many one client may have.
	Subscriptions int
	// SubscriptionBytes is what the subscriptions of all clients may take up. One counts for
	// twice the length of its filter and 768 bytes. Sessions share it like TotalBytes.
	SubscriptionBytes int64
	// SessionMessages is how many QoS 1 messages may wait for one client, those included
	// that it has not acknowledged.
	SessionMessages int
	// SessionBytes is how many bytes these may have.
	SessionBytes int64
	// TotalBytes is how many bytes the waiting QoS 1 messages of all sessions may have. A message
	// counts in each session. One session may take at most as much as is left for all others, and
	// 16 KiB in any case, by which sessions with few messages may pass it.
	TotalBytes int64
	// RetainedMessages is how many retained messages there may be, up to some 100,000. With 0
	// they are off: the flag of a message has no effect.
	RetainedMessages int
	// RetainedBytes is how many bytes they may have.
	RetainedBytes int64
}

// DefaultLimits returns the default limits of a server.
func DefaultLimits() Limits {
	return Limits{
		Subscriptions:     1000,
		SubscriptionBytes: 256 << 20,
		SessionMessages:   10_000,
		SessionBytes:      4 << 20,
		TotalBytes:        256 << 20,
		RetainedMessages:  10_000,
		RetainedBytes:     64 << 20,
	}
}

// overhead is what a message that waits or is retained costs besides its bytes.
const overhead = 256

// assured is how many bytes of messages may wait in a session, and how many its subscriptions may
// take up, whatever other sessions have: a few messages, and some twenty subscriptions.
const assured = 16 << 10

// Message is a message to publish. It must not be changed once it is published: all subscribers
// share it.
type Message struct {
	Topic  string
	QoS    byte // 0 or 1
	Retain bool
	// Properties are the encoded MQTT 5 properties, without their length, the Message Expiry
	// Interval, Subscription Identifiers and Topic Alias.
	Properties []byte
	Payload    []byte
	// Expires is when the message expires; the zero time means never. The time that remains
	// is sent as its Message Expiry Interval [MQTT-3.3.2-6].
	Expires time.Time
	// Publisher is the client id of the publisher, for No Local.
	Publisher string
	// Borrowed: Properties and Payload belong to the caller again when Publish has returned. If
	// the message waits or is retained, Publish copies them.
	Borrowed bool
}

// own copies Properties and Payload if they are borrowed.
func (m *Message) own() {
	if m.Borrowed {
		m.Properties, m.Payload, m.Borrowed = bytes.Clone(m.Properties), bytes.Clone(m.Payload), false
	}
}

func (m *Message) size() int64 {
	return overhead + int64(len(m.Topic)+len(m.Properties)+len(m.Payload))
}

func (m *Message) isOver(now time.Time) bool { return !m.Expires.IsZero() && !now.Before(m.Expires) }

// Broker delivers messages. Use [New].
type Broker struct {
	limits   Limits
	tree     tree
	retained *retained // nil: off

	waiting      atomic.Int64 // QoS 1 messages
	waitingBytes *sharedquota.Quota
	dropped      dropped

	began      time.Time
	sweepAfter atomic.Int64 // nanoseconds after began; before that, sweepSome does nothing

	mu       sync.Mutex
	sessions map[string]*Session
	order    []*Session // the same
	made     uint64     // counts all sessions that were made
	swept    int        // index in order of the session that was swept last
	subCount atomic.Int64
	subBytes *sharedquota.Quota
}

// New returns a broker without sessions. What has a limit of 0 is refused.
func New(limits Limits) *Broker {
	b := &Broker{
		limits:       limits,
		began:        time.Now(),
		sessions:     make(map[string]*Session),
		waitingBytes: sharedquota.New(limits.TotalBytes),
		subBytes:     sharedquota.New(limits.SubscriptionBytes),
	}
	if limits.RetainedMessages > 0 {
		b.retained = &retained{messages: b.limits.RetainedMessages, most: b.limits.RetainedBytes, byTopic: make(map[string]*kept)}
	}
	return b
}

// Session returns the session of a client, and creates it if there is none.
func (b *Broker) Session(client string) *Session {
	b.mu.Lock()
	defer b.mu.Unlock()
	s := b.sessions[client]
	if s == nil {
		b.made++
		s = &Session{broker: b, client: client, id: b.made, at: len(b.order)}
		b.sessions[client] = s
		b.order = append(b.order, s)
	}
	return s
}

// Find returns the session of a client, if there is one.
func (b *Broker) Find(client string) (s *Session, ok bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	s, ok = b.sessions[client]
	return s, ok
}

// leave removes a session.
func (b *Broker) leave(s *Session) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.sessions[s.client] != s {
		return
	}
	delete(b.sessions, s.client)
	b.order = removeAt(b.order, s.at, func(s *Session) *int { return &s.at })
}

// ErrNotRetained is the error for a message that is not retained because of
// Limits.RetainedMessages or Limits.RetainedBytes. Its subscribers still get it.
var ErrNotRetained = errors.New("too many or too large messages are retained")

// Publish queues a message for all clients with a matching subscription, and reports whether there
// are any. It never waits for a subscriber. With Retain it also retains the message, or removes
// the retained one if the payload is empty. The error is nil or ErrNotRetained.
func (b *Broker) Publish(m *Message) (matched bool, err error) {
	return b.PublishInTurns(m, nil)
}

// PublishInTurns is Publish for a caller that shares its processor: a message may match a million
// subscriptions. Every few hundred steps of a search it calls pause, with no lock held.
func (b *Broker) PublishInTurns(m *Message, pause func()) (matched bool, err error) {
	steps := &steps{pause: pause}
	if m.Retain && b.retained != nil {
		m.own()
		if err = b.retained.set(m); err != nil {
			b.dropped.count(NotRetained)
		}
	}
	var roomForSubs [8]*subscription
	var roomForGroups [4]*group
	subs, groups := b.tree.collect(m.Topic, roomForSubs[:0], roomForGroups[:0], steps)
	if len(subs)+len(groups) > 0 {
		m.own()
	}
	if len(subs) > 1 {
		slices.SortFunc(subs, func(x, y *subscription) int {
			steps.add(1)
			return x.compare(y)
		})
	}
	for len(subs) > 0 {
		s, n := subs[0].session, 1
		for n < len(subs) && subs[n].session == s {
			n++
		}
		if c, ok := combine(m, subs[:n]); ok {
			matched = true
			s.offer(m, c, false, nil)
		}
		steps.add(n + offerSteps)
		subs = subs[n:]
	}
	for _, g := range groups {
		matched = b.share(m, g, steps) || matched
	}
	return matched, err
}

// form is how a message is delivered to one session.
type form struct {
	qos         byte
	retain      bool
	identifiers []int
	group       *group // nil: not by a shared subscription
}

// combine combines the matching subscriptions of a session into one form [MQTT-3.3.4]. It reports
// false if No Local excludes the message from all of them.
func combine(m *Message, subs []*subscription) (f form, ok bool) {
	own := m.Publisher == subs[0].session.client
	for i, sub := range subs {
		if own && sub.NoLocal || i > 0 && sub.number == subs[i-1].number {
			continue
		}
		f.qos = max(f.qos, sub.QoS)
		f.retain = f.retain || m.Retain && sub.RetainAsPublished
		if len(f.identifiers) == 0 {
			f.identifiers = slices.Clip(sub.identifiers) // shared; append copies it
		} else {
			f.identifiers = append(f.identifiers, sub.identifiers...)
		}
		ok = true
	}
	f.qos = min(f.qos, m.QoS)
	return f, ok
}

// The bounds of share for one message: a group may have ten thousand members, and a message may
// be for a thousand groups.
const (
	lookedAt      = 256 // members that are checked for a connection
	triedHere     = 32  // connected members
	triedAway     = 16  // other members
	groupInASlice = 16  // members that are read under one lock
)

// share gives a message to one member of a group, in turn. It prefers members that are connected,
// may read it and have room, and then takes one that is not connected, may read it and has room.
// It tries only as many of the next members as the constants above say: if none of these can take
// the message, it is dropped. The next message begins with the next member. share reports false
// if there are no members.
func (b *Broker) share(m *Message, g *group, steps *steps) bool {
	from := int(g.next.Add(1) % (1 << 30))
	last := Absent
	offer := func(sub *subscription, connected bool) Reason {
		steps.add(offerSteps)
		outcome := sub.session.offer(m, form{
			qos:         min(m.QoS, sub.QoS),
			retain:      m.Retain && sub.RetainAsPublished,
			identifiers: sub.identifiers,
			group:       g,
		}, connected, nil)
		if outcome != Absent {
			last = outcome
		}
		return outcome
	}
	var roomForAway [triedAway]*subscription
	away, here := roomForAway[:0], 0
	for looked, all := 0, 1; looked < min(all, lookedAt) && here < triedHere; looked += groupInASlice {
		var room [groupInASlice]*subscription
		var members []*subscription
		if members, all = b.tree.candidates(g, from, looked, room[:0]); all == 0 {
			return false
		}
		for _, sub := range members {
			steps.add(1)
			outcome := Absent
			if sub.session.isConnected() {
				outcome = offer(sub, true)
				here++
			}
			switch {
			case outcome == queued:
				return true
			case outcome == Absent && min(m.QoS, sub.QoS) > 0 && len(away) < triedAway:
				away = append(away, sub)
			}
		}
	}
	for _, sub := range away {
		if offer(sub, false) == queued {
			return true
		}
	}
	b.dropped.count(last)
	return true
}

// Sweep frees expired messages that wait or are retained. It takes some microseconds for each
// session with messages that expire, so call it every few seconds at most. Without it, such
// messages are freed when they would be sent or when a limit is reached.
func (b *Broker) Sweep() {
	b.mu.Lock()
	all := slices.Clone(b.order)
	b.mu.Unlock()
	now := time.Now()
	for _, s := range all {
		s.sweep(now)
	}
	if b.retained != nil {
		for b.retained.sweep(now) {
		}
	}
}

// someInterval is the shortest time between two runs of sweepSome.
const someInterval = 100 * time.Millisecond

// sweepSome is Sweep for some of the sessions, the next ones in turn. It does nothing and reports
// false within someInterval of its last run.
func (b *Broker) sweepSome() bool {
	now := time.Now()
	due, since := b.sweepAfter.Load(), int64(now.Sub(b.began))
	if since < due || !b.sweepAfter.CompareAndSwap(due, since+int64(someInterval)) {
		return false
	}
	var some [32]*Session
	b.mu.Lock()
	n := 0
	for n < min(len(some), len(b.order)) {
		b.swept = (b.swept + 1) % len(b.order)
		some[n] = b.order[b.swept]
		n++
	}
	b.mu.Unlock()
	for _, s := range some[:n] {
		s.sweep(now)
	}
	return true
}
