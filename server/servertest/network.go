package servertest

import (
	"context"
	"errors"
	"net"
	"sync"
	"sync/atomic"

	"github.com/tenurelock/tenure/server/internal/testsupport/proxy"
)

// A network accepts connections at an address that stays the same, and links each to the server
// that runs behind it.
type network struct {
	*proxy.Proxy
	address  net.Addr
	inMemory bool
	clients  atomic.Int64 // that have connected in memory
	backend  atomic.Pointer[listener]
}

var errRefused = errors.New("servertest: connection refused")

// newNetwork returns a network in memory, or one that accepts connections over TCP until its end.
func newNetwork(inMemory bool) (*network, error) {
	n := &network{address: memoryAddress{}, inMemory: inMemory}
	if inMemory {
		n.Proxy = proxy.New(nil, n.toServer)
		return n, nil
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	n.address, n.Proxy = listener.Addr(), proxy.New(listener, n.toServer)
	return n, nil
}

// memoryAddress is the address of a server in memory. No resolver finds it.
type memoryAddress struct{}

func (memoryAddress) Network() string { return "memory" }
func (memoryAddress) String() string  { return "servertest.invalid:1883" }

// dial connects a client.
func (n *network) dial(ctx context.Context) (net.Conn, error) {
	if !n.inMemory {
		return new(net.Dialer).DialContext(ctx, "tcp", n.address.String())
	}
	here, there := net.Pipe()
	remote := &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: int(n.clients.Add(1))}
	if n.Link(remoteConn{there, remote}) == nil {
		return nil, errRefused
	}
	return here, nil
}

// toServer connects to the running server in memory.
func (n *network) toServer(client net.Conn) (net.Conn, error) {
	near, far := net.Pipe()
	if backend := n.backend.Load(); backend == nil || !backend.offer(remoteConn{far, client.RemoteAddr()}) {
		return nil, errors.Join(errRefused, near.Close())
	}
	return near, nil
}

// listener hands connections to a server.
type listener struct {
	address net.Addr
	conns   chan net.Conn
	once    sync.Once
	closed  chan struct{}
}

// offer waits until the server accepts a connection. It returns false if the server has stopped.
func (l *listener) offer(conn net.Conn) bool {
	select {
	case l.conns <- conn:
		return true
	case <-l.closed:
		return false
	}
}

// Accept implements net.Listener.
func (l *listener) Accept() (net.Conn, error) {
	select {
	case conn := <-l.conns:
		return conn, nil
	case <-l.closed:
		return nil, net.ErrClosed
	}
}

// Close implements net.Listener.
func (l *listener) Close() error {
	l.once.Do(func() { close(l.closed) })
	return nil
}

// Addr implements net.Listener.
func (l *listener) Addr() net.Addr { return l.address }

// remoteConn is a connection in memory with the address of a client.
type remoteConn struct {
	net.Conn
	remote net.Addr
}

// RemoteAddr implements net.Conn.
func (c remoteConn) RemoteAddr() net.Addr { return c.remote }
