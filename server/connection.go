package server

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"math"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tenurelock/tenure/internal/mqtt"
	"github.com/tenurelock/tenure/internal/unauthenticated"
	"github.com/tenurelock/tenure/server/access"
	"github.com/tenurelock/tenure/server/internal/events"
	"github.com/tenurelock/tenure/server/internal/fairqueue"
	"github.com/tenurelock/tenure/server/internal/pubsub"
	"github.com/tenurelock/tenure/server/internal/wire"
	"github.com/tenurelock/tenure/statestore"
)

// connection is the socket of a client with its state.
type connection struct {
	server    *Server
	socket    net.Conn         // a tls.Conn if there is TLS
	encrypted *encryptedSocket // below TLS; nil: there is none
	remote    string           // the address of the client
	number    uint64           // in the order in which the listener accepted connections
	outbox    *outbox
	over      chan struct{} // closed when nothing is left of the connection
	gate      *wire.Gate    // checks what the client sends; others may use its Version and Maximum after the CONNECT

	// Constant once the session is established, before anything can be sent.
	identity access.Identity
	session  *pubsub.Session

	// Of the goroutine that reads the connection.
	input          *mqtt.Filter // what the client sends, without what the gate refuses
	readTurn       *fairqueue.Place
	arriving       int64                       // bytes of the packet that arrives, beyond those of a small one
	readBy         time.Time                   // the deadline of reads
	hurried        bool                        // readBy is the end of Options.PacketTimeout
	pendingAuth    *unauthenticated.Connection // set before anything is read
	authenticated  bool                        // its client
	silenceAllowed time.Duration               // one and a half keep-alives
	client         *client                     // nil: it has not entered Server.clients
	will           *request                    // to apply when the connection ends; nil: none
	willCommand    *statestore.Command         // of will, as it was at CONNECT; nil: none
	ordinaryWill   *ordinaryWill               // to publish when the connection ends; nil: none
	texts          requestTexts                // of the latest request
	reserved       string                      // the response topic of the latest request
	handled        bool                        // it has handled a packet since the last pause
	answers        int                         // bytes that wait to be written
	fault          error                       // why the server ends the connection, if the client has sent something forbidden
	ended          error                       // why readPackets ends; nil after a normal DISCONNECT
	seen           *events.Client              // nil: it has not entered Server.clients
	unlock         func()                      // unlocks the client id; nil: it is not locked

	replaced    atomic.Bool               // the next connection of the client waits for the end of this one
	lastWriteBy atomic.Pointer[time.Time] // the deadline of the last write, once the connection is to end
	slow        atomic.Bool               // a write took too long, or a notification did not fit
	closed      atomic.Bool

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
func (s *Server) newConnection(socket net.Conn) *connection {
	most := int(min(s.options.MaxPacketSize, math.MaxInt32)) // MQTT's own limit is lower
	limits := wire.DefaultLimits()
	limits.FirstPacket = min(limits.FirstPacket, most)
	c := &connection{
		server:   s,
		remote:   remoteOf(socket).String(),
		gate:     wire.NewGate(limits),
		outbox:   newOutbox(s.options.Limits.OutgoingBytes, s.quotas.outgoing, s.processors, s.writers),
		readTurn: s.processors.NewPlace(),
		over:     make(chan struct{}),
	}
	if s.options.Journal != nil {
		c.open, c.endWaits = context.WithCancel(context.Background())
	}
	if s.options.TLS != nil {
		c.encrypted = &encryptedSocket{Socket: unauthenticated.Socket{Conn: socket}, conn: c}
		socket = tls.Server(c.encrypted, s.options.TLS)
	}
	c.socket = socket
	c.input = mqtt.NewFilter(socket, mqtt.FilterOptions{
		Limit: most,
		First: limits.FirstPacket,
		Check: c.check,
		Pause: c.pause,
		Room:  c.takeArriving,

		Partial: c.awaitRest,
	})
	return c
}

// serve is the life of a connection: CONNECT, the packets of the client, and its Will. It returns why the
// connection ended, and nil after a normal DISCONNECT. Then, or if it does not return, finish must be called.
func (c *connection) serve() (err error) {
	if err := c.guard(c.readTurn, c.establish); err != nil {
		return err
	}
	err = errPanicked // unless guard returns: see there
	defer func() {
		c.ended = err
		c.close()
		_ = c.guard(c.readTurn, c.settleWill) // which may be what panics
	}()
	return c.guard(c.readTurn, c.readPackets)
}

// readPackets handles the packets of an established connection until that is over, and returns why.
//
// Its stack frame is small, and so is the one of next: an idle connection keeps the stack of this goroutine.
func (c *connection) readPackets() error {
	for c.next() {
	}
	return c.ended
}

func (c *connection) next() (goOn bool) {
	packet, err := c.input.Next()
	if err != nil {
		c.ended = c.failed(err)
		return false
	}
	return c.handle(packet)
}

// finish ends what the server keeps for the connection, established or not.
func (c *connection) finish() {
	c.close()
	if c.client != nil {
		c.server.endConnection(c)
	}
	c.unlockID()                         // after endConnection, which must not end what the next connection of the client keeps
	_ = c.takeArriving(-int(c.arriving)) // nothing more is read
	c.outbox.close()
	close(c.over)
}

// check checks a packet in a turn, since a large one takes long. The turn ends in pause, or before anything
// is written.
func (c *connection) check(packet []byte) error {
	c.hurried = false // what extends the deadline comes before the next read
	c.readTurn.Begin()
	return c.gate.Check(packet)
}

// pause ends the turn and writes the answers, before the goroutine waits for the client. It also extends
// the deadline for the next packet.
func (c *connection) pause() {
	c.readTurn.End()
	if !c.handled {
		return
	}
	c.handled, c.answers = false, 0
	*c.gate.Publish() = mqtt.Publish{} // or an idle client would keep its packet, of 1 MiB perhaps
	c.flush()
	c.extendDeadline()
}

// writeOwn adds what a request has caused to the packets that are held back, unless another goroutine writes.
// From now on another one may: a rule of the program may keep the next request for long.
func (c *connection) writeOwn() {
	c.answers += c.writePackets(readerWrites, c.readTurn, func() {
		c.readTurn.End()
		c.flush()
	})
	c.outbox.rest(readerWrites)
}

// What follows bounds the time of reads [MQTT-3.1.2.10].

// limitKeepAlive returns how long a client that asks for a keep-alive has, in seconds.
func limitKeepAlive(asked uint16, version byte) (seconds uint16) {
	switch {
	case asked == 0:
		return defaultKeepAlive
	case version < mqtt.Version5:
		return asked // CONNACK cannot tell such a client to send more often
	}
	return min(asked, maxKeepAlive)
}

// extendDeadline gives the client one and a half keep-alives for its next packet [MQTT-3.1.2-22].
func (c *connection) extendDeadline() { c.setReadDeadline(time.Now().Add(c.silenceAllowed)) }

func (c *connection) setReadDeadline(t time.Time) {
	c.readBy = t
	_ = c.socket.SetReadDeadline(t) // fails on a closed connection, as the read will
}

// awaitRest is called before the connection waits for the rest of a packet. A client with a Will for the store
// counts on the whole silence that MQTT allows: until then it may believe in what the Will releases.
func (c *connection) awaitRest() {
	if c.will != nil {
		return
	}
	if by := time.Now().Add(c.server.options.PacketTimeout); by.Before(c.readBy) {
		c.hurried = true
		c.setReadDeadline(by)
	}
}

// arrivingAssured is how many bytes of a packet that arrives do not count for its user.
const arrivingAssured = 16 << 10

// takeArriving takes bytes for a large packet that arrives, or gives them back if more is negative. It
// returns errArriving if the client's user may have no more.
func (c *connection) takeArriving(more int) error {
	after := c.arriving + int64(more)
	if !c.server.quotas.arriving.Change(c.identity.User, max(0, after-arrivingAssured)-max(0, c.arriving-arrivingAssured)) {
		return errArriving
	}
	c.arriving = after
	return nil
}

// What follows ends a connection, with DISCONNECT if its client can get one [MQTT-3.14].

// left handles the DISCONNECT of the client. Every one but a normal one is a reason for the Will
// [MQTT-3.14.4-3].
func (c *connection) left() {
	c.pause()
	if code := c.gate.Left; code != mqtt.Success {
		c.ended = fmt.Errorf("the client sent a DISCONNECT with the reason code 0x%02X", code)
	}
}

var (
	errArriving   = mqtt.Refuse(mqtt.QuotaExceeded, "large packets of this user take as much as they may while they arrive: send fewer at a time")
	errUnfinished = mqtt.Refuse(mqtt.QuotaExceeded, "a packet was not complete in time: Options.PacketTimeout, --packet-timeout")
)

// failed returns why a read failed. If a packet is refused, it tells the client, and ends the connection.
func (c *connection) failed(err error) error {
	if c.hurried && errors.Is(err, os.ErrDeadlineExceeded) {
		err = errUnfinished
	}
	c.refuse(err)
	return err
}

// refuse ends the connection if err means that the client has sent something forbidden.
func (c *connection) refuse(err error) {
	answer, refused := c.gate.AppendRefusal(nil, err)
	if refused {
		c.fault = err
		c.sendLast(answer)
	} else if c.failedHandshake(err) {
		c.fault = err
	}
}

// refusePacket disconnects the client because of the present packet.
func (c *connection) refusePacket(why *mqtt.Refusal) {
	c.fault, c.ended = why, why
	c.readTurn.End() // the rest waits for the client
	c.disconnect(why)
}

// disconnect sends DISCONNECT with a reason to an established client, and closes the connection.
func (c *connection) disconnect(why *mqtt.Refusal) { c.sendLast(c.gate.AppendDisconnect(nil, why)) }

// address returns the remote address, which is never nil. Some connections of Options.Listener have none.
func (c *connection) address() net.Addr { return remoteOf(c.socket) }

// close ends the connection. Packets that are held back are lost. No more requests of the
// connection are applied, except for one that is being applied now.
func (c *connection) close() {
	c.end()
	_ = c.socket.Close() // the connection is over even if this fails
}

// abort is close without TLS's close_notify, which may take five seconds if the client does not
// read.
func (c *connection) abort() {
	c.end()
	closeSocket(c.socket)
}

// end ends what a closed connection waits for.
func (c *connection) end() {
	c.closed.Store(true)
	c.outbox.end()
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
	c.writeOwn()
	c.readTurn.End()
	c.flush()
	c.answers = 0
	defer c.readTurn.Begin()
	return wait()
}
