package server

import (
	"crypto/tls"
	"errors"
	"net"
	"os"
	"sync"
	"time"

	"github.com/tenurelock/tenure/server/internal/fairqueue"
	"github.com/tenurelock/tenure/server/internal/pubsub"
	"github.com/tenurelock/tenure/server/internal/sharedquota"
	"github.com/tenurelock/tenure/statestore"
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
	all   *sharedquota.Quota // Server.outgoing
	task  *fairqueue.Place   // of Server.writers: its turn starts a goroutine
	turn  *fairqueue.Place   // of Server.processors, for this goroutine
	tasks sync.WaitGroup     // this goroutine, if there is one
	room  chan struct{}      // has an item after there may be room for a reply again

	mu       sync.Mutex
	write    func() // writes what waits; nil: begin has not been called
	writer   writer
	queue    []packet
	spare    []packet // an empty queue to be used again; may be nil
	messages bool     // the session has messages to write
	replies  int      // that have room: queued ones, and ones whose requests are being applied or wait for a commit
	used     int64
	blocked  bool // there was no room for a reply
	closed   bool
	moved    bool      // something has left since isBehind was called last
	read     time.Time // when isBehind saw that last
}

var _ pubsub.Link = (*outbox)(nil)

// writer says which goroutine will write what waits.
type writer uint8

const (
	noWriter      writer = iota // one has to be started
	readerWrites                // the goroutine that reads the connection, before its next request
	startedWrites               // one that is started in its turn
)

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

// notify queues a notification. It reports whether there was room, and whether the outbox is behind now.
func (o *outbox) notify(notification packet) (queued, behind bool) {
	o.mu.Lock()
	defer o.unlockAndStart()
	if o.closed {
		return true, false
	}
	if queued = o.reserveLocked(notification.size()); queued {
		o.queue = append(o.queue, notification)
	}
	return queued, o.behindLocked()
}

// answer queues a reply that has room.
func (o *outbox) answer(reply *pendingReply) {
	o.mu.Lock()
	defer o.unlockAndStart()
	if o.closed {
		o.releaseLocked(packet{reply: reply})
		return
	}
	o.queue = append(o.queue, packet{reply: reply})
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
	if o.writer == by {
		o.writer = noWriter
	}
}

// maxSpareQueue is the longest queue, in packets, that an outbox keeps for reuse.
const maxSpareQueue = 64

// take returns the packets that wait, for their writer; none if another goroutine writes. The caller releases
// each, and calls reuse and rest in the end.
func (o *outbox) take(by writer) []packet {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.writer != by || len(o.queue) == 0 {
		return nil
	}
	taken := o.queue
	o.queue, o.spare = o.spare, nil
	return taken
}

// reuse keeps the memory of packets that take has returned.
func (o *outbox) reuse(taken []packet) {
	clear(taken) // an idle client must not keep their values
	o.mu.Lock()
	defer o.mu.Unlock()
	if cap(taken) <= maxSpareQueue {
		o.spare = taken[:0]
	}
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
// other packets wait. Then the goroutine that reads writes what waits, unless another one does already.
func (o *outbox) reserveReply(bytes int64, most int) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	own := int64(assured)
	if o.used == 0 {
		own = max(own, bytes)
	}
	if o.closed || o.replies >= most || o.used > 0 && o.used+bytes > o.limit/2 || !o.all.Take(o.used, bytes, own) {
		o.blocked = true
		return false
	}
	o.used += bytes
	o.replies++
	if o.writer == noWriter {
		o.writer = readerWrites
	}
	return true
}

// overdraw takes room for the value of a reply, whose length only the store could tell, and which perhaps has
// left. It may exceed the budget: then the next request waits.
func (o *outbox) overdraw(bytes int64) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.used += bytes
	o.all.Add(bytes)
}

// awaitReply is reserveReply, but waits for room. It reports false if the connection ends before.
func (o *outbox) awaitReply(bytes int64, most int) bool {
	for !o.reserveReply(bytes, most) {
		if o.isClosed() {
			return false
		}
		<-o.room
	}
	return true
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

// release gives back the room of a packet that is not used any more.
func (o *outbox) release(p packet) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.releaseLocked(p)
}

