package server

import (
	"crypto/tls"
	"errors"
	"io"
	"math"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/mochi-mqtt/server/v2/packets"

	"github.com/tenurelock/tenure/internal/frame"
	"github.com/tenurelock/tenure/internal/gate"
	"github.com/tenurelock/tenure/internal/wire"
	"github.com/tenurelock/tenure/server/access"
	"github.com/tenurelock/tenure/server/internal/pubsub"
	"github.com/tenurelock/tenure/server/internal/quota"
	"github.com/tenurelock/tenure/server/internal/turns"
)

// connection is a client's socket with what we know about it. The broker sees it
// as a net.Conn, and its hooks find it in the client again.
type connection struct {
	net.Conn
	gate         *gate.Gate // checks what the client sends; the reading goroutine's
	input        io.Reader  // of Conn: what the gate lets through and inbound leaves
	inbound      *inbound
	outbox       *outbox
	incoming     *quota.Quota    // of all connections; nil: no limit
	incomingUsed int64           // of it; the reading goroutine's
	readTurn     *turns.Place    // of the reading goroutine
	writeTurn    *turns.Place    // of the goroutine that writes what waits
	session      *pubsub.Session // set when it is established, before anything can be sent

	watched       string                // the key of the latest notification; of the goroutine that writes what waits
	notifyTopic   string                // the topic of its notifications; likewise
	notifications []*sharedNotification // that are written now; of the goroutine that writes what waits
	over          chan struct{}         // closed when the broker has forgotten the connection

	pendingAuth    *pendingAuth              // until it has authenticated; set before anything else happens
	authenticated  bool                      // it has authenticated; the reading goroutine's
	identity       access.Identity           // set at CONNECT, before anything else happens
	will           *request                  // the request to apply when the connection ends, if any; the reading goroutine's
	ordinaryWill   *ordinaryWill             // the ordinary Will, if any; the reading goroutine's
	receiveMaximum uint16                    // the client's Receive Maximum; the reading goroutine's
	reserved       string                    // the response topic of the latest request; the reading goroutine's
	lastByte       byte                      // that the broker read; the reading goroutine's
	fault          error                     // what the client sent, if that is why the server ends the connection; the reading goroutine's
	silenceAllowed time.Duration             // how long the client may be silent; the reading goroutine's
	shortened      bool                      // the client asked for a longer session; the reading goroutine's
	sessionEnded   atomic.Bool               // with the connection
	disconnected   atomic.Bool               // the broker said so
	replaced       atomic.Bool               // the next connection of the client waits for the end of this one
	farewell       atomic.Pointer[time.Time] // by when the last words must be out, once they are due

	stuck  atomic.Bool // a write took too long
	closed atomic.Bool

	// writing is held during a write, and only for that: it keeps writes in order, as the
	// socket itself does.
	writing sync.Mutex

	// holding guards held. It is not held during a write: a goroutine in a turn must not wait for
	// a client that does not read.
	holding sync.Mutex
	held    []byte // to be written first

	mu         sync.Mutex
	cancelWait func() // ends the wait for the client id, if any
	unlock     func() // gives back the client id, while the connection has taken it
	cleanUp    func() // undoes what the server noted of the connection, if anything
}

// newConnection returns a connection of a server. A packet of more than
// Options.MaxPacketSize bytes ends it.
func newConnection(socket net.Conn, options *Options, all *turns.Turns, outgoing *quota.Quota, post *writeLimiter) *connection {
	most := int(min(options.MaxPacketSize, math.MaxInt32)) // MQTT's own limit is lower
	limits := gate.DefaultLimits()
	limits.FirstPacket = min(limits.FirstPacket, most)
	c := &connection{
		Conn:      socket,
		gate:      gate.New(gate.FromClient, limits),
		outbox:    newOutbox(options.Limits.OutgoingBytes, outgoing, post),
		readTurn:  all.NewPlace(),
		writeTurn: all.NewPlace(),
		over:      make(chan struct{}),
	}
	c.inbound = &inbound{conn: c, publish: c.gate.Publish()}
	c.input = frame.NewFilter(socket, frame.FilterOptions{
		Limit: most,
		First: limits.FirstPacket,
		Check: c.check,
		Take:  c.inbound.take,
		Pause: c.inbound.pause,
		Room:  c.reserveIncoming,
	})
	return c
}

// check is the gate's, in a turn: to look through a large packet takes as long as to handle
// some hundred small ones. The turn ends in pause.
func (c *connection) check(packet []byte) error {
	c.readTurn.Begin()
	return c.gate.Check(packet)
}

var errNoRoom = wire.Refuse(packets.ErrQuotaExceeded.Code, "large packets take up all the room that there is for them")

// makeRoom takes room for a large packet that arrives, or gives it back. Like outgoing
// messages, those of one client may have no more than is left for all others.
func (c *connection) reserveIncoming(bytes int) error {
	more := int64(bytes)
	if c.incoming == nil {
		return nil
	}
	switch {
	case more <= 0:
		c.incoming.Release(-more)
	// The new packet does not count as the client's own yet: a limit of two of the largest packets
	// admits two.
	case !c.incoming.Take(c.incomingUsed-more, more, 0):
		return errNoRoom
	}
	c.incomingUsed += more
	return nil
}

// Read notes the last byte, which may be all that a DISCONNECT says (see reasonOf). Where a
// packet is refused, the client is told why, and the connection ends.
func (c *connection) Read(p []byte) (int, error) {
	n, err := c.input.Read(p)
	if n > 0 {
		c.lastByte = p[n-1]
	}
	if err != nil && c.fault == nil {
		c.refuse(err)
	}
	return n, err
}

