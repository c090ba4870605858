package transport

import (
	"bufio"
	"context"
	"net"
	"sync"
	"time"
)

// netConn fits a network connection to paho, which reads a packet in three
// small pieces and writes it in four: reads are buffered, and the writes between
// Lock and Unlock, which paho calls around each packet, leave as one.
type netConn struct {
	net.Conn
	reader *bufio.Reader

	mu           sync.Mutex // held by paho for a packet; guards writer
	writer       *bufio.Writer
	writeTimeout time.Duration

	// complete, if not nil, changes the first packet before it is sent.
	complete func([]byte) ([]byte, error)
	first    []byte // that packet, as long as complete is not nil
	failure  error  // of complete; guarded by mu
}

// dialNet connects. A write that makes no progress for writeTimeout ends the
// connection, so that a peer that stopped reading cannot hold a caller for
// longer.
func dialNet(ctx context.Context, address string, writeTimeout time.Duration) (*netConn, error) {
	var dialer net.Dialer
	conn, err := dialer.DialContext(ctx, "tcp", address)
	if err != nil {
		return nil, err
	}
	return &netConn{
		Conn:         conn,
		reader:       bufio.NewReader(conn),
		writer:       bufio.NewWriter(conn),
		writeTimeout: writeTimeout,
	}, nil
}

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
	c.mu.Lock()
	// An error here means a closed connection, which the write reports.
	_ = c.Conn.SetWriteDeadline(time.Now().Add(c.writeTimeout))
}

// Unlock ends a packet and sends it. It cannot return an error, so a failure
// closes the connection, which the reading side reports.
func (c *netConn) Unlock() {
	defer c.mu.Unlock()
	err := c.completeFirst()
	if err == nil {
		err = c.writer.Flush()
	}
	if err != nil {
		_ = c.Conn.Close()
	}
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
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.failure
}
