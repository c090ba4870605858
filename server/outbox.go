package server

import (
	"crypto/tls"
	"errors"
	"net"
	"os"
	"sync"
	"time"

	"github.com/tenurelock/tenure/server/internal/fairqueue"
	"github.com/tenurelock/tenure/server/internal/sharedquota"
	"github.com/tenurelock/tenure/statestore"
)

// outbox is what the store and other clients cause to be written to one connection: a queue of replies and
// notifications with a budget of bytes, and whether ordinary messages wait, which are queued in the client's
// session.
//
// The goroutine that reads the connection writes what its own requests cause, each before the next.
// Otherwise a goroutine is started, which writes in a turn of Server.writers. So neither a publisher nor a
// commit ever waits for a client, and an idle connection has one goroutine.
//
// A client that reads too slowly for a notification to fit is disconnected: it connects, watches and
// reads again, and so misses nothing. If the notification were dropped, the client would keep an
// outdated state. While replies have no space, the server reads nothing more from the client.
type outbox struct {
	limit int64              // bytes
	all   *sharedquota.Quota // Server.outgoing
	write func()             // writes what waits, in a goroutine that is started
	tasks sync.WaitGroup     // this goroutine, if there is one
	task  *fairqueue.Place   // of Server.writers, for this goroutine
	turn  *fairqueue.Place   // of Server.processors, for this goroutine

	mu       sync.Mutex
	space    sync.Cond // there may be space for a reply again
	writing  bool      // a goroutine will write what waits
	queue    []packet
	first    int  // in queue; what is before has left
	messages bool // the session has messages to write
	replies  int  // that have space: queued ones, and ones whose requests are being applied or wait for a commit
	used     int64
	moved    time.Time // when the outbox was last known to be behind and something left
	closed   bool
}

// assured is how many bytes may wait for a connection whatever waits for others: a few
// notifications. A client that reads must not be disconnected because others do not.
const assured = 8 << 10

func (s *Server) newOutbox(write func()) *outbox {
	o := &outbox{limit: s.limits.Outgoing, all: s.outgoing, write: write, task: s.writers.NewPlace(),
		turn: s.processors.NewPlace()}
	o.space.L = &o.mu
	return o
}

// notify queues a notification. It reports whether there was space, and whether the outbox is behind now.
func (o *outbox) notify(notification packet) (queued, behind bool) {
	o.mu.Lock()
	defer o.unlockAndStart()
	bytes, before := notification.size(), o.behindLocked()
	switch {
	case o.closed:
		return true, false
	case o.used+bytes > o.limit || !o.all.Take(o.used, bytes, assured):
		return false, before
	}
	o.used += bytes
	o.queue = append(o.queue, notification)
	if behind = o.behindLocked(); behind && !before {
		o.moved = time.Now()
	}
	return true, behind
}

// answer queues a reply that has space.
func (o *outbox) answer(reply *pendingReply) {
	o.mu.Lock()
	defer o.unlockAndStart()
	if o.closed {
		o.releaseLocked(packet{reply: reply})
		return
	}
	o.queue = append(o.queue, packet{reply: reply})
}

// overdraw takes space for the value of a reply, whose length only the store could tell, and which perhaps has
// left. It may exceed the budget: then the next request waits.
func (o *outbox) overdraw(bytes int64) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.used += bytes
	o.all.Add(bytes)
}

// wake makes a goroutine write the messages of the session.
func (o *outbox) wake() {
	o.mu.Lock()
	defer o.unlockAndStart()
	o.messages = true
}

// unlockAndStart releases mu, and starts a goroutine if something waits that none will write.
func (o *outbox) unlockAndStart() {
	defer o.mu.Unlock()
	if !o.closed && !o.writing && (o.messages || len(o.queue) > 0) {
		o.writing = true
		o.tasks.Go(func() {
			defer o.rest()
			o.write()
		})
	}
}

// rest ends the writing of a goroutine. If more waits, another one is started.
func (o *outbox) rest() {
	o.mu.Lock()
	defer o.unlockAndStart()
	o.writing = false
}

// maxSpareQueue is the longest queue, in packets, that an outbox keeps for reuse.
const maxSpareQueue = 64

// next takes a packet, if there is one, for the goroutine that writes, and gives back its space. more says that
// another one follows.
func (o *outbox) next() (p packet, ok, more bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if len(o.queue) == 0 {
		return packet{}, false, false
	}
	if o.behindLocked() {
		o.moved = time.Now()
	}
	p = o.queue[o.first]
	o.releaseLocked(p)
	if o.first++; 2*o.first > len(o.queue) {
		kept := copy(o.queue, o.queue[o.first:])
		clear(o.queue[kept:]) // an idle client must not keep their values
		o.queue, o.first = o.queue[:kept], 0
	}
	if more = len(o.queue) > 0; !more && cap(o.queue) > maxSpareQueue {
		o.queue = nil
	}
	return p, true, more
}

// takeMessages reports whether the session has messages to write, which the caller will.
func (o *outbox) takeMessages() (any bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	any, o.messages = o.messages, false
	return any
}

// reserveReply takes space for the reply to a request of the connection, before the store gets it, and returns how many
// replies have space now. One has space in any case, unless other packets wait. If there is none, reserveReply
// waits for it, or reports false. writes is true if the caller is to write what waits, and to call rest then.
func (o *outbox) reserveReply(bytes int64, most int, wait bool) (waits int, writes, ok bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for ; !o.takeReplyLocked(bytes, most); o.space.Wait() {
		if !wait || o.closed {
			return 0, false, false
		}
	}
	writes = !o.writing
	o.writing = true
	return o.replies, writes, true
}

