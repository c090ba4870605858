package cluster_test

import (
	"net"
	"net/url"
	"sync"
	"testing"

	"github.com/tenurelock/tenure/internal/await"
)

// way is a direction through a proxy.
type way int

const (
	toEtcd way = iota
	fromEtcd
)

// proxy stands between a candidate and a member of etcd. It can stop to pass bytes, at once or
// after a number of them, and can cut connections.
type proxy struct {
	listener net.Listener
	target   string
	tasks    sync.WaitGroup

	mu      sync.Mutex
	changed chan struct{} // closed when bytes may pass again
	conns   map[net.Conn]bool
	held    [2]bool
	budget  [2]int // how many bytes pass before then is called; negative for no bound
	then    func() // with mu held
	closed  chan struct{}
	deaf    map[net.Conn]bool // from which nothing more is passed
	passed  [2]int
}

func newProxy(t *testing.T, endpoint string) *proxy {
	t.Helper()
	u, err := url.Parse(endpoint)
	if err != nil {
		t.Fatal(err)
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p := &proxy{listener: listener, target: u.Host, conns: make(map[net.Conn]bool), deaf: make(map[net.Conn]bool), changed: make(chan struct{}), closed: make(chan struct{}), budget: [2]int{-1, -1}}
	p.tasks.Go(p.serve)
	t.Cleanup(p.close)
	return p
}

func (p *proxy) url() string { return "http://" + p.listener.Addr().String() }

func (p *proxy) serve() {
	for {
		near, err := p.listener.Accept()
		if err != nil {
			return
		}
		p.tasks.Go(func() { p.connect(near) })
	}
}

func (p *proxy) connect(near net.Conn) {
	defer near.Close()
	far, err := net.Dial("tcp", p.target)
	if err != nil {
		return
	}
	defer far.Close()
	if !p.track(near, far) {
		return
	}
	defer p.forget(near, far)
	p.tasks.Go(func() { p.pass(near, far, fromEtcd) })
	p.pass(far, near, toEtcd)
}

func (p *proxy) track(conns ...net.Conn) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, conn := range conns {
		p.conns[conn] = true
	}
	return !p.isClosed()
}

func (p *proxy) forget(conns ...net.Conn) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, conn := range conns {
		delete(p.conns, conn)
	}
}

// pass copies until an end is closed. When the near end closes, bytes that are held are
// delivered once they may pass: a member of etcd can get a request long after its sender has
// given up.
func (p *proxy) pass(to, from net.Conn, w way) {
	defer to.Close()
	buffer := make([]byte, 32<<10)
	for {
		n, err := from.Read(buffer)
		if w == toEtcd && p.isDeaf(from) {
			n = 0
		}
		for sent := 0; sent < n; {
			allowed := p.allow(w, n-sent)
			if allowed == 0 {
				return
			}
			if _, err := to.Write(buffer[sent : sent+allowed]); err != nil {
				return
			}
			sent += allowed
		}
		if err != nil {
			return
		}
	}
}

// allow waits until bytes may pass, and returns how many; 0 if the proxy is closed.
func (p *proxy) allow(w way, n int) int {
	p.mu.Lock()
	defer p.mu.Unlock()
	for {
		switch {
		case p.isClosed():
			return 0
		case p.held[w]:
			changed := p.changed
			p.mu.Unlock()
			select {
			case <-changed:
			case <-p.closed:
			}
			p.mu.Lock()
			continue
		case p.budget[w] == 0:
			p.budget[w] = -1
			p.then()
			continue
		case p.budget[w] > 0:
			n = min(n, p.budget[w])
			p.budget[w] -= n
		}
		p.passed[w] += n
		return n
	}
}

// after calls then, with the proxy's lock held, when n more bytes have passed in a direction.
func (p *proxy) after(w way, n int, then func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.budget[w], p.then = n, then
}

// hold stops to pass bytes both ways. Connections stay open.
func (p *proxy) hold() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.holdLocked()
}

func (p *proxy) holdLocked() { p.held = [2]bool{true, true} }

// release passes what was held, and all that comes.
func (p *proxy) release() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.held, p.budget = [2]bool{}, [2]int{-1, -1}
	close(p.changed)
	p.changed = make(chan struct{})
}

// releaseHeld passes what was held, and nothing that the present connections send later: the
// sender has given up, and its requests still arrive.
func (p *proxy) releaseHeld() {
	p.mu.Lock()
	for conn := range p.conns {
		p.deaf[conn] = true
	}
	p.mu.Unlock()
	p.release()
}

func (p *proxy) isDeaf(conn net.Conn) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.deaf[conn]
}

// hasPassed returns how many bytes have passed in a direction.
func (p *proxy) hasPassed(w way) int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.passed[w]
}

// cutLocked closes all connections; new ones are served.
func (p *proxy) cutLocked() {
	for conn := range p.conns {
		_ = conn.Close()
	}
}

func (p *proxy) cut() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.cutLocked()
}

func (p *proxy) isClosed() bool {
	select {
	case <-p.closed:
		return true
	default:
		return false
	}
}

func (p *proxy) close() {
	p.mu.Lock()
	close(p.closed)
	p.cutLocked()
	p.mu.Unlock()
	_ = p.listener.Close()
	await.Done(p.tasks.Wait)
}

func (p *proxy) isHeld() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.held[toEtcd]
}
