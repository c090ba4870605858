package server

import (
	"sync"
	"time"

	"github.com/tenurelock/tenure/server/internal/fairqueue"
	"github.com/tenurelock/tenure/server/internal/pubsub"
	"github.com/tenurelock/tenure/server/internal/sharedquota"
)

// outbox is what the store and other clients cause to be written to one connection: a queue of replies and
// notifications with a budget of bytes, and whether ordinary messages wait, which are queued in the client's
// session.
//
// The goroutine that reads the connection writes what its own requests cause, each before the next.
// Otherwise a goroutine writes that is started in a turn of Server.writers. So neither a publisher nor a
// commit ever waits for a client, and an idle connection has one goroutine.
//
// A client that reads too slowly for a notification to fit is disconnected: it connects, watches and
// reads again, and so misses nothing. If the notification were dropped, the client would keep an
// outdated state. While replies have no room, the server reads nothing more from the client.
type outbox struct {
	limit int64              // bytes
	all   *sharedquota.Quota // quotas.outgoing
	task  *fairqueue.Place   // of Server.writers: its turn starts a goroutine
	turn  *fairqueue.Place   // of Server.processors, for this goroutine
	tasks sync.WaitGroup     // this goroutine, if there is one
	room  chan struct{}      // has an item after there may be room for a reply again

	mu       sync.Mutex
	write    func() // writes what waits; nil: begin has not been called
	writer   writer
	queue    []packet
	taken    []packet // that the writer writes now
	spare    []packet // an empty queue to be used again; may be nil
	messages bool     // the session has messages to write
	replies  int      // that have room: queued ones, and ones whose requests are being applied or wait for a commit
	used     int64
	blocked  bool // there was no room for a reply
	closed   bool

	left int64     // bytes that were taken and no longer are, in all
	seen int64     // left when progress was called last
	read time.Time // when progress saw last that something had left
}

var _ pubsub.Link = (*outbox)(nil)

// writer says which goroutine will write what waits.
type writer uint8

const (
	noWriter      writer = iota // one has to be started
	readerWrites                // the goroutine that reads the connection, before its next request
	startedWrites               // one that is started in its turn
)

// packet is what waits in the queue of an outbox.
type packet interface {
	// size returns how many bytes of the budget the packet takes.
	size() int64
	// write adds the packet to those that a connection holds back, or publishes it, in a turn of a place. It
	// returns how many bytes it has added.
	write(conn *connection, turn *fairqueue.Place) (added int)
	// free lets another packet use the memory, and reports whether it was a reply.
	free() (isReply bool)
}

// assured is how many bytes may wait for a connection whatever waits for others: a few
// notifications. A client that reads must not be disconnected because others do not.
const assured = 8 << 10

func newOutbox(limit int64, all *sharedquota.Quota, processors, writers *fairqueue.Scheduler) *outbox {
	o := &outbox{limit: limit, all: all, turn: processors.NewPlace(), room: make(chan struct{}, 1)}
	o.task = writers.NewTask(o.start)
	return o
}

// begin sets the function that writes what waits, which a goroutine calls that is started.
func (o *outbox) begin(write func()) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.write = write
}

// notify queues a notification. It reports whether there was room, and whether more than a quarter of the
// budget is taken.
func (o *outbox) notify(notification packet) (queued, behind bool) {
	o.mu.Lock()
	switch {
	case o.closed:
		queued = true
	case o.reserveLocked(notification.size()):
		o.queue = append(o.queue, notification)
		queued = true
	}
	behind = o.used > o.limit/4
	o.unlockAndStart()
	return queued, behind
}

// answer queues a reply that has room.
func (o *outbox) answer(reply packet) {
	o.mu.Lock()
	defer o.unlockAndStart()
	if o.closed {
		o.releasePacketsLocked([]packet{reply})
		return
	}
	o.queue = append(o.queue, reply)
}

// Wake makes a goroutine write the messages of the session.
func (o *outbox) Wake() {
	o.mu.Lock()
	defer o.unlockAndStart()
	o.messages = true
}

// unlockAndStart releases mu, and has a goroutine started if something waits that none will write.
func (o *outbox) unlockAndStart() {
	start := !o.closed && o.write != nil && o.writer == noWriter && (o.messages || len(o.queue) > 0)
	if start {
		o.writer = startedWrites
	}
	o.mu.Unlock()
	if start {
		o.task.Start()
	}
}

// start starts the goroutine in its turn, unless the outbox is closed.
func (o *outbox) start() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.closed {
		return false
	}
	o.tasks.Add(1) // before close waits, since the outbox is not closed
	go o.run()
	return true
}

func (o *outbox) run() {
	defer o.tasks.Done()
	defer o.rest(startedWrites)
	defer o.task.End()
	o.write() // constant from begin on
}

