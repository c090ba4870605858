// Package proxy disturbs the connections between clients and a server.
package proxy

import (
	"net"
	"sync"
)

// Proxy links connections of clients with connections to a server, and delays or drops what passes. Its
// methods may be called concurrently.
type Proxy struct {
	dial     func(client net.Conn) (net.Conn, error)
	listener net.Listener // or nil
	tasks    sync.WaitGroup

	mu     sync.Mutex
	links  map[*link]bool            // true: all that it passes is dropped
	gates  [directions]chan struct{} // closed by Release; nil while a direction is not held
	refuse bool
}

// Direction is one of the two directions through a proxy.
type Direction int

const (
	ToServer Direction = iota // from the client to the server
	ToClient                  // from the server to the client
	directions
)

// New returns a proxy that connects to the server with dial. It links what listener accepts, unless that is nil.
func New(listener net.Listener, dial func(client net.Conn) (net.Conn, error)) *Proxy {
	p := &Proxy{dial: dial, listener: listener, links: make(map[*link]bool)}
	if listener != nil {
		p.tasks.Go(func() {
			for {
				client, err := listener.Accept()
				if err != nil {
					return
				}
				p.Link(client)
			}
		})
	}
	return p
}

// link is a connection of a client, and one to the server.
type link struct {
	client, server net.Conn
	once           sync.Once
	cut            chan struct{}
}

func (l *link) end() {
	l.once.Do(func() {
		close(l.cut)
		_ = l.client.Close()
		_ = l.server.Close()
	})
}

// Link links a connection with the server. The channel that it returns is closed when both connections have ended;
// it is nil if the server is not reached.
func (p *Proxy) Link(client net.Conn) (ended <-chan struct{}) {
	server, err := p.dial(client)
	if err != nil {
		_ = client.Close()
		return nil
	}
	l := &link{client: client, server: server, cut: make(chan struct{})}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.refuse {
		l.end()
		return nil
	}
	p.links[l] = false
	both := make(chan struct{})
	p.tasks.Go(func() {
		defer close(both)
		var ways sync.WaitGroup
		ways.Go(func() { p.pass(l, server, client, ToServer) })
		p.pass(l, client, server, ToClient)
		ways.Wait()
		p.mu.Lock()
		defer p.mu.Unlock()
		delete(p.links, l)
	})
	return both
}

// pass copies one direction until its end. A queue between reading and writing takes the place of the buffers of
// sockets: what has been sent is on its way, and outlives the connection that it was sent on.
func (p *Proxy) pass(l *link, to, from net.Conn, way Direction) {
	queue := make(chan []byte, 256)
	p.tasks.Go(func() {
		defer close(queue)
		for {
			piece := make([]byte, 4<<10)
			n, err := from.Read(piece)
			if n > 0 {
				select {
				case queue <- piece[:n]:
				case <-l.cut:
					return
				}
			}
			if err != nil {
				return
			}
		}
	})
	broken := false
	for piece := range queue {
		if broken || !p.mayPass(l, way) {
			continue
		}
		if _, err := to.Write(piece); err != nil {
			broken = true // if the client is gone, what it sent must still reach the server
			if way == ToServer {
				l.end()
			}
		}
	}
	if !broken {
		p.mayPass(l, way) // an end waits too
	}
	if way == ToServer || !broken {
		l.end()
	}
}

// mayPass waits while a direction is held. It reports false for what is dropped.
func (p *Proxy) mayPass(l *link, way Direction) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if gate := p.gates[way]; gate != nil {
		p.mu.Unlock()
		select {
		case <-gate:
		case <-l.cut:
		}
		p.mu.Lock()
	}
	return !p.links[l]
}

// Swallow makes the present connections half-open: both ends stay connected, and the proxy drops
// all that they send.
func (p *Proxy) Swallow() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for l := range p.links {
		p.links[l] = true
	}
}

// Cut closes all connections.
func (p *Proxy) Cut() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for l := range p.links {
		l.end()
	}
}

// Hold keeps the data of a direction, and the ends of connections, back until Release.
func (p *Proxy) Hold(way Direction) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.gates[way] == nil {
		p.gates[way] = make(chan struct{})
	}
}

// Release lets the data of a direction pass again, beginning with what has waited.
func (p *Proxy) Release(way Direction) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.gates[way] != nil {
		close(p.gates[way])
		p.gates[way] = nil
	}
}

// Refuse makes new connections fail while on is true.
func (p *Proxy) Refuse(on bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.refuse = on
}

// End ends all connections, and accepts no more.
func (p *Proxy) End() {
	if p.listener != nil {
		_ = p.listener.Close()
	}
	p.Refuse(true)
	p.Release(ToServer)
	p.Release(ToClient)
	p.Cut()
}

// Close is End, and waits for the end of what the proxy does.
func (p *Proxy) Close() {
	p.End()
	p.tasks.Wait()
}
