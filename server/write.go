package server

import (
	"context"
	"crypto/tls"
	"errors"
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
	if err == nil {
		return nil
	}
	if errors.Is(err, context.DeadlineExceeded) {
		c.server.listener.countClosed(c.socket, RefusedSlow)
	}
	return c.readFailed(err)
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
			c.why.CompareAndSwap(nil, endSlow)
		}
		c.close()
	}
	return err
}
