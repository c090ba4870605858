package pubsub

import (
	"bytes"
	"maps"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tenurelock/tenure/server/internal/sharedquota"
)

const (
	// maxSubscriptions is how many subscriptions one client may have.
	maxSubscriptions = 1000
	// maxMessages is how many messages may wait for one client, with those that it has not acknowledged, and
	// maxBytes how many bytes these may have.
	maxMessages = 10_000
	maxBytes    = 4 << 20
	// overhead is what a message that waits costs besides its bytes.
	overhead = 256
	// assured is how many bytes of messages may wait in a session, and how many its subscriptions may
	// take up, whatever other sessions have: a few messages, and some ten subscriptions.
	assured = 16 << 10
)

// Message is a message to publish. Properties and Payload belong to the caller again when Publish has returned.
type Message struct {
	Topic string // does not begin with $
	QoS   byte   // 0 or 1
	// Properties are the encoded MQTT 5 properties, without their length, the Message Expiry
	// Interval and Topic Alias.
	Properties []byte
	Payload    []byte
	// Expires is when the message expires; the zero time means never. The time that remains
	// is sent as its Message Expiry Interval [MQTT-3.3.2-6].
	Expires time.Time
	// Publisher is the client id of the publisher, for No Local.
	Publisher string
}

// Broker delivers messages. Use [New].
type Broker struct {
	filters       sync.RWMutex
	root          level
	subscriptions int

	subBytes     *sharedquota.Quota
	waiting      atomic.Int64
	waitingBytes *sharedquota.Quota

	mu      sync.Mutex
	dropped map[Reason]uint64
}

// New returns a broker without sessions, for so many bytes of subscriptions and of messages that wait. A message
// counts in each session. Of either, one session may take at most as much as is left for all others, and 16 KiB in
// any case.
func New(subscriptions, messages int64) *Broker {
	return &Broker{
		subBytes:     sharedquota.New(subscriptions),
		waitingBytes: sharedquota.New(messages),
		dropped:      make(map[Reason]uint64),
	}
}

// NewSession returns a new session of a client. mayRead reports whether the client may read a topic. It is called
// before a message is sent, by Append.
func (b *Broker) NewSession(client string, mayRead func(topic string) bool) *Session {
	return &Session{broker: b, client: client, mayRead: mayRead}
}

// pauseAfter is how many steps Publish takes before it calls pause.
const pauseAfter = 512

// Publish queues a message for all clients with a matching subscription, and reports whether there are any. It
// never waits for a subscriber. A message may match a million subscriptions, so it calls pause every few hundred
// steps, with no lock held, and gives up if that reports false.
func (b *Broker) Publish(m *Message, pause func() (goOn bool)) (matched bool) {
	steps := 0
	step := func(cost int, pause func() bool) (goOn bool) {
		if steps += cost; steps < pauseAfter {
			return true
		}
		steps = 0
		return pause()
	}
	pauseUnlocked := func() bool {
		b.filters.RUnlock()
		defer b.filters.RLock()
		return pause()
	}
	subscribers, goOn := b.subscribers(m, func() bool { return step(1, pauseUnlocked) })
	if len(subscribers) > 0 { // which share a copy
		m.Properties, m.Payload = bytes.Clone(m.Properties), bytes.Clone(m.Payload)
	}
	for session, qos := range subscribers {
		if !goOn {
			break
		}
		session.offer(m, qos)
		goOn = step(16, pause) // which it costs, in steps of a search
	}
	return len(subscribers) > 0
}

// subscribers returns the sessions with a matching subscription, besides those that No Local excludes, each with
// the highest QoS of its subscriptions [MQTT-3.3.4-2]. It gives up when step reports false.
func (b *Broker) subscribers(m *Message, step func() bool) (found map[*Session]byte, goOn bool) {
	b.filters.RLock()
	defer b.filters.RUnlock()
	found = make(map[*Session]byte)
	goOn = b.root.search(m.Topic, true, step, func(subscriptions map[*Session]Subscription) (goOn bool) {
		for session, sub := range subscriptions {
			if !step() {
				return false
			}
			if !sub.NoLocal || m.Publisher != session.client {
				found[session] = max(found[session], min(m.QoS, sub.QoS))
			}
		}
		return true
	})
	return found, goOn
}

// Usage is what a [Broker] holds for all sessions.
type Usage struct {
	// Subscriptions is how many subscriptions there are, and SubscriptionBytes what they take up.
	Subscriptions     int
	SubscriptionBytes int64
	// WaitingMessages is how many messages wait, and WaitingBytes their size.
	WaitingMessages, WaitingBytes int64
}

// Reason is why a message did not reach a subscriber.
type Reason string

const (
	SessionFull Reason = "session full"  // as much waits for the client as may
	TotalFull   Reason = "sessions full" // as much waits for all clients as may
	Expired     Reason = "expired"       // the Message Expiry Interval was over
	TooLarge    Reason = "too large"     // larger than the Maximum Packet Size of the receiver
	Forbidden   Reason = "not readable"  // the receiver may not read the topic
)

func (b *Broker) drop(why Reason) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.dropped[why]++
}

// Dropped returns how many messages did not reach a subscriber since the broker was made, counted for
// each subscriber, but for messages of QoS 0 for clients that are not connected.
func (b *Broker) Dropped() map[Reason]uint64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	return maps.Clone(b.dropped)
}

// Usage returns what the broker holds now.
func (b *Broker) Usage() Usage {
	b.filters.RLock()
	defer b.filters.RUnlock()
	return Usage{b.subscriptions, b.subBytes.Used(), b.waiting.Load(), b.waitingBytes.Used()}
}