// refuse ends the connection if the client has sent what it may not, and does nothing if
// err is another one.
func (c *connection) refuse(err error) {
	farewell, refused := c.gate.AppendFarewell(nil, err)
	if !refused {
		if c.failedHandshake(err) {
			c.fault = err
		}
		return
	}
	c.fault = err
	if len(farewell) > 0 {
		_ = c.SetWriteDeadline(time.Now().Add(farewellTimeout)) // if it fails, so does the write
		_, _ = c.Write(farewell)                                // the connection ends either way
	}
	_ = c.Close()
}

// failedHandshake reports whether err is the end of a TLS handshake that one of the two
// sides refused: a client with another authority or without TLS. One that only
// leaves is not meant.
func (c *connection) failedHandshake(err error) bool {
	encrypted, ok := c.Conn.(*tls.Conn)
	if !ok || encrypted.ConnectionState().HandshakeComplete || errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return false
	}
	var socket *net.OpError
	return !errors.As(err, &socket) || socket.Op == "remote error" || socket.Op == "local error"
}

// Close ends the connection. What is held back is lost, and no request of it is applied
// any more but for one that is.
func (c *connection) Close() error {
	c.end()
	return c.Conn.Close()
}

// abort is Close without TLS's farewell, which may take five seconds where the client does
// not read.
func (c *connection) abort() {
	c.end()
	socket := c.Conn
	if encrypted, ok := socket.(*tls.Conn); ok {
		socket = encrypted.NetConn()
	}
	_ = socket.Close() // it ends either way
}

// end ends the waits of a connection that is closed.
func (c *connection) end() {
	c.closed.Store(true)
	c.pendingAuth.cancelWait()
	c.mu.Lock()
	giveUp := c.cancelWait
	c.mu.Unlock()
	if giveUp != nil {
		giveUp()
	}
}

// SetDeadline limits reads only: the broker calls it with one and a half keep-alives
// whenever it has read a packet. For writes see Write.
func (c *connection) SetDeadline(t time.Time) error {
	c.silenceAllowed = 0
	if !t.IsZero() {
		c.silenceAllowed = time.Until(t)
	}
	return c.Conn.SetReadDeadline(t)
}

// extendDeadline is for packets that the broker does not read.
func (c *connection) extendDeadline() {
	if c.silenceAllowed > 0 {
		_ = c.Conn.SetReadDeadline(time.Now().Add(c.silenceAllowed)) // fails on a closed connection, as the read will
	}
}

// SetWriteDeadline limits the write under way, if any, and all that follow.
func (c *connection) SetWriteDeadline(t time.Time) error {
	c.farewell.Store(&t)
	return c.Conn.SetWriteDeadline(t)
}

// Write writes a whole packet, after what is held back.
func (c *connection) Write(p []byte) (int, error) {
	c.writing.Lock()
	defer c.writing.Unlock()
	if err := c.writeHeld(); err != nil {
		return 0, err
	}
	return c.write(p)
}

const (
	// heldRoom is the room for what is held back.
	heldRoom = 32 << 10
	// heldEnough is how much is not held back any longer.
	heldEnough = heldRoom / 2
)

// heldRooms are arrays of heldRoom bytes: idle connections need none.
var heldRooms = sync.Pool{New: func() any { return new([heldRoom]byte) }}

// holdBack lets encode append whole packets to what will be written next, and returns how
// many bytes that added. It writes nothing, and waits for no write: see flush.
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

// flush writes what is held back.
func (c *connection) flush() {
	c.writing.Lock()
	defer c.writing.Unlock()
	_ = c.writeHeld() // has closed the connection if it failed
}

// writeHeld is called with writing locked.
func (c *connection) writeHeld() error {
	c.holding.Lock()
	held := c.held
	c.held = nil
	c.holding.Unlock()
	if held == nil {
		return nil
	}
	_, err := c.write(held)
	if cap(held) == heldRoom {
		heldRooms.Put((*[heldRoom]byte)(held[:heldRoom]))
	}
	return err
}

// write gives up, and ends the connection, after writeTimeout. It is called with writing
// locked.
func (c *connection) write(p []byte) (int, error) {
	deadline := time.Now().Add(writeTimeout)
	if farewell := c.farewell.Load(); farewell != nil && farewell.Before(deadline) {
		deadline = *farewell
	}
	_ = c.Conn.SetWriteDeadline(deadline) // fails on a closed connection, as the write will
	n, err := c.Conn.Write(p)
	if err != nil {
		if errors.Is(err, os.ErrDeadlineExceeded) && c.farewell.Load() == nil {
			c.stuck.Store(true)
		}
		_ = c.Close()
	}
	return n, err
}

// wait notes how to end the wait for the client id, or ends it if the connection is closed.
func (c *connection) waitForID(giveUp func()) {
	c.mu.Lock()
	c.cancelWait = giveUp
	c.mu.Unlock()
	if c.closed.Load() {
		giveUp()
	}
}

// hold notes that the connection has taken its client id, and waits no more.
func (c *connection) idLocked(release func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.unlock, c.cancelWait = release, nil
}

// establish notes what to do when the connection is over.
func (c *connection) onOver(forget func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.cleanUp = forget
}

// letGo gives the client id back, if the connection has taken it.
func (c *connection) unlockID() {
	c.mu.Lock()
	release := c.unlock
	c.unlock = nil
	c.mu.Unlock()
	if release != nil {
		release()
	}
}

// finish is called when the broker is done with the connection, however far that
// had come.
func (c *connection) finish() {
	c.mu.Lock()
	forget := c.cleanUp
	c.mu.Unlock()
	if forget != nil {
		forget()
	}
	c.unlockID()                                // not before: the next of the name must not be forgotten
	_ = c.reserveIncoming(-int(c.incomingUsed)) // nothing is read any more
	c.outbox.close()
	close(c.over)
}
