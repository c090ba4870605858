package server

import (
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"runtime/debug"
	"time"

	"github.com/tenurelock/tenure/internal/engine"
	"github.com/tenurelock/tenure/internal/mqtt"
	"github.com/tenurelock/tenure/server/activity"
	"github.com/tenurelock/tenure/server/internal/fairqueue"
)

// ending is why a connection ends. The first one counts: the others follow from it.
type ending struct {
	shown string        // on the status page
	told  *mqtt.Refusal // to the client, in a DISCONNECT or a CONNACK; nil: nothing
	cause error         // for the log; nil: told says it
}

// These are all reasons for which connections end, with fault and readEnding.
var (
	// endLeft: the client sent a normal DISCONNECT, the only end that withdraws its Will.
	endLeft = &ending{shown: activity.ReasonLeft, cause: io.EOF}
	// endTakenOver: the client has opened another connection [MQTT-3.1.4-3].
	endTakenOver = &ending{shown: activity.ReasonTakenOver, told: mqtt.Refuse(mqtt.TakenOver, "session takeover")}
	// endStopped: "server unavailable" is for CONNACK only, also after a failure of the journal.
	endStopped = &ending{shown: activity.ReasonStopped, told: mqtt.Refuse(mqtt.ShuttingDown, "server shutting down")}
	// endSlow: a write took too long, or a notification did not fit.
	endSlow = &ending{shown: activity.ReasonSlow, cause: errors.New("the client did not read what was written to it")}
	// endIncomplete: also within less time than the keep-alive, see extendDeadline.
	endIncomplete = &ending{shown: activity.ReasonIncomplete, cause: errors.New("a packet was not complete in time")}
	// endLost: the connection broke, or too many others have not authenticated.
	endLost = &ending{shown: activity.ReasonLost, cause: net.ErrClosed}
	// endPanicked: the goroutine of the connection panicked.
	endPanicked = &ending{shown: activity.ReasonLost,
		cause: errors.New("the server panicked while it handled the connection")}
)

var errArriving = mqtt.Refuse(mqtt.QuotaExceeded,
	"large packets of this user take as much as they may while they arrive: send fewer at a time")

// The reasons for refusing a message or a Will, beside those of topics.go.
const noQoS2 = "this server has no QoS 2: publish with QoS 1"

// fault is the end of a connection whose client has sent something forbidden.
func fault(err error) *ending {
	return &ending{shown: activity.ReasonFault, told: mqtt.RefusalIn(err), cause: err}
}

// readEnding is the end of a connection from which nothing more can be read.
func (c *connection) readEnding(err error) *ending {
	switch {
	case mqtt.RefusalIn(err) != nil || c.failedHandshake(err):
		return fault(err)
	case errors.Is(err, os.ErrDeadlineExceeded) && c.input.Incomplete():
		return endIncomplete
	case errors.Is(err, os.ErrDeadlineExceeded):
		return &ending{shown: activity.ReasonSilent, cause: err}
	}
	return &ending{shown: activity.ReasonLost, cause: err}
}

func (e *ending) isFault() bool { return e != nil && e.shown == activity.ReasonFault }

func (e *ending) Error() string {
	if e.cause != nil {
		return e.cause.Error()
	}
	return e.told.Reason
}

// end ends the connection, and tells the client why, if there is something to tell [MQTT-3.14]. Then it may
// wait for a client that does not read, for disconnectTimeout at most.
func (c *connection) end(why *ending) {
	c.why.CompareAndSwap(nil, why)
	if why.told == nil {
		c.abort()
		return
	}
	c.telling.Do(func() {
		if c.client != nil { // any goroutine may be here
			c.sendLast(c.gate.AppendDisconnect(nil, why.told))
		} else {
			c.sendLast(c.gate.AppendRefused(nil, &mqtt.Refusal{Code: why.told.Code, Reason: why.told.Short()}, ""))
		}
	})
}

// readFailed ends the connection after a read has failed.
func (c *connection) readFailed(err error) error {
	c.why.CompareAndSwap(nil, c.readEnding(err))
	why := c.why.Load()
	c.end(why)
	return why
}

// refusePacket ends the connection because of the present packet.
func (c *connection) refusePacket(why *mqtt.Refusal) {
	c.readTurn.End() // the rest waits for the client
	c.end(fault(why))
}

// left handles the DISCONNECT of the client. Every one but a normal one is a reason for the Will
// [MQTT-3.14.4-3].
func (c *connection) left() {
	c.pause()
	if code := c.gate.Left; code != mqtt.Success {
		cause := fmt.Errorf("the client sent a DISCONNECT with the reason code 0x%02X", code)
		c.why.CompareAndSwap(nil, &ending{shown: activity.ReasonLost, cause: cause})
		return
	}
	c.why.Store(endLeft) // even if the server has closed the connection before it was read
}

// sendLast writes a packet, unless it is empty, and closes the connection. It waits for a client that does
// not read for disconnectTimeout at most, also for a write that is under way.
func (c *connection) sendLast(packet []byte) {
	deadline := time.Now().Add(disconnectTimeout)
	c.lastWriteBy.Store(&deadline)
	_ = c.socket.SetWriteDeadline(deadline) // if it fails, so does the write
	if len(packet) > 0 {
		_ = c.send(packet) // the connection ends either way
	}
	c.close()
}

// close ends the connection. Packets that are held back are lost. No more requests of the
// connection are applied, except for one that is being applied now.
func (c *connection) close() {
	c.endWaits()
	_ = c.socket.Close() // the connection is over even if this fails
}

// abort is close without TLS's close_notify, which may take five seconds if the client does not
// read.
func (c *connection) abort() {
	c.endWaits()
	closeSocket(c.socket)
}

// endWaits ends what a closed connection waits for.
func (c *connection) endWaits() {
	c.cancel()
	c.outbox.end()
}

// failedHandshake reports whether err means that one side has refused the TLS handshake, because
// the client has another authority or no TLS. A client that only disconnects does not count.
func (c *connection) failedHandshake(err error) bool {
	encrypted, ok := c.socket.(*tls.Conn)
	if !ok || encrypted.ConnectionState().HandshakeComplete || errors.Is(err, io.EOF) ||
		errors.Is(err, io.ErrUnexpectedEOF) {
		return false
	}
	var socket *net.OpError
	return !errors.As(err, &socket) || socket.Op == "remote error" || socket.Op == "local error"
}

// maxStack bounds how much of a stack is logged, in bytes.
const maxStack = 8 << 10

// guard calls a function of a goroutine of the connection, which uses the turns of a place. If it panics, or
// a rule of the program ends the goroutine, the connection ends. It reports whether do has succeeded.
func (c *connection) guard(turn *fairqueue.Place, do func() error) (ok bool) {
	returned := false
	defer func() {
		if value := recover(); !returned {
			turn.End() // it may have panicked in a turn
			c.server.notePanic(value, "remote", c.remote)
			c.end(endPanicked) // other connections go on: the state that they share is intact
		}
	}()
	err := do()
	returned = true
	return err == nil
}

// notePanic counts and logs a panic. After one in the store a request may be half applied, and all later
// answers wrong: notePanic panics again, which ends the process.
func (s *Server) notePanic(value any, attributes ...any) {
	if _, ok := value.(*engine.InDoubt); ok {
		panic(value)
	}
	stack := debug.Stack()
	s.count(func(stats *Stats) { stats.Panics++ })
	s.log(linePanic, append(attributes, "panic", fmt.Sprint(value), "stack", string(stack[:min(len(stack), maxStack)]))...)
}
