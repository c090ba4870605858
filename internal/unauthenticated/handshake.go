package unauthenticated

import (
	"crypto/tls"
	"errors"
	"net"
	"sync/atomic"
)

const (
	// maxHandshake bounds the bytes that a client may send in a TLS handshake: its certificates are
	// parsed before it has proved anything.
	maxHandshake = 32 << 10
	// handshakeRead is how much is read at once. A ClientHello has less, so it takes one turn.
	handshakeRead = 4 << 10
)

var errLongHandshake = errors.New(
	"the client sent more than 32 KiB in its TLS handshake: it should send fewer or shorter certificates")

// A Socket is below a connection of TLS at the server's end. Its handshake takes turns with others,
// fair by source: anyone who reaches the port can make the server compute one.
type Socket struct {
	net.Conn

	pending atomic.Pointer[Connection] // while the handshake is under way
	turn    atomic.Pointer[func()]     // ends the present turn; nil: there is none

	// Of the goroutine that reads.
	unread   []byte // has arrived in the handshake
	received int    // bytes of the handshake
}

// Handshake does the TLS handshake of conn, whose socket is s, before anything else is read or
// written. It holds a turn while it computes, and none while it waits for the client. Handshake
// returns a *net.OpError if the connection has ended, or its time is over, before its turn. It
// leaves both open.
func (s *Socket) Handshake(conn *tls.Conn, pending *Connection) error {
	s.pending.Store(pending)
	defer func() { // even after a panic
		s.pending.Store(nil)
		s.endTurn()
	}()
	return conn.Handshake()
}

// Read waits for bytes and, in a handshake, then for a turn to compute with them.
func (s *Socket) Read(p []byte) (int, error) {
	if len(s.unread) == 0 {
		s.unread = nil
		pending := s.pending.Load()
		if pending == nil {
			return s.Conn.Read(p)
		}
		if err := s.receive(pending); err != nil {
			return 0, err
		}
	}
	n := copy(p, s.unread)
	s.unread = s.unread[n:]
	return n, nil
}

func (s *Socket) receive(pending *Connection) error {
	s.endTurn()
	if s.received >= maxHandshake {
		return errLongHandshake
	}
	buffer := make([]byte, handshakeRead)
	n, err := s.Conn.Read(buffer)
	if n == 0 {
		return err
	}
	s.received += n
	end, err := pending.limiter.handshakes.Acquire(pending.ctx, pending.source)
	if err != nil {
		return &net.OpError{Op: "wait for a turn", Net: "tls", Err: err}
	}
	s.turn.Store(&end)
	s.unread = buffer[:n]
	return nil
}

// Write writes without a turn, since the client may not read.
func (s *Socket) Write(p []byte) (int, error) {
	s.endTurn()
	return s.Conn.Write(p)
}

func (s *Socket) endTurn() {
	if end := s.turn.Swap(nil); end != nil {
		(*end)()
	}
}
