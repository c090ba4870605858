package testsupport

import (
	"net"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/tenurelock/tenure/internal/await"
)

// Proxy is a TCP proxy between clients and a server, which delays or drops what passes. Its methods may be called
// concurrently.
type Proxy struct {
	listener net.Listener
	Target   atomic.Pointer[string]
	Accepted atomic.Int64
	tasks    sync.WaitGroup

	mu      sync.Mutex
	conns   map[net.Conn]bool         // true: all that it sends is dropped
	holding [directions]chan struct{} // while not nil, data is held back until it is closed
	held    [directions]int           // pieces of data that wait for that now
	refuse  bool
}

// Direction is one of the two directions through the proxy.
type Direction int

const (
	ToServer Direction = iota // from the client to the server
	ToClient                  // from the server to the client
	directions
)

// NewProxy runs a proxy to the server at target until the test ends.
func NewProxy(t *testing.T, target string) *Proxy {
	t.Helper()
	p := &Proxy{listener: Listen(t), conns: make(map[net.Conn]bool)}
	p.Target.Store(&target)
	p.tasks.Go(p.serve)
	t.Cleanup(func() {
		_ = p.listener.Close()
		p.Release(ToServer)
		p.Release(ToClient)
		p.Cut()
		await.Done(p.tasks.Wait)
	})
	return p
}

// Address is where the proxy listens.
func (p *Proxy) Address() string { return p.listener.Addr().String() }

func (p *Proxy) serve() {
	for {
		client, err := p.listener.Accept()
		if err != nil {
			return
		}
		p.Accepted.Add(1)
		p.tasks.Go(func() { p.Join(client) })
	}
}

// Join links a connection with the server until both have ended.
func (p *Proxy) Join(client net.Conn) {
	defer client.Close()
	server, err := net.Dial("tcp", *p.Target.Load())
	if err != nil {
		return
	}
	defer server.Close()
	if p.track(client, server) {
		var ways sync.WaitGroup
		ways.Go(func() { p.pass(server, client, ToServer) })
		p.pass(client, server, ToClient)
		ways.Wait()
	}
}

func (p *Proxy) track(conns ...net.Conn) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.refuse {
		return false
	}
	for _, conn := range conns {
		p.conns[conn] = false
	}
	return true
}

// pass copies from one side to the other. What is for the server is read even while it is held, up to a bound, so
// that it outlives the connection of its client; what is for the client waits unread.
func (p *Proxy) pass(to, from net.Conn, way Direction) {
	queue := 0
	if way == ToServer {
		queue = 100
	}
	data := make(chan []byte, queue)
	go func() { // ends with the channel
		defer close(data)
		for {
			piece := make([]byte, 4<<10)
			n, err := from.Read(piece)
			if n > 0 {
				data <- piece[:n]
			}
			if err != nil {
				return
			}
		}
	}()
	broken := false
	for piece := range data {
		if broken {
			continue
		}
		p.wait(way)
		if p.isDeaf(from) {
			continue
		}
		if _, err := to.Write(piece); err != nil {
			broken = true
			if way == ToServer {
				_ = from.Close() // which ends the reading
			}
			// A client that is gone ends its own reading. What it sent must
			// outlive it, so the connection to the server stays until that is written.
		}
	}
	_ = from.Close()
	_ = to.Close()
}

// wait returns when data may pass.
func (p *Proxy) wait(way Direction) {
	p.mu.Lock()
	holding := p.holding[way]
	if holding != nil {
		p.held[way]++
	}
	p.mu.Unlock()
	if holding != nil {
		await.Receive(holding)
	}
}

func (p *Proxy) isDeaf(conn net.Conn) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.conns[conn]
}

// Swallow makes the present connections half-open: both ends stay connected, and the proxy drops
// all that they send.
func (p *Proxy) Swallow() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for conn := range p.conns {
		p.conns[conn] = true
	}
}

// Cut closes all connections.
func (p *Proxy) Cut() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for conn := range p.conns {
		_ = conn.Close()
		delete(p.conns, conn)
	}
}

// Hold keeps the data of a direction back until Release.
func (p *Proxy) Hold(way Direction) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.holding[way], p.held[way] = make(chan struct{}), 0
}

// Release lets the data of a direction pass again.
func (p *Proxy) Release(way Direction) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.holding[way] != nil {
		close(p.holding[way])
		p.holding[way] = nil
	}
}

// Holds reports whether data is held back.
func (p *Proxy) Holds(way Direction) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.held[way] > 0
}

// Refuse makes new connections fail while on is true.
func (p *Proxy) Refuse(on bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.refuse = on
}
