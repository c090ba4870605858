package server

import (
	"context"
	"runtime"
	"sync"
	"time"

	"github.com/tenurelock/tenure/server/internal/envelope"
	"github.com/tenurelock/tenure/server/internal/pubsub"
	"github.com/tenurelock/tenure/server/internal/sharedquota"
)

// maxSpareQueue is the longest queue, in notifications, that an outbox keeps for reuse.
const maxSpareQueue = 1024

// outbox is what waits to be written to one connection on behalf of the store and of other
// clients: a queue of notifications, a queue of replies that have waited for a commit, and the room
// for ordinary messages, which are queued in the client's session. A goroutine writes all, so
// neither a publisher nor a commit ever waits for a client. The goroutine that reads the connection
// writes the notifications of changes that its own client has asked for.
//
// A client that reads too slowly for a notification to fit is disconnected: it connects, watches and
// reads again, and so misses nothing. If the notification were dropped, the client would keep an
// outdated state. An ordinary message of QoS 0 that does not fit is dropped.
type outbox struct {
	limit      int64              // bytes
	all        *sharedquota.Quota // quotas.outgoing
	allReplies *sharedquota.Quota // quotas.replies
	limiter    *writeLimiter      // permits to write
	task       sync.WaitGroup     // the goroutine that writes, if there is one
	run        func()             // the method writeOnce as a value, which is allocated once

	mu        sync.Mutex
	write     func() // nil: begin has not been called
	pending   bool   // the limiter was asked, and has not permitted to write yet
	permitted bool   // the limiter has, and the goroutine has not finished
	round     uint64 // of the limiter, in which it has
	again     bool   // there is something to write that the goroutine may not see
	closed    bool
	queue     []*sharedNotification
	used      int64     // bytes of limit
	left      int64     // bytes that were taken and no longer are, in all
	seen      int64     // left when isRead was called last
	read      time.Time // when isRead saw last that something had left

	// Of a server with a journal. Replies have a room apart from notifications: a client without
	// room for its notifications is disconnected, and a slow disk must not cause that.
	replies        []*waitingReply // that are committed, and wait to be written
	unwritten      int             // of replies, and of replies that are being written
	unwrittenBytes int64
	promised       int // replies that are to be written: unwritten ones, and ones that wait for a commit
	promisedBytes  int64
	blocked        bool          // there was no room for a reply
	room           chan struct{} // has an item after there may be room again
}

var _ pubsub.Link = (*outbox)(nil)

func newOutbox(limit int64, shared quotas, limiter *writeLimiter) *outbox {
	o := &outbox{
		limit:      limit,
		all:        shared.outgoing,
		allReplies: shared.replies,
		limiter:    limiter,
		room:       make(chan struct{}, 1),
	}
	o.run = o.writeOnce
	return o
}

// begin sets the function that writes what waits. A goroutine that calls it starts after a Wake, and
// ends with the call: an idle connection has none.
func (o *outbox) begin(write func()) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.write = write
}

// push queues a notification, to be written after Wake. It reports whether there was room, and
// whether more than a quarter of the connection's room is taken.
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
	return true, o.used > o.limit/4
}

// waiting returns how many bytes of the limit are taken.
func (o *outbox) waiting() int64 {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.used
}

// isRead reports whether anything has left within unreadAfter, as far as its calls could see: the client
// reads.
func (o *outbox) isRead() bool {
	now := time.Now()
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.left != o.seen || o.read.IsZero() {
		o.seen, o.read = o.left, now
	}
	return now.Sub(o.read) < unreadAfter
}

const unreadAfter = 100 * time.Millisecond

// Wake makes the goroutine write what waits, as soon as the writeLimiter permits.
func (o *outbox) Wake() {
	if o.markPending() {
		o.limiter.enqueue(o)
	}
}

// claim lets its caller write what waits in place of a goroutine, until unclaim. It reports false if a
// goroutine does that already, or will.
func (o *outbox) claim() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	switch {
	case o.closed || o.pending:
		return false
	case o.permitted:
		o.again = true
		return false
	}
	o.permitted = true // not by the limiter: the caller runs in any case
	return true
}

