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
type Dropped struct {
	LinkFull    uint64 // QoS 0, and the outgoing queue of the connection is full
	SessionFull uint64 // QoS 1, over Limits.SessionMessages or Limits.SessionBytes
	TotalFull   uint64 // QoS 1, over Limits.TotalBytes
	Expired     uint64 // the Message Expiry Interval was over
	TooLarge    uint64 // larger than the Maximum Packet Size of the receiver
	Forbidden   uint64 // the receiver may not read the topic
	Absent      uint64 // no member of a group could take it
	NotRetained uint64 // over Limits.RetainedMessages or Limits.RetainedBytes
}

// outcome is the result of offering a message to a session.
type outcome int

const (
	absent outcome = iota // the session is over, or not connected and the message is QoS 0
	queued
	linkFull
	sessionFull
	totalFull
	expired
	tooLarge
	forbidden
)

type dropped struct {
	by          [forbidden + 1]atomic.Uint64
	notRetained atomic.Uint64
}

func (d *dropped) count(why outcome) { d.by[why].Add(1) }

// Usage returns what the broker holds now.
func (b *Broker) Usage() Usage {
	by := &b.dropped.by
	usage := Usage{
		Subscriptions:     int(b.subCount.Load()),
		SubscriptionBytes: b.subBytes.Used(),
		WaitingMessages:   b.waiting.Load(),
		WaitingBytes:      b.waitingBytes.Used(),
		Dropped: Dropped{
			LinkFull:    by[linkFull].Load(),
			SessionFull: by[sessionFull].Load(),
			TotalFull:   by[totalFull].Load(),
			Expired:     by[expired].Load(),
			TooLarge:    by[tooLarge].Load(),
			Forbidden:   by[forbidden].Load(),
			Absent:      by[absent].Load(),
			NotRetained: b.dropped.notRetained.Load(),
		},
	}
	b.mu.Lock()
	usage.Sessions = len(b.sessions)
	b.mu.Unlock()
	if b.retained != nil {
		usage.RetainedMessages, usage.RetainedBytes = b.retained.usage()
	}
	return usage
}
