package server

import (
	"context"
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

	"github.com/tenurelock/tenure/internal/mqtt"
	"github.com/tenurelock/tenure/internal/unauthenticated"
	"github.com/tenurelock/tenure/server/access"
	"github.com/tenurelock/tenure/server/internal/fairqueue"
	"github.com/tenurelock/tenure/server/internal/packetroom"
	"github.com/tenurelock/tenure/server/internal/pubsub"
	"github.com/tenurelock/tenure/server/internal/wire"
	"github.com/tenurelock/tenure/statestore"
)

// connection is the socket of a client with its state. mochi uses it as a net.Conn; the hook
// finds it in Client.Net.Conn.
type connection struct {
	net.Conn
	encrypted *encryptedSocket // below Conn, which is a tls.Conn then; nil: there is no TLS
	outbox    *outbox
	session   *pubsub.Session // set when it is established, before anything can be sent
	over      chan struct{}   // closed when mochi is done with the connection
	number    uint64          // in the order in which the listener accepted connections

	// Of the goroutine that reads the connection.
	gate           *wire.Gate // checks what the client sends
	input          io.Reader  // Conn without the packets that the gate refuses or inbound takes
	inbound        *inbound
	readTurn       *fairqueue.Place
	place          *packetroom.Place               // its room for a large packet
	placed         int64                           // bytes of it
	packetTimeout  time.Duration                   // of each packet
	readBy         time.Time                       // the deadline of reads
	hurried        bool                            // readBy is the end of packetTimeout
	pendingAuth    *unauthenticated.Connection     // set before anything is read
	authenticated  bool                            // its client
	will           *request                        // to apply when the connection ends; nil: none
	willCommand    *statestore.Command             // of will, as it was at CONNECT; nil: none
	ordinaryWill   *ordinaryWill                   // to publish when the connection ends; nil: none
	receiveMaximum uint16                          // of the client
	reserved       string                          // the response topic of the latest request
	lastByte       byte                            // that mochi read
	fault          error                           // why the server ends the connection, if the client has sent something forbidden
	silenceAllowed time.Duration                   // one and a half keep-alives; zero before the client is admitted
	shortened      bool                            // the client asked for a longer session
	endReason      string                          // why it ended, for the observer
	observed       bool                            // the observer knows that it has begun
	spare          *waitingReply                   // for the next request of a store with a journal; may be nil
	wakeOthers     func([]statestore.Notification) // Server.wakeOthers for this connection
	unlock         func()                          // unlocks the client id; nil: it is not locked
	cleanUp        func()                          // ends what the server keeps for the connection; nil: nothing

	// Of the goroutine that writes what waits for the client.
	writeTurn *fairqueue.Place
	replies   []*waitingReply // that are written now

	// Of that goroutine, or of the one that reads the connection: whichever the outbox lets write.
	notifications []*sharedNotification // that are written now

	identity access.Identity // set at CONNECT, constant from then on

	sessionEnded atomic.Bool               // with the connection
	disconnected atomic.Bool               // mochi has called OnDisconnect
	replaced     atomic.Bool               // the next connection of the client waits for the end of this one
	lastWriteBy  atomic.Pointer[time.Time] // the deadline of the last write, once the connection is to end
	slow         atomic.Bool               // a write took too long, or a notification did not fit
	displaced    atomic.Bool               // it has lost its room to another packet
	closed       atomic.Bool

	// writing is held during a write, and only for that: it keeps writes in order, as the
	// socket itself does.
	writing sync.Mutex

	// holding guards held. It is not held during a write, for which a turn must not wait.
	holding sync.Mutex
	held    []byte // whole packets, to be written before anything else

	cancelWait atomic.Pointer[context.CancelFunc] // ends the wait for the lock on the client id; nil: it has not waited

	// open ends with the connection, for what waits for a commit. Of a server with a journal; nil
	// otherwise.
	open     context.Context
	endWaits context.CancelFunc
}

// newConnection returns the connection of a socket. A packet of more than
// Options.MaxPacketSize bytes ends it.
func newConnection(socket net.Conn, options *Options, all *fairqueue.Scheduler, shared quotas, writers *writeLimiter) *connection {
	most := int(min(options.MaxPacketSize, math.MaxInt32)) // MQTT's own limit is lower
	limits := wire.DefaultLimits()
	limits.FirstPacket = min(limits.FirstPacket, most)
	c := &connection{
		gate:      wire.NewGate(limits),
		outbox:    newOutbox(options.Limits.OutgoingBytes, shared, writers),
		readTurn:  all.NewPlace(),
		writeTurn: all.NewPlace(),
		over:      make(chan struct{}),

		packetTimeout: options.PacketTimeout,
	}
	c.place = shared.incoming.NewPlace(c.displace)
	if options.Journal != nil {
		c.open, c.endWaits = context.WithCancel(context.Background())
	}
	if options.TLS != nil {
		c.encrypted = &encryptedSocket{Socket: unauthenticated.Socket{Conn: socket}, conn: c}
		socket = tls.Server(c.encrypted, options.TLS)
	}
	c.Conn = socket
	c.inbound = &inbound{conn: c, publish: c.gate.Publish()}
	c.input = mqtt.NewFilter(socket, mqtt.FilterOptions{
		Limit: most,
		First: limits.FirstPacket,
		Check: c.check,
		Take:  c.inbound.take,
		Pause: c.inbound.pause,
		Room:  c.takeRoom,

		Partial: c.awaitRest,
	})
	return c
}

