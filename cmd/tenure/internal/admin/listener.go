package admin

import (
	"context"
	"net"
	"net/http"
	"sync"
	"time"
)

// boundedListener bounds the open connections. A new connection takes the place of the oldest one that
// is not protected: neither clients that keep connections nor clients that do not read must shut out a
// probe. Protected connections are fewer than the limit, so a new one always gets a place. What a client
// does on a connection does not make it younger: otherwise a probe that has just come would be the oldest.
// Each connection keeps its place for some time, in which its request can come: if all are younger, a new
// one waits.
type boundedListener struct {
	net.Listener
	limit        int
	maxProtected int // less than limit
	leastAge     time.Duration
	freed        chan struct{} // has room for one; a place may be free
	closing      context.Context
	close        context.CancelFunc

	mu        sync.Mutex
	conns     map[*boundedConn]struct{} // that are open
	protected int                       // of them
	accepted  uint64                    // connections so far
}

// boundedConn is a connection with a place.
type boundedConn struct {
	net.Conn
	listener *boundedListener

	// Guarded by the listener.
	order     uint64 // among the connections so far
	accepted  time.Time
	protected bool // it keeps its place
}

func newBoundedListener(socket net.Listener) *boundedListener {
	closing, end := context.WithCancel(context.Background())
	return &boundedListener{
		Listener: socket, limit: maxConnections, maxProtected: maxProtected, leastAge: leastAge,
		freed: make(chan struct{}, 1), closing: closing, close: end, conns: make(map[*boundedConn]struct{}),
	}
}

// Accept implements net.Listener.
func (l *boundedListener) Accept() (net.Conn, error) {
	conn, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	next := &boundedConn{Conn: conn, listener: l}
	for {
		replaced, wait := l.admit(next, time.Now())
		if wait <= 0 {
			if replaced != nil {
				_ = replaced.Conn.Close()
			}
			return next, nil
		}
		timer := time.NewTimer(wait)
		select {
		case <-timer.C:
		case <-l.freed:
			timer.Stop()
		case <-l.closing.Done():
			timer.Stop()
			_ = conn.Close()
			return nil, net.ErrClosed
		}
	}
}

// Close implements net.Listener.
func (l *boundedListener) Close() error {
	l.close()
	return l.Listener.Close()
}

// admit gives a connection a place, and returns the connection that has lost it; nil: none. If none can
// lose its place yet, it returns how long that takes.
func (l *boundedListener) admit(next *boundedConn, now time.Time) (replaced *boundedConn, wait time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.conns) >= l.limit {
		for conn := range l.conns {
			if !conn.protected && (replaced == nil || conn.order < replaced.order) {
				replaced = conn
			}
		}
		if wait := l.leastAge - now.Sub(replaced.accepted); wait > 0 {
			return nil, wait
		}
		delete(l.conns, replaced)
	}
	l.accepted++
	next.order, next.accepted = l.accepted, now
	l.conns[next] = struct{}{}
	return replaced, 0
}

// Close implements net.Conn.
func (c *boundedConn) Close() error {
	c.release()
	c.listener.mu.Lock()
	delete(c.listener.conns, c)
	c.listener.mu.Unlock()
	select {
	case c.listener.freed <- struct{}{}:
	default:
	}
	return c.Conn.Close()
}

// protect makes the connection keep its place until release, unless too many do.
func (c *boundedConn) protect() {
	l := c.listener
	l.mu.Lock()
	defer l.mu.Unlock()
	if _, open := l.conns[c]; open && !c.protected && l.protected < l.maxProtected {
		c.protected = true
		l.protected++
	}
}

func (c *boundedConn) release() {
	c.listener.mu.Lock()
	defer c.listener.mu.Unlock()
	if c.protected {
		c.protected = false
		c.listener.protected--
	}
}

// connKey is the key of the connection in the context of a request.
type connKey struct{}

// withConn is a http.Server.ConnContext.
func withConn(ctx context.Context, conn net.Conn) context.Context {
	return context.WithValue(ctx, connKey{}, conn)
}

// answered is a http.Server.ConnState. It ends the protection of a connection when the answer is
// written: when a handler returns, a part of it is not.
func answered(conn net.Conn, state http.ConnState) {
	if state == http.StateIdle {
		conn.(*boundedConn).release()
	}
}

// protect makes the connection of a request keep its place until the answer is written. It is for what
// has few places of its own, and for probes: any other connection may be given to a probe.
func protect(r *http.Request) { r.Context().Value(connKey{}).(*boundedConn).protect() }

// protected returns a handler whose requests are protected.
func protected(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		protect(r)
		next.ServeHTTP(w, r)
	})
}
