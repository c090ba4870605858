package pubsub

import "sync/atomic"

// Usage is what a [Broker] holds, and how many messages it has dropped.
type Usage struct {
	Sessions          int
	Subscriptions     int
	SubscriptionBytes int64 // as Limits.SubscriptionBytes counts them
	WaitingMessages   int64 // QoS 1, of all sessions
	WaitingBytes      int64
	// RetainedMessages and RetainedBytes include expired messages until they are freed.
	RetainedMessages int
	RetainedBytes    int64
	Dropped          Dropped
}

// Dropped is how many messages did not reach a subscriber since the broker was made, counted for
// each subscriber, by reason.
type Dropped [reasons]uint64

// Reason is why a message did not reach a subscriber.
type Reason int

const (
	// Absent: no member of a group could take it. Of a session it means that the session is over,
	// or not connected and the message has QoS 0.
	Absent      Reason = iota
	LinkFull           // QoS 0, and the outgoing queue of the connection is full
	SessionFull        // QoS 1, over Limits.SessionMessages or Limits.SessionBytes
	TotalFull          // QoS 1, over Limits.TotalBytes
	Expired            // the Message Expiry Interval was over
	TooLarge           // larger than the Maximum Packet Size of the receiver
	Forbidden          // the receiver may not read the topic
	NotRetained        // over Limits.RetainedMessages or Limits.RetainedBytes
	reasons
	queued // none: the message waits for the session
)

type dropped [reasons]atomic.Uint64

func (d *dropped) count(why Reason) { d[why].Add(1) }

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
	usage.Sessions = len(b.sessions)
	b.mu.Unlock()
	if b.retained != nil {
		usage.RetainedMessages, usage.RetainedBytes = b.retained.usage()
	}
	return usage
}
