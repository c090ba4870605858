package server

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
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
