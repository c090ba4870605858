package server

import (
	"errors"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/mochi-mqtt/server/v2/packets"

	"github.com/tenurelock/tenure/server/access"
)

// connection is a client's socket with what we know about it. The broker sees it
// as a net.Conn, and its hooks find it in the client again.
type connection struct {
	net.Conn
	outbox *outbox
	over   chan struct{} // closed when the broker has forgotten the connection

	identity     access.Identity           // set at CONNECT, before anything else happens
	will         *packets.Packet           // the request to apply when the connection ends, if any; the reading goroutine's
	lastByte     byte                      // that was read; the reading goroutine's
	sessionEnded atomic.Bool               // with the connection
	disconnected atomic.Bool               // the broker said so
	farewell     atomic.Pointer[time.Time] // by when the last words must be out, once they are due

	stuck atomic.Bool // a write took too long

	mu      sync.Mutex
	release func() // gives back the lock on the client id, while it is held
	forget  func() // undoes what the server noted of the connection, if anything
}

func newConnection(socket net.Conn) *connection {
	return &connection{Conn: socket, outbox: newOutbox(), over: make(chan struct{})}
}

// Read notes the last byte, which may be all that a DISCONNECT says (see reasonOf).
func (c *connection) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	if n > 0 {
		c.lastByte = p[n-1]
	}
	return n, err
}

// SetDeadline limits reads only: the broker calls it with one and a half keep-alives
// whenever it has read a packet. For writes see Write.
func (c *connection) SetDeadline(t time.Time) error { return c.Conn.SetReadDeadline(t) }

// SetWriteDeadline limits the write under way, if any, and all that follow.
func (c *connection) SetWriteDeadline(t time.Time) error {
	c.farewell.Store(&t)
	return c.Conn.SetWriteDeadline(t)
}

// Write gives up, and ends the connection, after writeTimeout. The broker holds a lock
// while it writes, for which whoever publishes to this client with QoS 1 must wait.
func (c *connection) Write(p []byte) (int, error) {
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
		_ = c.Conn.Close()
	}
	return n, err
}

// hold notes that the connection has the lock on its client id.
func (c *connection) hold(release func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.release = release
}

// establish notes what to do when the connection is over.
func (c *connection) establish(forget func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.forget = forget
}

// letGo gives the lock back, if it is held.
func (c *connection) letGo() {
	c.mu.Lock()
	release := c.release
	c.release = nil
	c.mu.Unlock()
	if release != nil {
		release()
	}
}

// finish is called when the broker is done with the connection, however far that
// had come.
func (c *connection) finish() {
	c.mu.Lock()
	forget := c.forget
	c.mu.Unlock()
	if forget != nil {
		forget()
	}
	c.letGo() // not before: the next of the name must not be forgotten
	c.outbox.close()
	close(c.over)
}