// unclaim ends the writing that claim has begun.
func (o *outbox) unclaim() {
	if o.unpermit() {
		o.limiter.enqueue(o)
	}
}

// unpermit notes that there is no permission to write any more, and reports whether there may be more
// to write.
func (o *outbox) unpermit() (more bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	more = o.again && !o.closed
	o.permitted, o.again, o.pending = false, false, more
	return more
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
	o.pending = true
	return true
}

// permit makes a goroutine write what waits, and then call writeLimiter.done. It reports false
// if the outbox is closed.
func (o *outbox) permit(round uint64) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.pending = false
	if o.closed {
		return false
	}
	o.permitted, o.round = true, round
	o.task.Add(1) // before close waits, since the outbox is not closed
	go o.run()    // there is one at a time, because there is one permission at a time
	return true
}

func (o *outbox) writeOnce() {
	defer o.task.Done()
	o.write() // constant from begin on
	if o.writeDone() {
		o.limiter.enqueue(o)
	}
}

// writeDone tells the writeLimiter that the goroutine has written, and reports whether there may be
// more to write.
func (o *outbox) writeDone() (more bool) {
	round := o.round // constant while it is permitted
	more = o.unpermit()
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
	o.left += bytes
	o.all.Release(bytes)
}

// takeReply takes room for a reply that may have to wait for a commit. It reports false if there is
// not enough, or if most replies wait already. One reply has room in any case.
func (o *outbox) takeReply(bytes int64, most int) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.promised >= most || !o.takeForReplyLocked(0, bytes) {
		o.blocked = true
		return false
	}
	o.promised++
	return true
}

// growReply takes more room for a reply that has some.
func (o *outbox) growReply(present, more int64) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	if !o.takeForReplyLocked(present, more) {
		o.blocked = true
		return false
	}
	return true
}

// takeForReplyLocked takes more room for a reply that has some already.
func (o *outbox) takeForReplyLocked(present, more int64) bool {
	own := int64(assured)
	if o.promisedBytes == present { // nothing else waits
		own = max(own, present+more)
	} else if o.promisedBytes+more > o.limit/2 {
		return false
	}
	if o.closed || !o.allReplies.Take(o.promisedBytes, more, own) {
		return false
	}
	o.promisedBytes += more
	return true
}

// freeReplyLocked gives back the room of a reply.
func (o *outbox) freeReplyLocked(bytes int64) {
	o.promised--
	o.promisedBytes -= bytes
	o.allReplies.Release(bytes)
	if o.blocked {
		o.blocked = false
		select {
		case o.room <- struct{}{}:
		default:
		}
	}
}

// waitForRoom calls take until it succeeds, whenever there may be room again. It reports false if ctx
// ends before.
func (o *outbox) waitForRoom(ctx context.Context, take func() bool) bool {
	for !take() {
		select {
		case <-o.room:
		case <-ctx.Done():
			return false
		}
	}
	return true
}

// promisedAtMost reports whether the replies that have room take up at most some bytes.
func (o *outbox) promisedAtMost(bytes int64) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.promisedBytes <= bytes
}

// cancelReply gives back the room of a reply that does not wait for a commit.
func (o *outbox) cancelReply(bytes int64) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.freeReplyLocked(bytes)
}

// cancelUnlessBehind is cancelReply, and reports true, unless replies wait to be written whose
// commits are over: a later reply must not overtake them.
func (o *outbox) cancelUnlessBehind(bytes int64) (cancelled bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.unwritten > 0 {
		return false
	}
	o.freeReplyLocked(bytes)
	return true
}

// pushReply queues a reply whose commit is over. It reports whether there is something to write.
func (o *outbox) pushReply(w *waitingReply) (queued bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.closed || w.abandoned {
		o.freeReplyLocked(w.room)
		return false
	}
	o.replies = append(o.replies, w)
	o.unwritten++
	o.unwrittenBytes += w.room
	return true
}

// takeReplies returns the replies that wait to be written. The caller must call replyWritten for
// each. From now on the outbox queues in the slice written, which the caller has finished with.
func (o *outbox) takeReplies(written []*waitingReply) []*waitingReply {
	written = emptied(written)
	o.mu.Lock()
	defer o.mu.Unlock()
	taken := o.replies
	o.replies = written
	return taken
}

