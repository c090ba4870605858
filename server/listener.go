package server

import (
	"context"
	"log/slog"
	"net"
	"sync"

	"github.com/tenurelock/tenure/internal/descriptors"
	"github.com/tenurelock/tenure/internal/loglimit"
	"github.com/tenurelock/tenure/internal/unauthenticated"
	"github.com/tenurelock/tenure/server/internal/logs"
)

// listener accepts connections, and starts a goroutine for each.
type listener struct {
	socket  net.Listener
	logger  *slog.Logger
	failed  chan error               // why connections are no longer accepted; room for one
	auth    *unauthenticated.Limiter // bounds those that have not authenticated
	sockets int                      // how many there may be; 0: no limit
	refused func(why RefusalReason)  // counts a connection
	connect func(net.Conn) *connection

	refusals *loglimit.Lines // connections that are closed before CONNECT
	failures *loglimit.Lines // of Accept
	faults   *loglimit.Lines // connections that end because of what their clients sent

	stopping chan struct{}
	handlers sync.WaitGroup // one for each connection, and one for accept

	mu          sync.Mutex
	stopped     bool
	connections map[*connection]struct{}

	accepted uint64 // connections so far, of the goroutine that accepts them
}

func newListener(socket net.Listener, options *Options, refused func(RefusalReason)) *listener {
	sockets := descriptors.MaxSockets()
	return &listener{
		socket:      socket,
		logger:      options.Logger,
		auth:        unauthenticated.New(options.MaxUnauthenticated, options.MaxUnauthenticatedPerAddress, sockets),
		sockets:     sockets,
		refused:     refused,
		refusals:    loglimit.NewLines(options.Logger, slog.LevelWarn, "closed a connection"),
		failures:    loglimit.NewLines(options.Logger, slog.LevelError, "cannot accept a connection"),
		faults:      loglimit.NewLines(options.Logger, slog.LevelWarn, "ended a connection for what its client sent"),
		failed:      make(chan error, 1),
		stopping:    make(chan struct{}),
		connections: make(map[*connection]struct{}),
	}
}

// start accepts connections until stopAccepting.
func (l *listener) start() {
	if l.track(nil) {
		go l.accept()
	}
}

func (l *listener) accept() {
	defer l.handlers.Done()
	if err := l.auth.Accept(l.socket, l.stopping, l.failures, l.handle); err != nil {
		l.failed <- err
	}
}

func (l *listener) handle(socket net.Conn) {
	if l.isFull() {
		l.refuse(socket, RefusedDescriptors, "limit", l.sockets, "hint", descriptors.Hint)
		return
	}
	boundBuffers(socket)
	conn := l.connect(socket)
	l.accepted++
	conn.number = l.accepted
	pending, oldest, err := l.auth.Add(unauthenticated.SourceOf(conn.address()), conn.abort)
	if oldest != nil {
		oldest.Drop()
	}
	if err != nil {
		l.refuse(socket, RefusedUnauthenticated, "hint", unauthenticated.Hint)
		return
	}
	conn.pendingAuth = pending
	if !l.track(conn) {
		pending.Done()
		_ = socket.Close()
		return
	}
	conn.setReadDeadline(pending.Deadline())
	go l.serve(conn)
}

// serve serves a connection until it is over.
func (l *listener) serve(conn *connection) {
	defer l.handlers.Done()
	defer l.finish(conn) // also if a rule of the program ends the goroutine
	if err := conn.serve(); l.logger.Enabled(context.Background(), slog.LevelDebug) {
		l.logger.Debug("connection ended", "remote", conn.remote, "error", logs.Error(err))
	}
}

// finish ends what the server keeps for a connection that is over.
func (l *listener) finish(conn *connection) {
	if !conn.pendingAuth.Done() && !conn.authenticated {
		// It was dropped for a newer one. It is counted here, which every connection reaches.
		l.countRefused(conn.address(), RefusedUnauthenticated, "hint", unauthenticated.Hint)
	}
	conn.finish()
	if conn.fault != nil {
		l.faults.Log("client", logs.Name(conn.identity.Client), "remote", conn.remote, "reason", logs.Error(conn.fault))
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.connections, conn)
}

// isFull reports whether as many connections are open as descriptors allow.
func (l *listener) isFull() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.sockets > 0 && len(l.connections) >= l.sockets
}

// refuse closes a connection that was just accepted.
func (l *listener) refuse(socket net.Conn, why RefusalReason, attributes ...any) {
	closeSocket(socket)
	l.countRefused(remoteOf(socket), why, attributes...)
}

func (l *listener) countRefused(remote net.Addr, why RefusalReason, attributes ...any) {
	l.refused(why)
	l.refusals.Log(append([]any{"reason", string(why), "remote", remote.String()}, attributes...)...)
}

// track registers a goroutine, for a connection or for accept. It reports false if the listener
// is stopping.
func (l *listener) track(conn *connection) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.stopped {
		return false
	}
	if conn != nil {
		l.connections[conn] = struct{}{}
	}
	l.handlers.Add(1)
	return true
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
		conn.close()
	}
	l.mu.Unlock()
	l.handlers.Wait()
	l.refusals.Close()
	l.failures.Close()
	l.faults.Close()
}
