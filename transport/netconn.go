package transport

import (
	"bufio"
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"net/url"
	"sync/atomic"
	"time"

	"github.com/tenurelock/tenure/internal/frame"
)

// netConn fits a network connection to paho, which reads a packet in three
// small pieces and writes it in four: reads are buffered, and the writes between
// Lock and Unlock, which paho calls around each packet, leave as one. And it lets a
// shortCut take packets out of the stream and add some.
type netConn struct {
	net.Conn
	socket net.Conn // what Conn rests on: the same, or without TLS and WebSocket
	reader *frame.Filter
	take   atomic.Pointer[func(packet []byte) bool] // nil: paho gets all packets

	lock         chan struct{} // full while somebody writes a packet; guards what follows
	writer       *bufio.Writer
	writeTimeout time.Duration

	// complete, if not nil, changes the first packet before it is sent.
	complete func([]byte) ([]byte, error)
	first    []byte // that packet, as long as complete is not nil
	failure  error  // of complete; guarded by lock
}

// dialNet connects, and encrypts with config where the address says so. A write that
// makes no progress for writeTimeout ends the connection, so that a peer that stopped
// reading cannot hold a caller for longer.
func dialNet(ctx context.Context, server *url.URL, config *tls.Config, writeTimeout time.Duration) (*netConn, error) {
	var dialer net.Dialer
	socket, err := dialer.DialContext(ctx, "tcp", server.Host)
	if err != nil {
		return nil, err
	}
	conn, err := dress(ctx, socket, server, config, writeTimeout)
	if err != nil {
		_ = socket.Close()
		return nil, err
	}
	return newNetConn(conn, socket, writeTimeout), nil
}

// dress puts around a socket what the address asks for.
func dress(ctx context.Context, socket net.Conn, server *url.URL, config *tls.Config, writeTimeout time.Duration) (net.Conn, error) {
	conn, scheme := socket, schemeOf(server)
	if scheme.encrypted {
		encrypted := tls.Client(socket, config)
		if err := encrypted.HandshakeContext(ctx); err != nil {
			return nil, fmt.Errorf("TLS: %w", err)
		}
		conn = encrypted
	}
	if scheme.websocket {
		return openWebSocket(ctx, conn, server, writeTimeout)
	}
	return conn, nil
}

func newNetConn(conn, socket net.Conn, writeTimeout time.Duration) *netConn {
	c := &netConn{
		lock:         make(chan struct{}, 1),
		Conn:         conn,
		socket:       socket,
		writer:       bufio.NewWriter(conn),
		writeTimeout: writeTimeout,
	}
	c.reader = frame.NewFilter(conn, func(packet []byte) bool {
		take := c.take.Load()
		return take != nil && (*take)(packet)
	}, func() {})
	return c
}

// abort closes the connection at once. TLS would say farewell first, for up to five
// seconds.
func (c *netConn) abort() { _ = c.socket.Close() }

func (c *netConn) Read(p []byte) (int, error) { return c.reader.Read(p) }

// Write is called by paho between Lock and Unlock.
func (c *netConn) Write(p []byte) (int, error) {
	if c.complete != nil {
		c.first = append(c.first, p...)
		return len(p), nil
	}
	return c.writer.Write(p)
}

// Lock begins a packet.
func (c *netConn) Lock() {
	c.lock <- struct{}{}
	// An error here means a closed connection, which the write reports.
	_ = c.Conn.SetWriteDeadline(time.Now().Add(c.writeTimeout))
}

// Unlock ends a packet and sends it. It cannot return an error, so a failure
// closes the connection, which the reading side reports.
func (c *netConn) Unlock() {
	defer func() { <-c.lock }()
	err := c.completeFirst()
	if err == nil {
		err = c.writer.Flush()
	}
	if err != nil {
		c.abort()
	}
}

// send sends whole packets.
func (c *netConn) send(packets []byte) {
	c.Lock()
	defer c.Unlock()
	_, _ = c.writer.Write(packets) // Unlock meets the error again
}

func (c *netConn) completeFirst() error {
	if c.complete == nil {
		return nil
	}
	packet, err := c.complete(c.first)
	c.complete, c.first, c.failure = nil, nil, err
	if err == nil {
		_, err = c.writer.Write(packet)
	}
	return err
}

// incomplete returns why the first packet was not sent, if that is what closed the
// connection.
func (c *netConn) incomplete() error {
	c.lock <- struct{}{}
	defer func() { <-c.lock }()
	return c.failure
}
