// Package localhttp has what the HTTP servers of a command share: they answer programs of this machine, and
// bound their connections.
package localhttp

import (
	"context"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"
)

// IsLoopback reports whether a host is this machine: an address, or localhost. What another name stands for may
// change.
func IsLoopback(host string) bool {
	if strings.EqualFold(host, "localhost") {
		return true
	}
	address, err := netip.ParseAddr(host)
	return err == nil && address.Unmap().IsLoopback()
}

// HostOf returns the host of a Host header, without port and brackets.
func HostOf(header string) string {
	if host, _, err := net.SplitHostPort(header); err == nil {
		return host
	}
	return strings.TrimSuffix(strings.TrimPrefix(header, "["), "]")
}

// stopTimeout bounds how long requests may go on when a server stops.
const stopTimeout = 2 * time.Second

// Serve answers requests on a socket until ctx ends, with so many connections open at most. Then it closes the
// socket and all connections, and returns nil when no request is left. Any other error says why it could not go on.
func Serve(ctx context.Context, socket net.Listener, connections int, server *http.Server) error {
	var tasks, requests sync.WaitGroup
	next := server.Handler
	server.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		requests.Add(1) // the server still accepts, so Wait has not begun or another request runs
		defer requests.Done()
		next.ServeHTTP(w, r)
	})
	serving, stop := context.WithCancel(ctx)
	tasks.Go(func() {
		<-serving.Done()
		ending, cancel := context.WithTimeout(context.WithoutCancel(ctx), stopTimeout)
		defer cancel()
		if server.Shutdown(ending) != nil {
			_ = server.Close()
		}
	})
	err := server.Serve(&listener{Listener: socket, most: connections})
	stop()
	tasks.Wait()
	requests.Wait()
	if ctx.Err() != nil {
		return nil
	}
	return err
}

// leastAge is how long each connection keeps its place, so that its request can come and be answered.
const leastAge = 250 * time.Millisecond

// listener bounds the open connections. A new connection takes the place of the oldest one: neither clients that
// keep connections nor clients that do not read must shut out another one. What a client does on a connection does
// not make it younger: otherwise a probe that has just come would be the oldest.
type listener struct {
	net.Listener
	most int // connections

	mu   sync.Mutex
	open []*boundedConn // the oldest first
}

type boundedConn struct {
	net.Conn
	listener *listener
	accepted time.Time
}

// Accept implements net.Listener. One goroutine at a time calls it.
func (l *listener) Accept() (net.Conn, error) {
	conn, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	if oldest := l.oldest(); oldest != nil {
		time.Sleep(leastAge - time.Since(oldest.accepted))
		_ = oldest.Close()
	}
	next := &boundedConn{conn, l, time.Now()}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.open = append(l.open, next)
	return next, nil
}

// oldest returns the connection that must make space; nil: there is space.
func (l *listener) oldest() *boundedConn {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.open) < l.most {
		return nil
	}
	return l.open[0]
}

// Close implements net.Conn.
func (c *boundedConn) Close() error {
	c.listener.mu.Lock()
	if at := slices.Index(c.listener.open, c); at >= 0 {
		c.listener.open = slices.Delete(c.listener.open, at, at+1)
	}
	c.listener.mu.Unlock()
	return c.Conn.Close()
}
