package pubsub

import (
	"bytes"
	"maps"
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
	// twice the length of its filter and 768 bytes, and for 64 KiB more if no other has + at the same levels, two
	// or more: each Publish tries all such choices. Sessions share it like TotalBytes.
	SubscriptionBytes int64
	// SessionMessages is how many messages may wait for one client, those included that it has not
	// acknowledged.
	SessionMessages int
	// SessionBytes is how many bytes these may have.
	SessionBytes int64
	// TotalBytes is how many bytes the waiting messages of all sessions may have. A message
	// counts in each session. One session may take at most as much as is left for all others, and
	// 16 KiB in any case, by which sessions with few messages may pass it.
	TotalBytes int64
}

// DefaultLimits returns the default limits of a server.
func DefaultLimits() Limits {
	return Limits{
		Subscriptions:     1000,
		SubscriptionBytes: 256 << 20,
		SessionMessages:   10_000,
		SessionBytes:      4 << 20,
		TotalBytes:        256 << 20,
	}
}

// overhead is what a message that waits costs besides its bytes.
const overhead = 256

// assured is how many bytes of messages may wait in a session, and how many its subscriptions may
// take up, whatever other sessions have: a few messages, and some twenty subscriptions.
const assured = 16 << 10

// Message is a message to publish. It must not be changed once it is published: all subscribers
// share it.
type Message struct {
	Topic string
	QoS   byte // 0 or 1
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
	// the message waits, Publish copies them.
	Borrowed bool
}

// Broker delivers messages. Use [New].
type Broker struct {
	limits Limits

	filters       sync.RWMutex
	subscriptions index[map[*Session]*Subscription]

	mu       sync.Mutex
	sessions map[string]*Session

	subCount     atomic.Int64
	subBytes     *sharedquota.Quota
	waiting      atomic.Int64
	waitingBytes *sharedquota.Quota
	dropped      [reasons]atomic.Uint64
}

// New returns a broker without sessions. What has a limit of 0 is refused.
func New(limits Limits) *Broker {
	return &Broker{
		limits:       limits,
		sessions:     make(map[string]*Session),
		waitingBytes: sharedquota.New(limits.TotalBytes),
		subBytes:     sharedquota.New(limits.SubscriptionBytes),
	}
}

// Session returns the session of a client, and creates it if there is none.
func (b *Broker) Session(client string) *Session {
	b.mu.Lock()
	defer b.mu.Unlock()
	s := b.sessions[client]
	if s == nil {
		s = &Session{broker: b, client: client}
		b.sessions[client] = s
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
	if b.sessions[s.client] == s {
		delete(b.sessions, s.client)
	}
}

// pauseAfter is how many steps Publish takes before it calls pause.
const pauseAfter = 512

// Publish queues a message for all clients with a matching subscription, and reports whether there are any. It
// never waits for a subscriber. A message may match a million subscriptions, so it calls pause every few hundred
// steps, with no lock held, and gives up if that reports false.
func (b *Broker) Publish(m *Message, pause func() (goOn bool)) (matched bool) {
	steps, goOn := 0, true
	isDue := func(more int) bool {
		steps += more
		due := steps >= pauseAfter
		if due {
			steps = 0
		}
		return due
	}
	subscribers := b.subscribers(m, func(cost int) bool {
		if isDue(cost) {
			b.filters.RUnlock()
			goOn = pause()
			b.filters.RLock()
		}
		return goOn
	})
	if len(subscribers) > 0 && m.Borrowed {
		m.Properties, m.Payload, m.Borrowed = bytes.Clone(m.Properties), bytes.Clone(m.Payload), false
	}
	for session, d := range subscribers {
		if !goOn {
			break
		}
		session.offer(m, d)
		if isDue(16) { // which it costs, in steps of a search
			goOn = pause()
		}
	}
	return len(subscribers) > 0
}

// delivery is how a message is delivered to one session.
type delivery struct {
	qos         byte
	identifiers []int
}

// subscribers returns the sessions with a matching subscription, besides those that No Local excludes. It
// combines the subscriptions of each [MQTT-3.3.4].
func (b *Broker) subscribers(m *Message, step func(cost int) (goOn bool)) map[*Session]delivery {
	b.filters.RLock()
	defer b.filters.RUnlock()
	found := make(map[*Session]delivery)
	b.subscriptions.search(m.Topic, step, func(subscriptions map[*Session]*Subscription) {
		for session, sub := range subscriptions {
			if !step(1) {
				return
			}
			if sub.NoLocal && m.Publisher == session.client {
				continue
			}
			d := found[session]
			d.qos = max(d.qos, min(m.QoS, sub.QoS))
			if sub.Identifier > 0 {
				d.identifiers = append(d.identifiers, sub.Identifier)
			}
			found[session] = d
		}
	})
	return found
}

// Sweep frees expired messages that wait. It takes some microseconds for each session with messages
// that expire, so call it every few seconds at most. Without it, such messages are freed when they
// would be sent.
func (b *Broker) Sweep() {
	b.mu.Lock()
	sessions := slices.Collect(maps.Values(b.sessions))
	b.mu.Unlock()
	now := time.Now()
	for _, s := range sessions {
		s.sweep(now)
	}
}

// Usage is what a [Broker] holds, and how many messages it has dropped.
type Usage struct {
	Sessions          int
	Subscriptions     int
	SubscriptionBytes int64 // as Limits.SubscriptionBytes counts them
	WaitingMessages   int64 // of all sessions
	WaitingBytes      int64
	Dropped           Dropped
}

// Dropped is how many messages did not reach a subscriber since the broker was made, counted for
// each subscriber, by reason. It does not count messages of QoS 0 for clients that are not connected.
type Dropped [reasons]uint64

// Reason is why a message did not reach a subscriber.
type Reason int

const (
	SessionFull Reason = iota // over Limits.SessionMessages or Limits.SessionBytes
	TotalFull                 // over Limits.TotalBytes
	Expired                   // the Message Expiry Interval was over
	TooLarge                  // larger than the Maximum Packet Size of the receiver
	Forbidden                 // the receiver may not read the topic
	reasons
)

// Usage returns what the broker holds now.
func (b *Broker) Usage() Usage {
	usage := Usage{
		Subscriptions:     int(b.subCount.Load()),
		SubscriptionBytes: b.subBytes.Used(),
		WaitingMessages:   b.waiting.Load(),
		WaitingBytes:      b.waitingBytes.Used(),
	}
	for why := range reasons {
		usage.Dropped[why] = b.dropped[why].Load()
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	usage.Sessions = len(b.sessions)
	return usage
}
