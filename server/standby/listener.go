package standby

import (
	"errors"
	"fmt"
	"net"
	"sync"
	"time"
)

// Listener is a socket that accepts connections for several users, one after the other: a standby,
// then a server, then a standby again. It stays open from one to the next, so no client finds the
// port closed: what arrives in between waits in the queue of the operating system. Its methods are
// safe for concurrent use.
type Listener struct {
	socket interface {
		net.Listener
		SetDeadline(time.Time) error
	}
	accepting chan struct{} // full while a loan waits in Accept

	mu   sync.Mutex
	held []net.Conn // accepted for a loan that was returned at that moment
}

// errNoDeadline is why a listener cannot be shared.
var errNoDeadline = errors.New("standby: the listener has no SetDeadline, without which its Accept cannot be interrupted; use a TCP or Unix socket")

// NewListener returns a Listener on socket, which it then owns. The socket must have a
// method SetDeadline, like *net.TCPListener and *net.UnixListener.
func NewListener(socket net.Listener) (*Listener, error) {
	l := &Listener{accepting: make(chan struct{}, 1)}
	var ok bool
	if l.socket, ok = socket.(interface {
		net.Listener
		SetDeadline(time.Time) error
	}); !ok {
		return nil, errNoDeadline
	}
	return l, nil
}

// Listen returns a Listener on a TCP address; port 0 takes a free one.
func Listen(address string) (*Listener, error) {
	socket, err := net.Listen("tcp", address)
	if err != nil {
		return nil, fmt.Errorf("standby: %w", err)
	}
	return NewListener(socket)
}

// Addr returns the address on which the socket listens.
func (l *Listener) Addr() net.Addr { return l.socket.Addr() }

// Lend returns the socket for one user, which returns it with Close. That leaves the socket
// open. The next user may ask before that, and waits in Accept until then.
func (l *Listener) Lend() net.Listener { return &loan{listener: l, over: make(chan struct{})} }

// Close closes the socket, and connections that no user has accepted. A loan that waits in Accept
// gets an error.
func (l *Listener) Close() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, conn := range l.held {
		_ = conn.Close() // its client connects elsewhere
	}
	l.held = nil
	return l.socket.Close()
}

// loan is a Listener as one user has it.
type loan struct {
	listener *Listener
	over     chan struct{} // closed with returned
	returned bool          // guarded by Listener.mu
}

// inThePast is a deadline that interrupts Accept.
var inThePast = time.Unix(1, 0)

// Accept returns the next connection. After Close it returns net.ErrClosed.
func (l *loan) Accept() (net.Conn, error) {
	select {
	case l.listener.accepting <- struct{}{}:
	case <-l.over:
		return nil, net.ErrClosed
	}
	defer func() { <-l.listener.accepting }()
	for {
		if conn, err := l.begin(); conn != nil || err != nil {
			return conn, err
		}
		conn, err := l.listener.socket.Accept()
		if conn, err = l.end(conn, err); conn != nil || err != nil {
			return conn, err
		}
	}
}

// begin returns a connection that was accepted before, or makes the socket wait for the next one.
func (l *loan) begin() (net.Conn, error) {
	l.listener.mu.Lock()
	defer l.listener.mu.Unlock()
	if l.returned {
		return nil, net.ErrClosed
	}
	if held := l.listener.held; len(held) > 0 {
		l.listener.held = held[1:]
		return held[0], nil
	}
	return nil, l.listener.socket.SetDeadline(time.Time{})
}

// end returns what the socket has accepted, and nothing if Accept was interrupted for an earlier
// loan.
func (l *loan) end(conn net.Conn, err error) (net.Conn, error) {
	l.listener.mu.Lock()
	defer l.listener.mu.Unlock()
	var timeout net.Error
	switch {
	case l.returned && err == nil:
		l.listener.held = append(l.listener.held, conn) // one at most: Accept is called by one loan at a time
		return nil, net.ErrClosed
	case l.returned:
		return nil, net.ErrClosed
	case errors.As(err, &timeout) && timeout.Timeout():
		return nil, nil
	}
	return conn, err
}

// Close returns the loan. It does not close the socket.
func (l *loan) Close() error {
	l.listener.mu.Lock()
	defer l.listener.mu.Unlock()
	if l.returned {
		return nil
	}
	l.returned = true
	close(l.over)
	// Another loan may be in Accept. It is interrupted too, and goes on waiting.
	return l.listener.socket.SetDeadline(inThePast)
}

// Addr returns the address on which the socket listens.
func (l *loan) Addr() net.Addr { return l.listener.Addr() }
