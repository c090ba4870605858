package testsupport

import (
	"net"
	"sync/atomic"
	"testing"

	"github.com/tenurelock/tenure/internal/await"
	"github.com/tenurelock/tenure/server/internal/testsupport/proxy"
)

// Proxy is a TCP proxy between clients and a server.
type Proxy struct {
	*proxy.Proxy
	Target   atomic.Pointer[string]
	Accepted atomic.Int64

	listener net.Listener
}

// Directions through a proxy.
const (
	ToServer = proxy.ToServer
	ToClient = proxy.ToClient
)

// NewProxy runs a proxy to the server at target until the test ends.
func NewProxy(t *testing.T, target string) *Proxy {
	t.Helper()
	p := &Proxy{listener: Listen(t)}
	p.Proxy = proxy.New(func(net.Conn) (net.Conn, error) { return net.Dial("tcp", *p.Target.Load()) })
	p.Target.Store(&target)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for {
			client, err := p.listener.Accept()
			if err != nil {
				return
			}
			p.Accepted.Add(1)
			p.Link(client)
		}
	}()
	t.Cleanup(func() {
		_ = p.listener.Close()
		await.Receive(ended)
		await.Done(p.Close)
	})
	return p
}

// Address is where the proxy listens.
func (p *Proxy) Address() string { return p.listener.Addr().String() }
