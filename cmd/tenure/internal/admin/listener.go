package admin

import (
	"net"
	"slices"
	"sync"
	"time"
)

const (
	// maxConnections bounds the open connections.
	maxConnections = 128
	// leastAge is how long each connection keeps its place, so that its request can come and be answered.
	leastAge = 250 * time.Millisecond
)

// boundedListener bounds the open connections. A new connection takes the place of the oldest one:
// neither clients that keep connections nor clients that do not read must shut out a probe. What a client
// does on a connection does not make it younger: otherwise a probe that has just come would be the oldest.
type boundedListener struct {
	net.Listener

	mu   sync.Mutex
	open []*boundedConn // the oldest first
}

type boundedConn struct {
	net.Conn
	listener *boundedListener
	accepted time.Time
}

// Accept implements net.Listener. One goroutine at a time calls it.
func (l *boundedListener) Accept() (net.Conn, error) {
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

// oldest returns the connection that must make room; nil: there is room.
func (l *boundedListener) oldest() *boundedConn {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.open) < maxConnections {
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
