package server

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"os"
	"sync"
	"time"

	"github.com/tenurelock/tenure/internal/unauthenticated"
)

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
	err := c.encrypted.Handshake(c.socket.(*tls.Conn), c.pendingAuth)
	if err != nil {
		c.refuse(err)
		c.close()
	}
	if errors.Is(err, context.DeadlineExceeded) {
		c.server.listener.countRefused(c.address(), RefusedSlow)
	}
	return err
}

// failedHandshake reports whether err means that one side has refused the TLS handshake, because
// the client has another authority or no TLS. A client that only disconnects does not count.
func (c *connection) failedHandshake(err error) bool {
	encrypted, ok := c.socket.(*tls.Conn)
	if !ok || encrypted.ConnectionState().HandshakeComplete || errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return false
	}
	var socket *net.OpError
	return !errors.As(err, &socket) || socket.Op == "remote error" || socket.Op == "local error"
}

// remoteOf returns the remote address of a connection, or one without a name if it has none.
func remoteOf(conn net.Conn) net.Addr {
	if remote := conn.RemoteAddr(); remote != nil {
		return remote
	}
	return new(net.IPAddr)
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
	c.writing.Lock()
	defer c.writing.Unlock()
	if err := c.writeHeld(); err != nil {
		return err
	}
	return c.write(packet)
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
			c.slow.Store(true)
		}
		c.close()
	}
	return err
}
