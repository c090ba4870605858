package cluster_test

import (
	"net"
	"net/url"
	"sync"
	"testing"

	"github.com/tenurelock/tenure/cluster"
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
	changed sync.Cond // bytes may pass again
	conns   map[net.Conn]bool
	held    bool
	closed  bool
	budget  [2]int // how many bytes pass before then is called; negative for no bound
	then    func() // with mu held
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
	p := &proxy{listener: listener, target: u.Host, conns: make(map[net.Conn]bool), budget: [2]int{-1, -1}}
	p.changed.L = &p.mu
	p.tasks.Go(p.serve)
	t.Cleanup(func() {
		_ = listener.Close()
		p.change(func() { p.closed = true; p.cut() })
		await.Done(p.tasks.Wait)
	})
	return p
}

// proxied returns a proxy for each member, and options that use them.
func (e *etcd) proxied(t *testing.T, name string) ([]*proxy, cluster.Options) {
	t.Helper()
	options := e.candidateOptions(t, name)
	options.Endpoints = nil
	var proxies []*proxy
	for _, url := range e.urls {
		p := newProxy(t, url)
		proxies = append(proxies, p)
		options.Endpoints = append(options.Endpoints, "http://"+p.listener.Addr().String())
	}
	return proxies, options
}

// change calls f with the lock, and wakes what is held.
func (p *proxy) change(f func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	f()
	p.changed.Broadcast()
}

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
	p.change(func() { p.conns[near], p.conns[far] = true, true })
	defer p.change(func() { delete(p.conns, near); delete(p.conns, far) })
	p.tasks.Go(func() { p.pass(near, far, fromEtcd) })
	p.pass(far, near, toEtcd)
}

// pass copies until an end is closed. When the near end closes, bytes that are held are
// delivered once they may pass: a member of etcd can get a request long after its sender has
// given up.
func (p *proxy) pass(to, from net.Conn, w way) {
	defer to.Close()
	buffer := make([]byte, 32<<10)
	for {
		n, err := from.Read(buffer)
		for sent := 0; sent < n; {
			allowed := p.allow(w, n-sent)
			if _, err := to.Write(buffer[sent : sent+allowed]); allowed == 0 || err != nil {
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
		case p.closed:
			return 0
		case p.held:
			await.Done(p.changed.Wait)
		case p.budget[w] == 0:
			p.budget[w] = -1
			p.then()
		case p.budget[w] > 0:
			n = min(n, p.budget[w])
			p.budget[w] -= n
			return n
		default:
			return n
		}
	}
}

// hold stops to pass bytes both ways, with the lock. Connections stay open.
func (p *proxy) hold() { p.held = true }

// cut closes all connections, with the lock; new ones are served.
func (p *proxy) cut() {
	for conn := range p.conns {
		_ = conn.Close()
	}
}

// hold stops all proxies.
func hold(proxies []*proxy) {
	for _, p := range proxies {
		p.change(p.hold)
	}
}

// release makes proxies pass what was held, and all that comes.
func release(proxies []*proxy) {
	for _, p := range proxies {
		p.change(func() { p.held, p.budget = false, [2]int{-1, -1} })
	}
}

// fault arms all proxies: the first at which n bytes have passed in a direction does what do says.
func fault(proxies []*proxy, w way, n int, do func(*proxy)) {
	var once sync.Once
	for _, p := range proxies {
		p.change(func() { p.budget[w], p.then = n, func() { once.Do(func() { do(p) }) } })
	}
}