// encryptedSocket is below TLS. TLS also writes of its own accord, in the goroutine that reads: its
// handshake, and the answer to KeyUpdate. Such a write has a deadline of its own, because the present one
// is of the latest packet, which may have left long ago.
type encryptedSocket struct {
	unauthenticated.Socket
	conn *connection
}

func (e *encryptedSocket) Write(p []byte) (int, error) {
	if e.conn.writing.TryLock() { // else a packet is being written, and its deadline is set
		_ = e.Conn.SetWriteDeadline(time.Now().Add(writeTimeout)) // fails on a closed connection, as the write will
		e.conn.writing.Unlock()
	}
	return e.Socket.Write(p)
}

// handshake does the TLS handshake, if there is TLS. If it fails, the connection ends.
func (c *connection) handshake() error {
	if c.encrypted == nil {
		return nil
	}
	err := c.encrypted.Handshake(c.Conn.(*tls.Conn), c.pendingAuth)
	if err != nil {
		c.refuse(err)
		_ = c.Close()
	}
	return err
}

// check checks a packet in a turn, since a large one takes long. The turn ends in inbound.pause.
func (c *connection) check(packet []byte) error {
	c.hurried = false // what extends the deadline comes before the next read
	if c.placed > 0 {
		c.place.Finished()
	}
	c.readTurn.Begin()
	return c.gate.Check(packet)
}

var (
	errNoRoom     = mqtt.Refuse(packets.ErrQuotaExceeded.Code, "large packets take up all the room that there is for them, and this one waits longest for its rest")
	errUnfinished = mqtt.Refuse(packets.ErrQuotaExceeded.Code, "a packet was not complete in time: Options.PacketTimeout, --packet-timeout")
)

// takeRoom takes room for a large packet that arrives, or gives it back if bytes is negative. It
// returns errNoRoom if the client may have no more.
func (c *connection) takeRoom(bytes int) error {
	more := int64(bytes)
	switch {
	case more <= 0:
		c.place.Release(-more)
	case !c.place.Take(c.identity.User, more):
		return errNoRoom
	}
	c.placed += more
	return nil
}

// awaitRest is called before the connection waits for the rest of a packet.
func (c *connection) awaitRest() {
	if by := time.Now().Add(c.packetTimeout); by.Before(c.readBy) {
		c.hurried = true
		_ = c.setReadDeadline(by) // fails on a closed connection, as the read will
	}
}

// displace ends the connection because it has lost its room. If it waits for the rest of a packet, it
// tells the client why.
func (c *connection) displace(waiting bool) {
	c.displaced.Store(true)
	if waiting {
		_ = c.Conn.SetReadDeadline(longAgo) // fails on a closed connection
	} else {
		c.abort()
	}
}

// Read notes the last byte, which may be the reason code of a DISCONNECT (see reasonOf). If a
// packet is refused, it tells the client why and ends the connection.
func (c *connection) Read(p []byte) (int, error) {
	n, err := c.input.Read(p)
	if n > 0 {
		c.lastByte = p[n-1]
	}
	if err != nil && c.fault == nil {
		c.refuse(c.cause(err))
	}
	return n, err
}

// cause returns why a read failed.
func (c *connection) cause(err error) error {
	switch {
	case !errors.Is(err, os.ErrDeadlineExceeded):
	case c.displaced.Load():
		return errNoRoom
	case c.hurried:
		return errUnfinished
	}
	return err
}

// refuse ends the connection if err means that the client has sent something forbidden.
func (c *connection) refuse(err error) {
	answer, refused := c.gate.AppendRefusal(nil, err)
	if !refused {
		if c.failedHandshake(err) {
			c.fault = err
		}
		return
	}
	c.fault = err
	if len(answer) > 0 {
		_ = c.SetWriteDeadline(time.Now().Add(disconnectTimeout)) // if it fails, so does the write
		_, _ = c.Write(answer)                                    // the connection ends either way
	}
	_ = c.Close()
}

// failedHandshake reports whether err means that one side has refused the TLS handshake, because
// the client has another authority or no TLS. A client that only disconnects does not count.
func (c *connection) failedHandshake(err error) bool {
	encrypted, ok := c.Conn.(*tls.Conn)
	if !ok || encrypted.ConnectionState().HandshakeComplete || errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return false
	}
	var socket *net.OpError
	return !errors.As(err, &socket) || socket.Op == "remote error" || socket.Op == "local error"
}