func (o *outbox) releaseLocked(p packet) {
	o.moved = true
	o.used -= p.size()
	o.all.Release(p.size())
	if o.blocked {
		o.signalLocked()
	}
	if p.reply != nil {
		o.replies--
		p.reply.free()
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
	for _, p := range o.queue {
		o.releaseLocked(p)
	}
	o.queue = nil
}

// What follows brings notifications, and writes what waits.

// deliver queues a notification for the connection of its client, whether or not the client has
// subscribed to the topic. The engine calls it with its lock held, so it must not block.
func (s *Server) deliver(notification statestore.Notification) {
	conn := s.connectionOf(notification.Client)
	if conn == nil {
		return
	}
	queued, behind := conn.outbox.notify(packet{change: notification.Change, dialect: notification.Dialect})
	if !queued {
		conn.end(endSlow)
	}
	if behind {
		s.behind.Store(conn.outbox)
	}
}

const (
	// behindPause is a pause in which nothing is queued while an outbox is behind, and behindPauses how
	// many there are at most while it is being written.
	behindPause  = time.Millisecond
	behindPauses = 5
	// unreadAfter is how long nothing has left an outbox if its client counts as one that does not read.
	unreadAfter = 100 * time.Millisecond
)

// behindLocked reports whether more than a quarter of the budget is taken.
func (o *outbox) behindLocked() bool { return o.used > o.limit/4 }

// letRead waits for a moment if an outbox is behind and its client reads. A burst of changes is queued
// faster than a client can read them: without a pause, a client would seem slow that is not. The engine, and the
// goroutine that reads a connection, call letRead without a lock.
func (s *Server) letRead() {
	o := s.behind.Swap(nil)
	for n := 0; o != nil && o.isBehind() && n < behindPauses; n++ {
		time.Sleep(behindPause)
	}
}

// isBehind reports whether the outbox is behind though its client reads.
func (o *outbox) isBehind() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.moved || o.read.IsZero() {
		o.moved, o.read = false, time.Now()
	}
	return o.behindLocked() && time.Since(o.read) < unreadAfter
}

// writesAtOnce is how many writes of messages a connection may make before others may write.
const writesAtOnce = 8

// writeWaiting writes what waits for a client, as much as possible in one write: replies and notifications, and
// then the messages of its session. It is called in a turn of Server.writers: notifying a thousand clients of one
// change must not delay the requests of others.
func (s *Server) writeWaiting(conn *connection) {
	o := conn.outbox
	write := func() {
		o.turn.End()
		_ = conn.flush()
		o.task.Yield()
	}
	conn.guard(o.turn, func() error {
		conn.writePackets(startedWrites, o.turn, write)
		s.writeMessages(conn, write)
		write()
		return nil
	})
}

// writeOwn adds what a request has caused to the packets that are held back, unless another goroutine writes.
// From now on another one may: a rule of the program may keep the next request for long.
func (c *connection) writeOwn() {
	c.answers += c.writePackets(readerWrites, c.readTurn, func() {
		c.readTurn.End()
		_ = c.flush()
	})
	c.outbox.rest(readerWrites)
}

// packetsAtOnce is how many packets are encoded before a turn may end: those that one request causes leave together.
const packetsAtOnce = 8

// writePackets adds the packets that wait to those that are held back, in turns, and calls write when these are
// enough and more follow. It returns how many bytes of them are still held back. If another goroutine writes, it
// does nothing.
func (c *connection) writePackets(by writer, turn *fairqueue.Place, write func()) (held int) {
	taken := c.outbox.take(by)
	if len(taken) == 0 {
		return 0
	}
	n := 0
	defer func() { // also if the connection ends, perhaps in a panic
		for _, p := range taken[n:] {
			c.outbox.release(p)
		}
		c.outbox.reuse(taken)
	}()
	for n < len(taken) && !c.isClosed() {
		turn.Begin()
		held += taken[n].write(c, turn)
		c.outbox.release(taken[n])
		n++
		if n < len(taken) && (held >= heldEnough || n%packetsAtOnce == 0 && turn.Spent()) {
			write()
			held = 0
		}
	}
	return held
}

