package standby

import (
	"errors"
	"fmt"
	"net"
	"os"
	"sync"
	"time"
)

// Listener is a socket that accepts connections for several users, one after the other: a standby,
// then a server, then a standby again. It stays open from one to the next, so no client finds the
// port closed: what arrives in between waits in the queue of the operating system. Its methods are
// safe for concurrent use.
type Listener struct {
	*net.TCPListener

	mu sync.Mutex // held while the deadline of the socket is set, which ends Accept of a loan that was returned
}

// Listen returns a Listener on a TCP address; port 0 takes a free one.
func Listen(address string) (*Listener, error) {
	socket, err := net.Listen("tcp", address)
	if err != nil {
		return nil, fmt.Errorf("standby: %w", err)
	}
	return &Listener{TCPListener: socket.(*net.TCPListener)}, nil
}

// Lend returns the socket for one user, which returns it with Close. That leaves the socket
// open. The next user may ask for it before that, and calls Accept after it.
func (l *Listener) Lend() net.Listener { return &loan{Listener: l} }

// loan is a Listener as one user has it.
type loan struct {
	*Listener
	returned bool // guarded by Listener.mu
}

// Accept returns the next connection. After Close it returns net.ErrClosed.
func (l *loan) Accept() (net.Conn, error) {
	for {
		conn, err := l.TCPListener.Accept()
		if err == nil || !errors.Is(err, os.ErrDeadlineExceeded) {
			return conn, err
		}
		if !l.goOn() {
			return nil, net.ErrClosed
		}
	}
}

// goOn removes the deadline that the end of the loan before has set. It reports false if this one was returned.
func (l *loan) goOn() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.returned {
		_ = l.SetDeadline(time.Time{}) // fails on a closed socket, as Accept will
	}
	return !l.returned
}

// Close returns the loan. It does not close the socket.
func (l *loan) Close() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.returned = true
	return l.SetDeadline(time.Unix(1, 0))
}
