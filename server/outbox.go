package server

import (
	"sync"

	"github.com/tenurelock/tenure/server/internal/envelope"
	"github.com/tenurelock/tenure/server/internal/pubsub"
	"github.com/tenurelock/tenure/server/internal/sharedquota"
)

// maxSpareQueue is the longest queue, in notifications, that an outbox keeps for reuse.
const maxSpareQueue = 1024

// outbox is what waits to be written to one connection on behalf of the store and of other
// clients: a queue of notifications, and the room for ordinary messages, which are queued in the
// client's session. A goroutine writes both, so a publisher never waits for a subscriber.
//
// A client that reads too slowly for a notification to fit is disconnected: it connects, watches and
// reads again, and so misses nothing. If the notification were dropped, the client would keep an
// outdated state. An ordinary message of QoS 0 that does not fit is dropped.
type outbox struct {
	limit   int64              // bytes
	all     *sharedquota.Quota // of all connections
	limiter *writeLimiter      // permits to write
	wake    chan struct{}
	done    chan struct{}
	task    sync.WaitGroup

	mu        sync.Mutex
	write     func() // nil: begin has not been called
	started   bool
	pending   bool   // the limiter was asked, and has not permitted to write yet
	permitted bool   // the limiter has, and the goroutine has not finished
	round     uint64 // of the limiter, in which it has
	again     bool   // there is something to write that the goroutine may not see
	closed    bool
	queue     []*sharedNotification
	used      int64 // bytes of limit
}

var _ pubsub.Link = (*outbox)(nil)

func newOutbox(limit int64, all *sharedquota.Quota, limiter *writeLimiter) *outbox {
	return &outbox{limit: limit, all: all, limiter: limiter, wake: make(chan struct{}, 1), done: make(chan struct{})}
}

// begin sets the function that writes what waits. The goroutine that calls it starts with the
// first Wake.
func (o *outbox) begin(write func()) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.write = write
}

// push queues a notification, to be written after Wake. It reports whether there was room, and
// whether more than half of the connection's room is taken.
func (o *outbox) push(notification *sharedNotification) (queued, backlogged bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.closed {
		return true, false
	}
	if !o.reserveLocked(envelope.NotificationCost(notification.Change)) {
		return false, true
	}
	o.queue = append(o.queue, notification)
	return true, o.used > o.limit/2
}

// Wake makes the goroutine write what waits, as soon as the writeLimiter permits.
func (o *outbox) Wake() {
	if o.markPending() {
		o.limiter.enqueue(o)
	}
}

// markPending notes that there is something to write, and reports whether the writeLimiter has to be
// asked: not if it was asked already, or if the goroutine is writing and will look again.
func (o *outbox) markPending() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	switch {
	case o.closed || o.write == nil || o.pending:
		return false
	case o.permitted:
		o.again = true // the goroutine may not see what was queued last
		return false
	}
	if !o.started {
		o.started = true
		o.task.Go(o.run)
	}
	o.pending = true
	return true
}

// permit makes the goroutine write what waits, and then call writeLimiter.done. It reports false
// if the outbox is closed.
func (o *outbox) permit(round uint64) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.pending = false
	if o.closed {
		return false
	}
	o.permitted, o.round = true, round
	o.wake <- struct{}{} // does not block: there is one permission at a time
	return true
}

func (o *outbox) run() {
	for {
		select {
		case <-o.done:
			return
		case <-o.wake:
		}
		o.write() // constant once the goroutine runs
		if o.writeDone() {
			o.limiter.enqueue(o)
		}
	}
}

// writeDone tells the writeLimiter that the goroutine has written, and reports whether there may be
// more to write.
func (o *outbox) writeDone() (more bool) {
	o.mu.Lock()
	round := o.round
	more = o.again && !o.closed
	o.permitted, o.again, o.pending = false, false, more
	o.mu.Unlock()
	o.limiter.done(round)
	return more
}

// Reserve takes room, and reports false if there is not enough.
func (o *outbox) Reserve(bytes int) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return !o.closed && o.reserveLocked(int64(bytes))
}

// assured is how many bytes may wait for a connection whatever waits for others: a few
// notifications. A client that reads must not be disconnected because others do not.
const assured = 8 << 10

func (o *outbox) reserveLocked(bytes int64) bool {
	if o.used+bytes > o.limit || !o.all.Take(o.used, bytes, assured) {
		return false
	}
	o.used += bytes
	return true
}

// Release gives room back that Reserve or push took.
func (o *outbox) Release(bytes int) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.releaseLocked(int64(bytes))
}

func (o *outbox) releaseLocked(bytes int64) {
	if o.closed {
		return // close has released all
	}
	o.used -= bytes
	o.all.Release(bytes)
}

// take returns the notifications that wait. The caller must Release the room of each when it has
// written it. From now on the outbox queues in the slice written, which the caller has
// finished with.
func (o *outbox) take(written []*sharedNotification) []*sharedNotification {
	clear(written)
	if cap(written) > maxSpareQueue {
		written = nil // left from a burst
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	taken := o.queue
	o.queue = written[:0]
	return taken
}

// close ends the goroutine and waits for it. The socket must have been closed, so that a present
// write returns.
func (o *outbox) close() {
	o.mu.Lock()
	o.releaseLocked(o.used)
	o.closed, o.queue, o.used = true, nil, 0
	close(o.done)
	o.mu.Unlock()
	o.task.Wait()
	o.mu.Lock()
	permitted := o.permitted // but the goroutine ended before it wrote
	o.mu.Unlock()
	if permitted {
		o.writeDone()
	}
}
