package server

import (
	"context"
	"log/slog"
	"net"
	"sync"

	"github.com/tenurelock/tenure/internal/descriptors"
	"github.com/tenurelock/tenure/internal/unauthenticated"
	"github.com/tenurelock/tenure/server/internal/logs"
)

// listener accepts connections, and starts a goroutine for each.
type listener struct {
	server  *Server
	socket  net.Listener
	failed  chan error               // why connections are no longer accepted; room for one
	auth    *unauthenticated.Limiter // bounds those that have not authenticated
	sockets int                      // how many there may be; 0: no limit

	stopping chan struct{}
	handlers sync.WaitGroup // one for each connection, and one for accept

	mu          sync.Mutex
	stopped     bool
	connections map[*connection]struct{}

	accepted uint64 // connections so far, of the goroutine that accepts them
}

func newListener(s *Server, socket net.Listener) *listener {
	sockets := descriptors.MaxSockets()
	return &listener{
		server:      s,
		socket:      socket,
		auth:        unauthenticated.New(s.options.MaxUnauthenticated, s.options.MaxUnauthenticatedPerAddress, sockets),
		sockets:     sockets,
		failed:      make(chan error, 1),
		stopping:    make(chan struct{}),
		connections: make(map[*connection]struct{}),
	}
}

// start accepts connections until stopAccepting.
func (l *listener) start() {
	l.handlers.Go(func() {
		if err := l.auth.Accept(l.socket, l.stopping, l.server.lines[lineNotAccepted], l.begin); err != nil {
			l.failed <- err
		}
	})
}

// begin begins a connection that was accepted.
func (l *listener) begin(socket net.Conn) {
	boundBuffers(socket)
	conn := l.server.newConnection(socket)
	l.accepted++
	conn.number = l.accepted
	if !l.track(conn) {
		closeSocket(socket)
		return
	}
	drop := func() {
		l.countClosed(socket, RefusedUnauthenticated, "hint", unauthenticated.Hint)
		conn.end(endLost)
	}
	var err error
	if conn.pendingAuth, err = l.auth.Add(conn.open, socket, drop); err != nil {
		drop()
	}
	conn.setReadDeadline(conn.pendingAuth.Deadline())
	l.handlers.Go(func() {
		defer l.finish(conn) // also if a rule of the program ends the goroutine
		conn.serve()
	})
}

// finish ends what the server keeps for a connection that is over.
func (l *listener) finish(conn *connection) {
	conn.pendingAuth.Done()
	conn.finish()
	why := conn.why.Load()
	if why.isFault() {
		l.server.log(lineFault, "client", logs.Name(conn.identity.Client), "remote", conn.remote, "reason", logs.Error(why))
	}
	if logger := l.server.logger; logger.Enabled(context.Background(), slog.LevelDebug) {
		logger.Debug("connection ended", "remote", conn.remote, "error", logs.Error(why))
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.connections, conn)
}

// countClosed counts and logs a connection that is closed before its client has authenticated.
func (l *listener) countClosed(socket net.Conn, why RefusalReason, attributes ...any) {
	remote := unauthenticated.RemoteOf(socket).String()
	l.server.refused(why, lineClosed, append([]any{"reason", string(why), "remote", remote}, attributes...)...)
}

// track registers a connection. It reports false if the listener is stopping, or if as many are open as descriptors
// allow.
func (l *listener) track(conn *connection) bool {
	l.mu.Lock()
	full := l.sockets > 0 && len(l.connections) >= l.sockets
	tracked := !full && !l.stopped
	if tracked {
		l.connections[conn] = struct{}{}
	}
	l.mu.Unlock()
	if full {
		l.countClosed(conn.socket, RefusedDescriptors, "limit", l.sockets, "hint", descriptors.Hint)
	}
	return tracked
}

// stopAccepting closes the socket. The connections stay open.
func (l *listener) stopAccepting() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.stopped {
		l.stopped = true
		close(l.stopping)
		_ = l.socket.Close()
	}
}

// stop closes the socket and all connections, and returns when their goroutines have ended.
func (l *listener) stop() {
	l.stopAccepting()
	l.mu.Lock()
	for conn := range l.connections {
		conn.abort()
	}
	l.mu.Unlock()
	l.handlers.Wait()
}
