package admin

import (
	"context"
	"net"
	"net/http"
	"sync"
)

// boundedListener bounds the open connections. A new connection takes the place of the oldest one that
// is not protected: neither clients that keep connections nor clients that do not read must shut out a
// probe. Protected connections are fewer than the limit, so a new one always gets a place. What a client
// does on a connection does not make it younger: otherwise a probe that has just come would be the oldest.
type boundedListener struct {
	net.Listener
	limit        int
	maxProtected int // less than limit

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
	protected bool   // it keeps its place
}

// Accept implements net.Listener.
func (l *boundedListener) Accept() (net.Conn, error) {
	conn, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	next := &boundedConn{Conn: conn, listener: l}
	if replaced := l.admit(next); replaced != nil {
		_ = replaced.Conn.Close()
	}
	return next, nil
}

// admit gives a connection a place, and returns the connection that has lost it; nil: none.
func (l *boundedListener) admit(next *boundedConn) (replaced *boundedConn) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.conns) >= l.limit {
		for conn := range l.conns {
			if !conn.protected && (replaced == nil || conn.order < replaced.order) {
				replaced = conn
			}
		}
		delete(l.conns, replaced)
	}
	l.accepted++
	next.order = l.accepted
	l.conns[next] = struct{}{}
	return replaced
}

// Close implements net.Conn.
func (c *boundedConn) Close() error {
	c.release()
	c.listener.mu.Lock()
	delete(c.listener.conns, c)
	c.listener.mu.Unlock()
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
