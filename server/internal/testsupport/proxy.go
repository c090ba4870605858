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
	Accepted atomic.Int64

	address string
}

// Directions through a proxy.
const (
	ToServer = proxy.ToServer
	ToClient = proxy.ToClient
)

// NewProxy runs a proxy to the server at target until the test ends.
func NewProxy(t *testing.T, target string) *Proxy {
	t.Helper()
	listener := Listen(t)
	p := &Proxy{address: listener.Addr().String()}
	p.Proxy = proxy.New(listener, func(net.Conn) (net.Conn, error) {
		p.Accepted.Add(1)
		return net.Dial("tcp", target)
	})
	t.Cleanup(func() { await.Done(p.Close) })
	return p
}

// Address is where the proxy listens.
func (p *Proxy) Address() string { return p.address }
