package transport

import (
	"bufio"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/url"
	"sync/atomic"
	"time"

	"github.com/tenurelock/tenure/internal/frame"
	"github.com/tenurelock/tenure/internal/gate"
)

// netConn fits a network connection to paho, which reads a packet in three
// small pieces and writes it in four: reads are buffered, and the writes between
// Lock and Unlock, which paho calls around each packet, leave as one. And it lets a
// shortCut take packets out of the stream and add some.
type netConn struct {
	net.Conn
	arrivals atomic.Uint64 // reads that brought something
	socket   net.Conn      // what Conn rests on: the same, or without TLS and WebSocket
	gate     *gate.Gate    // checks what the broker sends; the reading goroutine's
	reader   *frame.Filter
	take     atomic.Pointer[func(packet []byte) bool] // nil: paho gets all packets
	cause    atomic.Pointer[error]                    // why this end closes the connection; nil if it does not

	lock         chan struct{} // full while somebody writes a packet; guards what follows
	writer       *bufio.Writer
	writeTimeout time.Duration

	// complete, if not nil, changes the first packet before it is sent.
	complete func([]byte) ([]byte, error)
	first    []byte // that packet, as long as complete is not nil
	failure  error  // of complete; guarded by lock
}

// dialNet connects, and encrypts with config where the address says so. A packet from the
// other end that has more than maxPacket bytes ends the connection. A write that
// makes no progress for writeTimeout ends the connection, so that a peer that stopped
// reading cannot hold a caller for longer.
func dialNet(ctx context.Context, server *url.URL, config *tls.Config, maxPacket int, writeTimeout time.Duration) (*netConn, error) {
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
	return newNetConn(conn, socket, maxPacket, writeTimeout), nil
}

// dress adds TLS and WebSocket to a connection.
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

func newNetConn(conn, socket net.Conn, maxPacket int, writeTimeout time.Duration) *netConn {
	c := &netConn{
		lock:         make(chan struct{}, 1),
		Conn:         conn,
		socket:       socket,
		gate:         gate.New(gate.FromServer, gate.Limits{}),
		writer:       bufio.NewWriter(conn),
		writeTimeout: writeTimeout,
	}
	c.reader = frame.NewFilter(arriving{c}, frame.FilterOptions{
		Limit: maxPacket,
		Check: c.gate.Check,
		Take: func(packet []byte) bool {
			take := c.take.Load()
			return take != nil && (*take)(packet)
		},
	})
	return c
}

// arriving is what comes from the other end, counted.
type arriving struct{ *netConn }

func (a arriving) Read(p []byte) (int, error) {
	n, err := a.Conn.Read(p)
	if n > 0 {
		a.arrivals.Add(1)
	}
	return n, err
}

// abort closes the connection at once. TLS would say farewell first, for up to five
// seconds.
func (c *netConn) abort() { _ = c.socket.Close() }

func (c *netConn) Read(p []byte) (int, error) {
	n, err := c.reader.Read(p)
	if err != nil && c.closeCause() == nil {
		c.refuse(err)
	}
	return n, err
}

// refuse notes why this end closes the connection if the broker has sent what it may not,
// and tells the broker, unless that would take long: the connection is over either way. It
// does nothing if err is another one. It is called by the goroutine that reads.
func (c *netConn) refuse(err error) {
	farewell, refused := c.gate.AppendFarewell(nil, err)
	if !refused {
		return
	}
	why := fmt.Errorf("the broker sent what MQTT does not allow: %w", err)
	var tooLarge *frame.TooLargeError
	if errors.As(err, &tooLarge) {
		why = fmt.Errorf("%w: the broker begins one of %d bytes, and this client takes at most %d (Options.MaxPacketSize)",
			ErrPacketTooLarge, tooLarge.Size, tooLarge.Limit)
	}
	c.cause.Store(&why)
	patience := time.NewTimer(closeTimeout)
	defer patience.Stop()
	select {
	case c.lock <- struct{}{}:
	case <-patience.C:
		return // a packet is being written, and the broker does not read it
	}
	defer func() { <-c.lock }()
	if c.complete != nil {
		return // not even CONNECT was sent
	}
	_ = c.Conn.SetWriteDeadline(time.Now().Add(closeTimeout)) // on a closed connection, the write fails
	_, _ = c.writer.Write(farewell)
	_ = c.writer.Flush()
}

// closeCause returns why this end closes the connection, or nil if it does not.
func (c *netConn) closeCause() error {
	if why := c.cause.Load(); why != nil {
		return *why
	}
	return nil
}

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
