package standby

import (
	"fmt"
	"net"
	"sync"
)

// Listener is a socket that accepts connections for several users, one after the other: a standby,
// then a server, then a standby again. It stays open from one to the next, so no client finds the
// port closed: what arrives in between waits in the queue of the operating system. Its methods are
// safe for concurrent use.
type Listener struct {
	socket   net.Listener
	accepted chan accepted
	turn     chan struct{} // full while a loan is in Accept
	held     *accepted     // for the next loan, since the present one was returned; guarded by turn
	close    func() error
	closed   chan struct{} // once Close was called
}

type accepted struct {
	conn net.Conn
	err  error
}

// NewListener returns a Listener on socket, which it then owns. It accepts connections in a
// goroutine, which Close ends.
func NewListener(socket net.Listener) *Listener {
	l := &Listener{socket: socket, accepted: make(chan accepted), turn: make(chan struct{}, 1), closed: make(chan struct{})}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		l.accept()
	}()
	l.close = sync.OnceValue(func() error {
		close(l.closed)
		err := socket.Close()
		<-ended
		l.turn <- struct{}{} // for ever
		if l.held != nil && l.held.conn != nil {
			_ = l.held.conn.Close() // its client connects elsewhere
		}
		return err
	})
	return l
}

func (l *Listener) accept() {
	for {
		conn, err := l.socket.Accept()
		select {
		case l.accepted <- accepted{conn, err}:
		case <-l.closed:
			if err == nil {
				_ = conn.Close()
			}
			return
		}
	}
}

// Listen returns a Listener on a TCP address; port 0 takes a free one.
func Listen(address string) (*Listener, error) {
	socket, err := net.Listen("tcp", address)
	if err != nil {
		return nil, fmt.Errorf("standby: %w", err)
	}
	return NewListener(socket), nil
}

// Addr returns the address on which the socket listens.
func (l *Listener) Addr() net.Addr { return l.socket.Addr() }

// Lend returns the socket for one user, which returns it with Close. That leaves the socket
// open. The next user may ask before that, and waits in Accept until then.
func (l *Listener) Lend() net.Listener {
	returned := make(chan struct{})
	return &loan{Listener: l, returned: returned, giveBack: sync.OnceFunc(func() { close(returned) })}
}

// Close closes the socket, and connections that no user has accepted. A loan that waits in Accept
// gets an error.
func (l *Listener) Close() error { return l.close() }

// loan is a Listener as one user has it.
type loan struct {
	*Listener
	returned chan struct{} // closed by giveBack
	giveBack func()
}

// Accept returns the next connection. After Close it returns net.ErrClosed.
func (l *loan) Accept() (net.Conn, error) {
	select {
	case l.turn <- struct{}{}:
	case <-l.returned:
		return nil, net.ErrClosed
	case <-l.closed:
		return nil, net.ErrClosed
	}
	defer func() { <-l.turn }()
	if l.held == nil {
		select {
		case next := <-l.accepted:
			l.held = &next
		case <-l.returned:
		case <-l.closed:
		}
	}
	select {
	case <-l.returned:
		return nil, net.ErrClosed // what it has accepted is for the next loan
	case <-l.closed:
		return nil, net.ErrClosed
	default:
	}
	next := l.held
	l.held = nil
	return next.conn, next.err
}

// Close returns the loan. It does not close the socket.
func (l *loan) Close() error {
	l.giveBack()
	return nil
}