// replyWritten gives back the room of a reply that is written.
func (o *outbox) replyWritten(bytes int64) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if !o.closed {
		o.unwritten--
		o.unwrittenBytes -= bytes
		o.freeReplyLocked(bytes)
	}
}

// take returns the notifications that wait. The caller must Release the room of each when it has
// written it. From now on the outbox queues in the slice written, which the caller has
// finished with.
func (o *outbox) take(written []*sharedNotification) []*sharedNotification {
	written = emptied(written)
	o.mu.Lock()
	defer o.mu.Unlock()
	taken := o.queue
	o.queue = written
	return taken
}

// emptied returns a slice with the capacity of queue and no element, or nil if queue is left from a
// burst.
func emptied[T any](queue []T) []T {
	clear(queue)
	if cap(queue) > maxSpareQueue {
		return nil
	}
	return queue[:0]
}

// close ends the goroutine and waits for it. The socket must have been closed, so that a present
// write returns. The room of replies that wait for a commit stays taken until then: the engine
// still has them.
func (o *outbox) close() {
	o.mu.Lock()
	o.releaseLocked(o.used)
	o.allReplies.Release(o.unwrittenBytes)
	o.promisedBytes -= o.unwrittenBytes
	o.closed, o.queue, o.replies, o.used = true, nil, nil, 0
	o.mu.Unlock()
	o.task.Wait()
}

// stuckAfter is how long none of the outboxes that may write has finished before they count as
// stuck, waiting for their clients.
const stuckAfter = 10 * time.Millisecond

// writeLimiter lets a few outboxes write at a time, in the order in which they asked. Otherwise a
// change that a thousand clients watch would make a thousand goroutines runnable at once, for all
// of which a request would wait. What is queued for a waiting outbox leaves in the same write.
//
// A client that does not read can block a write for writeTimeout. So if no write ends for
// stuckAfter, the present ones no longer count: twice as many may write each time, until writes end
// again.
//
// It is safe for concurrent use, and has no goroutine.
type writeLimiter struct {
	normal int // how many may write at a time, unless some are stuck

	mu      sync.Mutex
	waiting []*outbox   // in the order in which they asked; each at most once
	writing int         // how many have begun to write in this round and not finished
	allowed int         // how many may write now
	round   uint64      // counts how often the outboxes that write were declared stuck
	latest  time.Time   // when one began to write or finished
	timer   *time.Timer // calls relieve; nil: it is not running
}

// newWriteLimiter leaves one processor for requests: see fairqueue.New.
func newWriteLimiter() *writeLimiter {
	most := max(runtime.GOMAXPROCS(0)-1, 1)
	return &writeLimiter{normal: most, allowed: most}
}

// enqueue calls permit of an outbox when that may write.
func (p *writeLimiter) enqueue(o *outbox) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.waiting = append(p.waiting, o)
	p.permitLocked()
}

// done is called when an outbox that was permitted to write in a round has written.
func (p *writeLimiter) done(round uint64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if round == p.round {
		p.writing--
		p.latest = time.Now()
	}
	p.permitLocked()
}

func (p *writeLimiter) permitLocked() {
	for p.writing < p.allowed && len(p.waiting) > 0 {
		next := p.waiting[0]
		p.waiting[0] = nil
		p.waiting = p.waiting[1:]
		if next.permit(p.round) {
			p.writing++
			p.latest = time.Now()
		}
	}
	if len(p.waiting) == 0 {
		p.waiting = nil
	} else if p.timer == nil {
		p.timer = time.AfterFunc(stuckAfter, p.relieve)
	}
}

// mostAllowed bounds how many outboxes may write at once.
const mostAllowed = 1024

// relieve declares the outboxes that write stuck if none has finished for stuckAfter. Otherwise
// fewer may write from now on.
func (p *writeLimiter) relieve() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.timer = nil
	if len(p.waiting) == 0 {
		p.allowed = p.normal
		return
	}
	if time.Since(p.latest) >= stuckAfter {
		p.round++
		p.writing = 0
		p.allowed = min(2*p.allowed, mostAllowed)
	} else {
		p.allowed = max(p.allowed/2, p.normal)
	}
	p.permitLocked()
}
