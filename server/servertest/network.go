package servertest

import (
	"context"
	"errors"
	"net"
	"sync"
)

// A network accepts connections at an address that stays the same, and links each to the server
// that runs behind it.
type network struct {
	address  net.Addr
	listener net.Listener // nil in memory
	tasks    sync.WaitGroup

	mu      sync.Mutex
	backend *listener // of the running server; nil while none runs
	links   map[*link]struct{}
	down    bool
	frozen  chan struct{} // closed by thaw; nil while nothing is frozen
	clients int           // that have connected in memory
}

var errRefused = errors.New("servertest: connection refused")

func newNetwork() *network {
	return &network{address: memoryAddress{}, links: make(map[*link]struct{})}
}

// memoryAddress is the address of a server in memory. No resolver finds it.
type memoryAddress struct{}

func (memoryAddress) Network() string { return "memory" }
func (memoryAddress) String() string  { return "servertest.invalid:1883" }

// listen accepts connections over TCP until close.
func (n *network) listen() error {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	n.listener, n.address = listener, listener.Addr()
	n.tasks.Go(func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			n.connect(conn, conn.RemoteAddr())
		}
	})
	return nil
}

func (n *network) close() {
	n.refuse(true)
	if n.listener != nil {
		_ = n.listener.Close()
	}
	n.thaw()
	n.cut()
}

// dial connects a client.
func (n *network) dial(ctx context.Context) (net.Conn, error) {
	if n.listener != nil {
		return new(net.Dialer).DialContext(ctx, "tcp", n.address.String())
	}
	n.mu.Lock()
	n.clients++
	remote := &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: n.clients}
	n.mu.Unlock()
	here, there := net.Pipe()
	if !n.connect(there, remote) {
		return nil, errRefused
	}
	return here, nil
}

// connect links a connection of a client to the server, or closes it.
func (n *network) connect(client net.Conn, remote net.Addr) bool {
	near, far := net.Pipe()
	l := &link{network: n, client: client, server: near, ended: make(chan struct{})}
	n.mu.Lock()
	backend := n.backend
	refused := n.down || backend == nil
	if !refused {
		n.links[l] = struct{}{}
	}
	n.mu.Unlock()
	if refused || !backend.offer(remoteConn{far, remote}) {
		l.end()
		return false
	}
	l.pass(near, client)
	l.pass(client, near)
	return true
}

// connectTo makes new connections reach another server.
func (n *network) connectTo(backend *listener) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.backend = backend
}

func (n *network) refuse(down bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.down = down
}

func (n *network) freeze() {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.frozen == nil {
		n.frozen = make(chan struct{})
	}
}

func (n *network) thaw() {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.frozen != nil {
		close(n.frozen)
		n.frozen = nil
	}
}

// cut ends all links.
func (n *network) cut() {
	n.mu.Lock()
	links := make([]*link, 0, len(n.links))
	for l := range n.links {
		links = append(links, l)
	}
	n.mu.Unlock()
	for _, l := range links {
		l.end()
	}
}

// A link copies between a connection of a client and one of the server.
type link struct {
	network        *network
	client, server net.Conn
	once           sync.Once
	ended          chan struct{}
}

// end closes both connections at once.
func (l *link) end() {
	l.once.Do(func() {
		close(l.ended)
		_ = l.client.Close()
		_ = l.server.Close()
		l.network.mu.Lock()
		defer l.network.mu.Unlock()
		delete(l.network.links, l)
	})
}

// pass copies one direction until the connection that it reads ends. A queue between reading and
// writing takes the place of the buffers of sockets: while the network is frozen, what has been
// sent is on its way.
func (l *link) pass(to, from net.Conn) {
	queue := make(chan []byte, 256)
	l.network.tasks.Go(func() {
		defer close(queue)
		buffer := make([]byte, 16<<10)
		for {
			size, err := from.Read(buffer)
			if size > 0 {
				select {
				case queue <- append([]byte(nil), buffer[:size]...):
				case <-l.ended:
					return
				}
			}
			if err != nil {
				return
			}
		}
	})
	l.network.tasks.Go(func() {
		defer l.end()
		for {
			var data []byte
			var more bool
			select {
			case data, more = <-queue:
			case <-l.ended:
				return
			}
			if !l.mayPass() || !more {
				return
			}
			if _, err := to.Write(data); err != nil {
				return
			}
		}
	})
}

// mayPass waits while the network is frozen. It returns false if the link has ended.
func (l *link) mayPass() bool {
	l.network.mu.Lock()
	frozen := l.network.frozen
	l.network.mu.Unlock()
	if frozen == nil {
		return true
	}
	select {
	case <-frozen:
		return true
	case <-l.ended:
		return false
	}
}

// listener hands connections to a server.
type listener struct {
	address net.Addr
	conns   chan net.Conn
	once    sync.Once
	closed  chan struct{}
}

func newListener(address net.Addr) *listener {
	return &listener{address: address, conns: make(chan net.Conn), closed: make(chan struct{})}
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