func (o *outbox) takeReplyLocked(bytes int64, most int) bool {
	own := int64(assured)
	if o.used == 0 {
		own = max(own, bytes)
	}
	if o.closed || o.replies >= most || o.used > 0 && o.used+bytes > o.limit/2 || !o.all.Take(o.used, bytes, own) {
		return false
	}
	o.used += bytes
	o.replies++
	return true
}

// release gives back the space of a reply that is not queued.
func (o *outbox) release(reply *pendingReply) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.releaseLocked(packet{reply: reply})
}

func (o *outbox) releaseLocked(p packet) {
	o.used -= p.size()
	o.all.Release(p.size())
	if p.reply != nil {
		o.replies--
	}
	o.space.Signal()
}

// end makes the outbox take nothing more. It does not wait.
func (o *outbox) end() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.closed = true
	o.space.Signal()
}

// close ends the outbox, and returns when no goroutine writes any more. The socket must have been closed, so
// that a present write returns. The space of replies that wait for a commit stays taken until then: the
// engine still has them.
func (o *outbox) close() {
	o.end()
	o.tasks.Wait()
	for ok := true; ok; {
		_, ok, _ = o.next()
	}
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
	return o.behindLocked() && time.Since(o.moved) < unreadAfter
}

// writeWaiting writes what waits for the client, as much as possible in one write: replies and notifications, and
// then the messages of its session. It does so in a turn of Server.writers: notifying a thousand clients of one
// change must not delay the requests of others.
func (c *connection) writeWaiting() {
	task, turn := c.outbox.task, c.outbox.turn
	task.Begin()
	defer task.End()
	write := func() {
		turn.End()
		_ = c.flush()
		task.Yield()
	}
	c.guard(turn, func() error {
		c.writePackets(turn, write)
		c.writeMessages(turn, write)
		write()
		return nil
	})
}

// writeOwn adds what a request has caused to the packets that are held back, if the goroutine that reads is to write
// it. From now on another one may: a rule of the program may keep the next request for long.
func (c *connection) writeOwn() {
	if !c.writesOwn {
		return
	}
	c.writesOwn = false
	defer c.outbox.rest()
	c.writePackets(c.readTurn, func() {
		c.readTurn.End()
		_ = c.flush()
	})
}

// packetsAtOnce is how many packets are encoded before a turn may end: those that one request causes leave together.
const packetsAtOnce = 8

// writePackets adds the packets that wait to those that are held back, in turns, and calls write when these are
// enough and more follow.
func (c *connection) writePackets(turn *fairqueue.Place, write func()) {
	for n := 1; !c.isClosed(); n++ {
		p, ok, more := c.outbox.next()
		if !ok {
			return
		}
		turn.Begin()
		p.write(c, turn)
		if more && (c.holdsEnough() || n%packetsAtOnce == 0 && turn.Spent()) {
			write()
		}
	}
}

// writeMessages writes the messages that wait in the session of the client. It gathers the packets
// without a lock of the connection, because the session may call an Authorizer.
func (c *connection) writeMessages(turn *fairqueue.Place, write func()) {
	if !c.outbox.takeMessages() {
		return
	}
	buffer := heldBuffers.Get().(*[heldSize]byte)
	defer heldBuffers.Put(buffer)
	for more := true; more && !c.isClosed(); {
		turn.Begin()
		var gathered []byte
		gathered, more = c.client.session.Append(buffer[:0], heldEnough)
		if len(gathered) == 0 {
			return
		}
		c.holdBack(func(held []byte) []byte { return append(held, gathered...) })
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
	// heldSize is the usual space for packets that are held back, in bytes.
	heldSize = 32 << 10
	// heldEnough is how many bytes are written without waiting for more.
	heldEnough = heldSize / 2
)

// heldBuffers has arrays for connections that hold packets back. Idle ones need none.
var heldBuffers = sync.Pool{New: func() any { return new([heldSize]byte) }}

// holdBack lets encode append whole packets to those that will be written next. It does not write, and does not wait
// for a write: see flush.
func (c *connection) holdBack(encode func(held []byte) []byte) {
	c.holding.Lock()
	defer c.holding.Unlock()
	if c.held == nil {
		c.held = heldBuffers.Get().(*[heldSize]byte)[:0]
	}
	c.held = encode(c.held)
}

// holdsEnough reports whether what is held back is to be written without waiting for more.
func (c *connection) holdsEnough() bool {
	c.holding.Lock()
	defer c.holding.Unlock()
	return len(c.held) >= heldEnough
}

// flush writes the packets that are held back. If that fails, or takes longer than writeTimeout, it closes the
// connection.
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
	deadline := time.Now().Add(writeTimeout)
	if last := c.lastWriteBy.Load(); last != nil && last.Before(deadline) {
		deadline = *last
	}
	_ = c.socket.SetWriteDeadline(deadline) // fails on a closed connection, as the write will
	_, err := c.socket.Write(held)
	if err != nil {
		if errors.Is(err, os.ErrDeadlineExceeded) && c.lastWriteBy.Load() == nil {
			c.why.CompareAndSwap(nil, endSlow)
		}
		c.close()
	}
	if cap(held) == heldSize {
		heldBuffers.Put((*[heldSize]byte)(held[:heldSize]))
	}
	return err
}
