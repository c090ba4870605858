package server_test

import (
	"net"
	"sync"
	"sync/atomic"
	"testing"
)

// proxy stands between a client and a server and does what networks do.
type proxy struct {
	listener net.Listener
	target   atomic.Pointer[string]
	accepted atomic.Int64
	tasks    sync.WaitGroup

	mu      sync.Mutex
	conns   map[net.Conn]struct{}
	holding chan struct{} // while not nil, what the server says is held back until it is closed
	refuse  bool
}

// newProxy returns a proxy to the server at target, until the test ends.
func newProxy(t *testing.T, target string) *proxy {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p := &proxy{listener: listener, conns: make(map[net.Conn]struct{})}
	p.target.Store(&target)
	p.tasks.Go(p.serve)
	t.Cleanup(func() {
		_ = listener.Close()
		p.release()
		p.cut()
		p.tasks.Wait()
	})
	return p
}

func (p *proxy) address() string { return p.listener.Addr().String() }

func (p *proxy) serve() {
	for {
		client, err := p.listener.Accept()
		if err != nil {
			return
		}
		p.accepted.Add(1)
		server, err := net.Dial("tcp", *p.target.Load())
		if err != nil || !p.keep(client, server) {
			_ = client.Close()
			if server != nil {
				_ = server.Close()
			}
			continue
		}
		p.tasks.Go(func() { p.pass(server, client, false) })
		p.tasks.Go(func() { p.pass(client, server, true) })
	}
}

func (p *proxy) keep(conns ...net.Conn) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.refuse {
		return false
	}
	for _, conn := range conns {
		p.conns[conn] = struct{}{}
	}
	return true
}

// pass copies from one side to the other; what comes from the server may be held.
func (p *proxy) pass(to, from net.Conn, answers bool) {
	defer to.Close()
	defer from.Close()
	buffer := make([]byte, 32<<10)
	for {
		n, err := from.Read(buffer)
		if answers {
			p.mu.Lock()
			holding := p.holding
			p.mu.Unlock()
			if holding != nil {
				<-holding
			}
		}
		if n > 0 {
			if _, err := to.Write(buffer[:n]); err != nil {
				return
			}
		}
		if err != nil {
			return
		}
	}
}

// cut ends all connections.
func (p *proxy) cut() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for conn := range p.conns {
		_ = conn.Close()
		delete(p.conns, conn)
	}
}

// hold keeps back what the server says, until release.
func (p *proxy) hold() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.holding = make(chan struct{})
}

func (p *proxy) release() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.holding != nil {
		close(p.holding)
		p.holding = nil
	}
}

// refuses makes new connections fail, or not.
func (p *proxy) refuses(on bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.refuse = on
}
