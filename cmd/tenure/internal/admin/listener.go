package admin

import (
	"context"
	"net"
	"net/http"
	"sync"
)

// boundedListener bounds the open connections. A new connection takes the place of the one that has
// been without a request for longest: clients that keep connections must not shut out a probe. It is
// closed if all of them have a request.
type boundedListener struct {
	net.Listener
	limit int

	mu    sync.Mutex
	conns map[*boundedConn]struct{} // that are open
	order uint64                    // of the latest change of a connection
}

// boundedConn is a connection with a place.
type boundedConn struct {
	net.Conn
	listener *boundedListener

	serving bool   // a request is being answered
	order   uint64 // when that began or ended; or when the connection came
}

// Accept implements net.Listener.
func (l *boundedListener) Accept() (net.Conn, error) {
	for {
		conn, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		next := &boundedConn{Conn: conn, listener: l}
		replaced, ok := l.admit(next)
		if replaced != nil {
			_ = replaced.Conn.Close()
		}
		if ok {
			return next, nil
		}
		_ = conn.Close()
	}
}

// admit gives a connection a place, and returns the connection that has lost it; nil: none.
func (l *boundedListener) admit(next *boundedConn) (replaced *boundedConn, ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.conns) >= l.limit {
		for conn := range l.conns {
			if !conn.serving && (replaced == nil || conn.order < replaced.order) {
				replaced = conn
			}
		}
		if replaced == nil {
			return nil, false
		}
		delete(l.conns, replaced)
	}
	l.order++
	next.order = l.order
	l.conns[next] = struct{}{}
	return replaced, true
}

// Close implements net.Conn.
func (c *boundedConn) Close() error {
	c.listener.mu.Lock()
	delete(c.listener.conns, c)
	c.listener.mu.Unlock()
	return c.Conn.Close()
}

func (c *boundedConn) serve(serving bool) {
	c.listener.mu.Lock()
	defer c.listener.mu.Unlock()
	c.listener.order++
	c.serving, c.order = serving, c.listener.order
}

// connKey is the key of the connection in the context of a request.
type connKey struct{}

// withConn is a http.Server.ConnContext.
func withConn(ctx context.Context, conn net.Conn) context.Context {
	return context.WithValue(ctx, connKey{}, conn)
}

// serving notes that the request has come, so that its connection keeps its place until done is
// called.
func serving(r *http.Request) (done func()) {
	conn := r.Context().Value(connKey{}).(*boundedConn)
	conn.serve(true)
	return func() { conn.serve(false) }
}