// writeMessages writes the messages that wait in the session of a client. It gathers the packets
// without a lock of the connection, because the session may call an Authorizer.
func (s *Server) writeMessages(conn *connection, write func()) {
	if !conn.outbox.takeMessages() {
		return
	}
	room := heldRooms.Get().(*[heldRoom]byte)
	defer heldRooms.Put(room)
	more := true
	for n := 0; more && !conn.isClosed(); n++ {
		if n == writesAtOnce {
			conn.outbox.Wake() // goes on when the others have written
			return
		}
		conn.outbox.turn.Begin()
		var gathered []byte
		gathered, more = conn.session.Append(conn.outbox, room[:0], heldEnough)
		if len(gathered) == 0 {
			return
		}
		conn.holdBack(func(held []byte) []byte { return append(held, gathered...) })
		write()
	}
}

// What follows writes to the socket.

// socketBuffer is how many bytes the kernel may hold for a connection in each direction. Linux doubles
// the number, for its own overhead. By itself it lets a buffer grow to megabytes, and keeps them for a
// client that does not read. With 32 KiB, packets of 1 MiB took a hundred times as long on loopback,
// whose segments have 64 KiB.
const socketBuffer = 128 << 10

// boundBuffers bounds the buffers of a socket. A connection in memory has none.
func boundBuffers(conn net.Conn) {
	if socket, ok := conn.(interface {
		SetReadBuffer(bytes int) error
		SetWriteBuffer(bytes int) error
	}); ok {
		_ = socket.SetReadBuffer(socketBuffer) // fails on a closed connection only
		_ = socket.SetWriteBuffer(socketBuffer)
	}
}

// closeSocket closes a connection without an alert of TLS, which could block.
func closeSocket(conn net.Conn) {
	if encrypted, ok := conn.(*tls.Conn); ok {
		conn = encrypted.NetConn()
	}
	_ = conn.Close() // the connection is over even if this fails
}

// send writes a whole packet, after those that are held back.
func (c *connection) send(packet []byte) error {
	c.holdBack(func(held []byte) []byte { return append(held, packet...) })
	return c.flush()
}

const (
	// heldRoom is the usual room for packets that are held back, in bytes.
	heldRoom = 32 << 10
	// heldEnough is how many bytes are written without waiting for more.
	heldEnough = heldRoom / 2
)

// heldRooms has arrays for connections that hold packets back. Idle ones need none.
var heldRooms = sync.Pool{New: func() any { return new([heldRoom]byte) }}

// holdBack lets encode append whole packets to those that will be written next, and returns how
// many bytes it added. It does not write, and does not wait for a write: see flush.
func (c *connection) holdBack(encode func(held []byte) []byte) (added int) {
	c.holding.Lock()
	defer c.holding.Unlock()
	if c.held == nil {
		c.held = heldRooms.Get().(*[heldRoom]byte)[:0]
	}
	before := len(c.held)
	c.held = encode(c.held)
	return len(c.held) - before
}

// flush writes the packets that are held back. If it fails, it closes the connection.
func (c *connection) flush() error {
	c.writing.Lock()
	defer c.writing.Unlock()
	c.holding.Lock()
	held := c.held
	c.held = nil
	c.holding.Unlock()
	if held == nil {
		return nil
	}
	err := c.write(held)
	if cap(held) == heldRoom {
		heldRooms.Put((*[heldRoom]byte)(held[:heldRoom]))
	}
	return err
}

// write writes, and closes the connection if that takes longer than writeTimeout. It is called
// with writing locked.
func (c *connection) write(p []byte) error {
	deadline := time.Now().Add(writeTimeout)
	if last := c.lastWriteBy.Load(); last != nil && last.Before(deadline) {
		deadline = *last
	}
	_ = c.socket.SetWriteDeadline(deadline) // fails on a closed connection, as the write will
	_, err := c.socket.Write(p)
	if err != nil {
		if errors.Is(err, os.ErrDeadlineExceeded) && c.lastWriteBy.Load() == nil {
			c.why.CompareAndSwap(nil, endSlow)
		}
		c.close()
	}
	return err
}
