package server

import (
	"sync"

	"github.com/tenurelock/tenure/server/internal/envelope"
	"github.com/tenurelock/tenure/server/internal/pubsub"
	"github.com/tenurelock/tenure/server/internal/quota"
)

// keptRoom is for how many notifications an outbox keeps room.
const spareQueue = 1024

// outbox is what other clients, and the store, have for one connection: a queue of
// notifications, and the room for ordinary messages, whose queue is in the client's session.
// A goroutine writes both, so that who sends never waits for who reads.
//
// A client that falls behind by more than the limit of its connection is disconnected if a
// notification does not fit: it will connect again, watch again and read again, and so miss
// nothing, whereas dropping a notification would leave it with a state that is no longer
// true. An ordinary message of QoS 0 that does not fit is dropped.
type outbox struct {
	limit   int64         // bytes
	all     *quota.Quota  // of all connections
	limiter *writeLimiter // says when to write
	wake    chan struct{}
	done    chan struct{}
	task    sync.WaitGroup

	mu             sync.Mutex
	write          func() // nil: not begun
	started        bool
	pending        bool   // post is to say when to write
	permitted      bool   // it has, and the goroutine has not done so
	round          uint64 // of post, in which that was
	again          bool   // something came while the goroutine was writing
	closed         bool
	overflowedOnce bool // has been, once
	queue          []*sharedNotification
	used           int64 // of limit
}

var _ pubsub.Link = (*outbox)(nil)

func newOutbox(limit int64, all *quota.Quota, post *writeLimiter) *outbox {
	return &outbox{limit: limit, all: all, limiter: post, wake: make(chan struct{}, 1), done: make(chan struct{})}
}

// begin says how to write what waits. The goroutine that does so starts with the first Wake.
func (o *outbox) begin(write func()) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.write = write
}

// push queues a notification, to be written after Wake. It reports false when there is no
// room, and says when the room begins to be scarce.
func (o *outbox) push(notification *sharedNotification) (queued, crowded bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.closed {
		return true, false
	}
	if !o.reserveLocked(envelope.NotificationCost(notification.Change)) {
		o.overflowedOnce = true
		return false, true
	}
	o.queue = append(o.queue, notification)
	return true, o.used > o.limit/2
}

// Wake makes the goroutine write what waits, as soon as post lets it.
func (o *outbox) Wake() {
	if o.markPending() {
		o.limiter.enqueue(o)
	}
}

// wakes reports whether to ask post.
func (o *outbox) markPending() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	switch {
	case o.closed || o.write == nil || o.pending:
		return false
	case o.permitted:
		o.again = true // what was queued last may not have been seen
		return false
	}
	if !o.started {
		o.started = true
		o.task.Go(o.run)
	}
	o.pending = true
	return true
}

// permit makes the goroutine write what waits. It reports false if the outbox is closed.
// Otherwise post is told when that is done.
func (o *outbox) permit(round uint64) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.pending = false
	if o.closed {
		return false
	}
	o.permitted, o.round = true, round
	o.wake <- struct{}{} // has room: it is permitted once until it has written
	return true
}

func (o *outbox) run() {
	for {
		select {
		case <-o.done:
			return
		case <-o.wake:
		}
		o.write() // does not change once the goroutine runs
		if o.writeDone() {
			o.limiter.enqueue(o)
		}
	}
}

// written tells post that the goroutine has written, and reports whether there may be more.
func (o *outbox) writeDone() (more bool) {
	o.mu.Lock()
	round := o.round
	more = o.again && !o.closed
	o.permitted, o.again, o.pending = false, false, more
	o.mu.Unlock()
	o.limiter.done(round)
	return more
}

// Reserve takes room, and reports false if there is not as much.
func (o *outbox) Reserve(bytes int) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return !o.closed && o.reserveLocked(int64(bytes))
}

// assured is how many bytes a connection may have waiting whatever others have: a few
// notifications. Who reads is not to be disconnected because others do not.
const assured = 8 << 10

// reserveLocked lets a connection have no more than is left for all others together:
// else a few that do not read would take all of it. However many do that, each other one
// has what is assured.
func (o *outbox) reserveLocked(bytes int64) bool {
	if o.used+bytes > o.limit || !o.all.Take(o.used, bytes, assured) {
		return false
	}
	o.used += bytes
	return true
}

// Release gives room back.
func (o *outbox) Release(bytes int) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.releaseLocked(int64(bytes))
}

func (o *outbox) releaseLocked(bytes int64) {
	if o.closed {
		return // close has given back all
	}
	o.used -= bytes
	o.all.Release(bytes)
}

// overflowed reports whether a push ever failed.
func (o *outbox) overflowed() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.overflowedOnce
}

// take returns the notifications that wait, and queues from now on in the room of those that
// were written. They keep what they have reserved until they are given to written.
func (o *outbox) take(written []*sharedNotification) []*sharedNotification {
	clear(written)
	if cap(written) > spareQueue {
		written = nil // it was a burst
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	taken := o.queue
	o.queue = written[:0]
	return taken
}

// close ends the goroutine and waits for it. The socket must be closed before,
// so that a write under way returns.
func (o *outbox) close() {
	o.mu.Lock()
	o.releaseLocked(o.used)
	o.closed, o.queue, o.used = true, nil, 0
	close(o.done)
	o.mu.Unlock()
	o.task.Wait()
	o.mu.Lock()
	permitted := o.permitted // and the goroutine ended instead
	o.mu.Unlock()
	if permitted {
		o.writeDone()
	}
}