// RemoteAddr never returns nil. Some connections of Options.Listener have no address.
func (c *connection) RemoteAddr() net.Addr { return remoteOf(c.Conn) }

// remoteOf returns the remote address of a connection, or one without a name if it has none.
func remoteOf(conn net.Conn) net.Addr {
	if remote := conn.RemoteAddr(); remote != nil {
		return remote
	}
	return new(net.IPAddr)
}

// Close ends the connection. Packets that are held back are lost. No more requests of the
// connection are applied, except for one that is being applied now.
func (c *connection) Close() error {
	c.end()
	return c.Conn.Close()
}

// abort is Close without TLS's close_notify, which may take five seconds if the client does not
// read.
func (c *connection) abort() {
	c.end()
	closeSocket(c.Conn)
}

// closeSocket closes a connection without an alert of TLS, which could block.
func closeSocket(conn net.Conn) {
	if encrypted, ok := conn.(*tls.Conn); ok {
		conn = encrypted.NetConn()
	}
	_ = conn.Close() // the connection is over even if this fails
}

// end ends what a closed connection waits for.
func (c *connection) end() {
	c.closed.Store(true)
	c.pendingAuth.CancelWait()
	if cancel := c.cancelWait.Load(); cancel != nil {
		(*cancel)()
	}
	if c.endWaits != nil {
		c.endWaits()
	}
}

// waitOutsideTurn lets the goroutine that reads the connection wait, and returns what wait does. What
// is held back is written before.
func (c *connection) waitOutsideTurn(wait func() bool) bool {
	c.inbound.writeNotifications()
	c.readTurn.End()
	c.flush()
	c.inbound.held = 0
	defer c.readTurn.Begin()
	return wait()
}

// SetDeadline limits reads only. mochi v2.7.9 calls it before each packet that it reads, with
// one and a half keep-alives rounded down to whole seconds. With a keep-alive of one second,
// that would leave no time for a client that sends a PINGREQ each second [MQTT-3.1.2-22].
func (c *connection) SetDeadline(t time.Time) error {
	if c.silenceAllowed > 0 {
		t = time.Now().Add(c.silenceAllowed)
	}
	return c.setReadDeadline(t)
}

// longAgo is a deadline that has passed.
var longAgo = time.Unix(1, 0)

// setReadDeadline limits reads, unless displace has ended them.
func (c *connection) setReadDeadline(t time.Time) error {
	c.readBy = t
	err := c.Conn.SetReadDeadline(t)
	if c.displaced.Load() {
		err = c.Conn.SetReadDeadline(longAgo)
	}
	return err
}

// extendDeadline does the same for packets that mochi does not read. They come after the client
// is admitted.
func (c *connection) extendDeadline() {
	_ = c.setReadDeadline(time.Now().Add(c.silenceAllowed)) // fails on a closed connection, as the read will
}

// SetWriteDeadline limits the present write, if any, and all that follow.
func (c *connection) SetWriteDeadline(t time.Time) error {
	c.lastWriteBy.Store(&t)
	return c.Conn.SetWriteDeadline(t)
}

// Write writes a whole packet, after those that are held back.
func (c *connection) Write(p []byte) (int, error) {
	c.writing.Lock()
	defer c.writing.Unlock()
	if err := c.writeHeld(); err != nil {
		return 0, err
	}
	return c.write(p)
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

// flush writes the packets that are held back.
func (c *connection) flush() {
	c.writing.Lock()
	defer c.writing.Unlock()
	_ = c.writeHeld() // if it fails, it closes the connection
}

// writeHeld is flush for a caller that has locked writing.
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

// write writes, and closes the connection if that takes longer than writeTimeout. It is called
// with writing locked.
func (c *connection) write(p []byte) (int, error) {
	deadline := time.Now().Add(writeTimeout)
	if last := c.lastWriteBy.Load(); last != nil && last.Before(deadline) {
		deadline = *last
	}
	_ = c.Conn.SetWriteDeadline(deadline) // fails on a closed connection, as the write will
	n, err := c.Conn.Write(p)
	if err != nil {
		if errors.Is(err, os.ErrDeadlineExceeded) && c.lastWriteBy.Load() == nil {
			c.slow.Store(true)
		}
		_ = c.Close()
	}
	return n, err
}

// waitForID notes how to end the wait for the client id, and ends it at once if the connection is
// closed.
func (c *connection) waitForID(cancel context.CancelFunc) {
	c.cancelWait.Store(&cancel)
	if c.closed.Load() {
		cancel()
	}
}

// unlockID unlocks the client id, if the connection has locked it.
func (c *connection) unlockID() {
	if c.unlock != nil {
		c.unlock()
		c.unlock = nil
	}
}

// finish is called when mochi is done with the connection, established or not.
func (c *connection) finish() {
	if c.cleanUp != nil {
		c.cleanUp()
	}
	c.unlockID()                   // after cleanUp, which must not end what the next connection of the client keeps
	_ = c.takeRoom(-int(c.placed)) // nothing more is read
	c.outbox.close()
	close(c.over)
}
