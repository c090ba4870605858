// Package proxy disturbs the connections between clients and a server.
package proxy

import (
	"net"
	"sync"
)

// Proxy links connections of clients with connections to a server, and delays or drops what passes. Its
// methods may be called concurrently.
type Proxy struct {
	dial  func(client net.Conn) (net.Conn, error)
	tasks sync.WaitGroup

	mu     sync.Mutex
	links  map[*link]bool            // true: all that it passes is dropped
	gates  [directions]chan struct{} // closed by Release; nil while a direction is not held
	held   [directions]int           // pieces of data that wait for that now
	refuse bool
}

// Direction is one of the two directions through a proxy.
type Direction int

const (
	ToServer Direction = iota // from the client to the server
	ToClient                  // from the server to the client
	directions
)

// New returns a proxy that connects to the server with dial.
func New(dial func(client net.Conn) (net.Conn, error)) *Proxy {
	return &Proxy{dial: dial, links: make(map[*link]bool)}
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

// Link links a connection with the server, or closes it and reports false. ended is closed when both
// connections have ended.
func (p *Proxy) Link(client net.Conn) (ended <-chan struct{}, linked bool) {
	p.mu.Lock()
	refused := p.refuse
	p.mu.Unlock()
	if refused {
		_ = client.Close()
		return nil, false
	}
	server, err := p.dial(client)
	if err != nil {
		_ = client.Close()
		return nil, false
	}
	l := &link{client: client, server: server, cut: make(chan struct{})}
	p.mu.Lock()
	p.links[l] = false
	refused = p.refuse
	p.mu.Unlock()
	if refused {
		l.end()
	}
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
	return both, true
}

// Join is Link, and returns when both connections have ended.
func (p *Proxy) Join(client net.Conn) {
	if ended, linked := p.Link(client); linked {
		<-ended // Close ends it at the latest
	}
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
			broken = true
			if way == ToServer {
				l.end()
			}
			// A client that is gone ends its own reading. What it sent must reach the server.
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
	gate := p.gates[way]
	if gate != nil {
		p.held[way]++
	}
	p.mu.Unlock()
	if gate != nil {
		select {
		case <-gate:
		case <-l.cut:
		}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
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
		p.gates[way], p.held[way] = make(chan struct{}), 0
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

// Close ends all connections, accepts no more, and waits for the end of what the proxy does.
func (p *Proxy) Close() {
	p.Refuse(true)
	p.Release(ToServer)
	p.Release(ToClient)
	p.Cut()
	p.tasks.Wait()
}
