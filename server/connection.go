package server

import (
	"context"
	"crypto/tls"
	"math"
	"net"
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

const (
	// defaultKeepAlive, in seconds, is for a client that asks for none: without one, the server
	// would not notice that it is gone.
	defaultKeepAlive = 60
	// maxKeepAlive bounds, in seconds, the keep-alive of a client. CONNACK tells the client.
	maxKeepAlive = 300
)

// connection is the socket of a client with its state.
type connection struct {
	server    *Server
	socket    net.Conn         // a tls.Conn if there is TLS
	encrypted *encryptedSocket // below TLS; nil: there is none
	remote    string           // the address of the client
	number    uint64           // in the order in which the listener accepted connections
	outbox    *outbox
	open      context.Context // ends with the connection
	cancel    context.CancelFunc
	over      chan struct{} // closed when nothing is left of the connection
	gate      *wire.Gate    // checks what the client sends; others may use its Maximum after the CONNECT

	// Constant once the session is established, before anything can be sent.
	identity access.Identity
	client   *client // nil: it has not entered Server.clients

	// Of the goroutine that reads the connection.
	input          *mqtt.Filter // what the client sends, without what the gate refuses
	readTurn       *fairqueue.Place
	arriving       int64                       // bytes of the packet that arrives, beyond those of a small one
	pendingAuth    *unauthenticated.Connection // set before anything is read
	silenceAllowed time.Duration               // one and a half keep-alives
	will           *request                    // to apply when the connection ends; nil: none
	willCommand    *statestore.Command         // of will, as it was at CONNECT; nil: none
	ordinaryWill   *pubsub.Message             // to publish when the connection ends; nil: none
	willExpiry     uint32                      // its Message Expiry Interval, from then; 0: none
	texts          requestTexts                // of the latest request
	reserved       string                      // the response topic of the latest request
	handled        bool                        // it has handled a packet since the last pause
	writesOwn      bool                        // it is to write what its latest request has caused
	seen           *events.Client              // nil: it has not entered Server.clients
	unlock         func()                      // unlocks the client id; nil: it is not locked

	why         atomic.Pointer[ending]    // nil: it goes on
	telling     sync.Once                 // of the reason, to the client
	lastWriteBy atomic.Pointer[time.Time] // the deadline of the last write, once the connection is to end

	// writing is held during a write, and only for that: it keeps writes in order, as the
	// socket itself does.
	writing sync.Mutex

	// holding guards held. It is not held during a write, for which a turn must not wait.
	holding sync.Mutex
	held    []byte // whole packets, to be written before anything else
}

// newConnection returns the connection of a socket. A packet of more than
// Options.MaxPacketSize bytes ends it.
func (s *Server) newConnection(socket net.Conn) *connection {
	most := int(min(s.options.MaxPacketSize, math.MaxInt32)) // MQTT's own limit is lower
	c := &connection{
		server:   s,
		remote:   unauthenticated.RemoteOf(socket).String(),
		gate:     wire.NewGate(),
		readTurn: s.processors.NewPlace(),
		over:     make(chan struct{}),
	}
	c.open, c.cancel = context.WithCancel(context.Background())
	c.outbox = s.newOutbox(c.writeWaiting)
	if s.options.TLS != nil {
		c.encrypted = &encryptedSocket{Socket: unauthenticated.Socket{Conn: socket}, conn: c}
		socket = tls.Server(c.encrypted, s.options.TLS)
	}
	c.socket = socket
	c.input = &mqtt.Filter{
		Source:  socket,
		Limit:   most,
		First:   min(wire.FirstPacket, most),
		Check:   c.check,
		Pause:   c.pause,
		Reserve: c.takeArriving,
	}
	return c
}

// serve is the life of a connection: CONNECT, the packets of the client, and its Will. Then, or if it does not
// return, finish must be called.
func (c *connection) serve() {
	if !c.guard(c.readTurn, c.establish) {
		return
	}
	defer func() {
		c.close()
		c.guard(c.readTurn, c.endWill)
	}()
	c.guard(c.readTurn, c.readPackets)
}

// readPackets handles the packets of an established connection until that is over.
//
// Its stack frame is small, and so is the one of next: an idle connection keeps the stack of this goroutine.
func (c *connection) readPackets() error {
	for c.next() {
	}
	return nil
}

func (c *connection) next() (goOn bool) {
	packet, err := c.input.Next()
	if err != nil {
		_ = c.readFailed(err)
		return false
	}
	return c.dispatch(packet)
}

// finish ends what the server keeps for the connection, established or not.
func (c *connection) finish() {
	c.close()
	c.why.CompareAndSwap(nil, endLost)
	_ = c.takeArriving(-int(c.arriving)) // nothing more is read
	c.outbox.close()                     // before endConnection: what takes messages of the session now would lose them
	if c.client != nil {
		c.server.endConnection(c)
	}
	c.unlockID() // after endConnection, which must not end what the next one keeps
	close(c.over)
}

// check checks a packet in a turn, since a large one takes long. The turn ends in pause, or before anything
// is written.
func (c *connection) check(packet []byte) error {
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
	c.handled = false
	*c.gate.Publish() = mqtt.Publish{} // or an idle client would keep its packet, of 1 MiB perhaps
	_ = c.flush()
	c.extendDeadline()
}

// waitOutsideTurn lets the goroutine that reads the connection wait. What is held back is written before.
func (c *connection) waitOutsideTurn(wait func()) {
	c.writeOwn()
	c.readTurn.End()
	_ = c.flush()
	wait()
	c.readTurn.Begin()
}

func (c *connection) isClosed() bool { return c.open.Err() != nil }

// extendDeadline gives the client one and a half keep-alives for its next packet [MQTT-3.1.2-22]. That may be 27
// hours, so a packet that takes bytes which others could have has less time.
func (c *connection) extendDeadline() {
	patience := c.silenceAllowed
	if c.arriving > arrivingAssured && c.input.Incomplete() {
		patience = min(patience, completeWithin)
	}
	_ = c.socket.SetReadDeadline(time.Now().Add(patience)) // fails on a closed connection, as the read will
}

const (
	// arrivingAssured is how many bytes of a packet that arrives do not count for its user.
	arrivingAssured = 16 << 10
	// completeWithin is how long a packet may take to arrive once it has more.
	completeWithin = 30 * time.Second
)

// takeArriving takes bytes for a large packet that arrives, or gives them back if more is negative. It
// returns errArriving if the client's user may have no more.
func (c *connection) takeArriving(more int) error {
	after := c.arriving + int64(more)
	if !c.server.arriving.Change(c.identity.User, max(0, after-arrivingAssured)-max(0, c.arriving-arrivingAssured), 0) {
		return errArriving
	}
	begins := c.arriving <= arrivingAssured && after > arrivingAssured
	if c.arriving = after; begins {
		c.extendDeadline()
	}
	return nil
}