// rest ends the writing of a goroutine. If more waits, another one is started.
func (o *outbox) rest(by writer) {
	o.mu.Lock()
	defer o.unlockAndStart()
	if o.writer != by {
		return
	}
	o.writer = noWriter
	clear(o.taken) // an idle client must not keep their values
	if o.taken != nil && cap(o.taken) <= maxSpareQueue {
		o.spare = o.taken[:0]
	}
	o.taken = nil
}

// maxSpareQueue is the longest queue, in packets, that an outbox keeps for reuse.
const maxSpareQueue = 64

// take returns the packets that wait, for their writer; none if another goroutine writes. The caller releases
// each, and calls rest in the end.
func (o *outbox) take(by writer) []packet {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.writer != by || len(o.queue) == 0 {
		return nil
	}
	o.taken, o.queue, o.spare = o.queue, o.spare, nil
	return o.taken
}

// takeMessages reports whether the session has messages to write, which the caller will.
func (o *outbox) takeMessages() (any bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	any, o.messages = o.messages, false
	return any
}

func (o *outbox) reserveLocked(bytes int64) bool {
	if o.used+bytes > o.limit || !o.all.Take(o.used, bytes, assured) {
		return false
	}
	o.used += bytes
	return true
}

// reserveReply takes room for the reply to a request of the connection, before the store gets it. It reports
// false if there is not enough, or if most replies have room already. One reply has room in any case, unless
// other packets wait. Then by writes what waits, unless another goroutine does already.
func (o *outbox) reserveReply(by writer, bytes int64, most int) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.replies >= most || !o.reserveReplyLocked(0, bytes) {
		o.blocked = true
		return false
	}
	o.replies++
	if o.writer == noWriter {
		o.writer = by
	}
	return true
}

// growReply takes more room for a reply that has some.
func (o *outbox) growReply(present, more int64) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.blocked = !o.reserveReplyLocked(present, more)
	return !o.blocked
}

func (o *outbox) reserveReplyLocked(present, more int64) bool {
	own := int64(assured)
	if o.used <= present { // nothing else waits
		own = max(own, present+more)
	} else if o.used+more > o.limit/2 {
		return false
	}
	if o.closed || !o.all.Take(o.used, more, own) {
		return false
	}
	o.used += more
	return true
}

// awaitRoom calls take until it succeeds, whenever there may be room again. It reports false if the connection
// ends before.
func (o *outbox) awaitRoom(take func() bool) bool {
	for !take() {
		if o.isClosed() {
			return false
		}
		<-o.room
	}
	return true
}

// overdraw takes room in any case.
func (o *outbox) overdraw(bytes int64) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.used += bytes
	o.all.Add(bytes)
}

func (o *outbox) isClosed() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.closed
}

// awaitedReplies returns how many replies have room.
func (o *outbox) awaitedReplies() int {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.replies
}

// release gives back the room of packets that are not used any more.
func (o *outbox) release(packets ...packet) {
	if len(packets) == 0 {
		return
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	o.releasePacketsLocked(packets)
}

func (o *outbox) releasePacketsLocked(packets []packet) {
	for _, p := range packets {
		o.releaseLocked(p.size())
		if p.free() {
			o.replies--
		}
	}
}

func (o *outbox) releaseLocked(bytes int64) {
	o.used -= bytes
	o.left += bytes
	o.all.Release(bytes)
	if o.blocked {
		o.signalLocked()
	}
}

func (o *outbox) signalLocked() {
	o.blocked = false
	select {
	case o.room <- struct{}{}:
	default:
	}
}

// end makes the outbox take nothing more. It does not wait.
func (o *outbox) end() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.closed = true
	o.signalLocked()
}

// close ends the outbox, and returns when no goroutine writes any more. The socket must have been closed, so
// that a present write returns. The room of replies that wait for a commit stays taken until then: the
// engine still has them.
func (o *outbox) close() {
	o.end()
	o.tasks.Wait()
	o.mu.Lock()
	defer o.mu.Unlock()
	o.releasePacketsLocked(o.queue)
	o.queue = nil
}

const (
	// behindPause is a pause in which nothing is queued while an outbox is filling up, and behindPauses how
	// many there are at most while it is being written.
	behindPause  = time.Millisecond
	behindPauses = 5
	// unreadAfter is how long nothing has left an outbox if its client counts as one that does not read.
	unreadAfter = 100 * time.Millisecond
)

// letRead waits for a moment while the outbox is filling up and its client reads. A burst of changes is queued
// faster than a client can read them: without a pause, a client would seem slow that is not.
func (o *outbox) letRead() {
	waiting, reads := o.progress()
	for range behindPauses {
		if !reads || waiting <= o.limit/4 {
			return
		}
		time.Sleep(behindPause)
		before := waiting
		waiting, _ = o.progress()
		reads = waiting < before
	}
}

// progress returns how many bytes wait, and whether anything has left within unreadAfter, as far as its calls
// could see.
func (o *outbox) progress() (waiting int64, reads bool) {
	now := time.Now()
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.left != o.seen || o.read.IsZero() {
		o.seen, o.read = o.left, now
	}
	return o.used, now.Sub(o.read) < unreadAfter
}
