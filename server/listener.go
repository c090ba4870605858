package server

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"sync"

	"github.com/mochi-mqtt/server/v2/listeners"

	"github.com/tenurelock/tenure/internal/descriptors"
	"github.com/tenurelock/tenure/internal/unauthenticated"
	"github.com/tenurelock/tenure/server/internal/logs"
)

// listener accepts connections for mochi. mochi v2.7.9: its own listeners end silently at the first
// error of Accept, and wait forever for a CONNECT, even in Close.
type listener struct {
	socket  net.Listener
	logger  *slog.Logger
	failed  chan error               // why connections are no longer accepted; room for one
	auth    *unauthenticated.Limiter // bounds those that have not authenticated
	sockets int                      // how many there may be; 0: no limit
	refused func(why RefusalReason)  // counts a connection
	connect func(net.Conn) *connection
	recover func(*connection, any) // handles a panic of the goroutine that reads a connection

	refusals *logs.Limiter // connections that are closed before CONNECT
	failures *logs.Limiter // of Accept
	faults   *logs.Limiter // connections that end because of what their clients sent

	stopping chan struct{}
	handlers sync.WaitGroup // one for each connection, and one for Serve

	mu          sync.Mutex
	stopped     bool
	connections map[*connection]struct{}

	accepted uint64 // connections so far, of the goroutine that accepts them
}

var _ listeners.Listener = (*listener)(nil)

func newListener(socket net.Listener, options *Options, refused func(RefusalReason)) *listener {
	sockets := descriptors.MaxSockets()
	return &listener{
		socket:      socket,
		logger:      options.Logger,
		auth:        unauthenticated.New(options.MaxUnauthenticated, options.MaxUnauthenticatedPerAddress, sockets),
		sockets:     sockets,
		refused:     refused,
		refusals:    logs.NewLimiter(options.Logger, slog.LevelWarn, "closed a connection"),
		failures:    logs.NewLimiter(options.Logger, slog.LevelError, "cannot accept a connection"),
		faults:      logs.NewLimiter(options.Logger, slog.LevelWarn, "ended a connection for what its client sent"),
		failed:      make(chan error, 1),
		stopping:    make(chan struct{}),
		connections: make(map[*connection]struct{}),
	}
}

// Serve accepts connections until stopAccepting. mochi calls it in a goroutine. establish
// returns when mochi is done with a connection.
func (l *listener) Serve(establish listeners.EstablishFn) {
	if !l.track(nil) {
		return
	}
	defer l.handlers.Done()
	err := l.auth.Accept(l.socket, l.stopping, l.failures, func(socket net.Conn) { l.handle(socket, establish) })
	if err != nil {
		l.failed <- err
	}
}

func (l *listener) handle(socket net.Conn, establish listeners.EstablishFn) {
	if l.isFull() {
		l.refuse(socket, RefusedDescriptors, "limit", l.sockets, "hint", descriptors.Hint)
		return
	}
	boundBuffers(socket)
	conn := l.connect(socket)
	l.accepted++
	conn.number = l.accepted
	pending, oldest, err := l.auth.Add(unauthenticated.SourceOf(conn.RemoteAddr()), conn.abort)
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
	// From CONNECT on, mochi extends the deadline with each packet.
	_ = conn.SetDeadline(pending.Deadline())
	go func() {
		defer l.handlers.Done()
		err := l.establish(establish, conn)
		if !pending.Done() && !conn.authenticated {
			// It was dropped for a newer one. It is counted here, which every connection reaches.
			l.countRefused(conn.RemoteAddr(), RefusedUnauthenticated, "hint", unauthenticated.Hint)
		}
		conn.finish()
		if conn.fault != nil {
			l.faults.Log("client", logs.Name(conn.identity.Client), "remote", conn.RemoteAddr().String(), "reason", logs.Error(conn.fault))
		}
		l.mu.Lock()
		delete(l.connections, conn)
		l.mu.Unlock()
		if l.logger.Enabled(context.Background(), slog.LevelDebug) {
			l.logger.Debug("connection ended", "remote", conn.RemoteAddr().String(), "error", logs.Error(err))
		}
	}()
}

// socketBuffer is how many bytes the kernel may hold for a connection in each direction. Linux doubles
// the number, for its own overhead. By itself it lets a buffer grow to megabytes, and keeps them for a
// client that does not read. With 32 KiB, packets of 1 MiB took a hundred times as long on loopback,
// whose segments have 64 KiB.
const socketBuffer = 128 << 10

// boundBuffers bounds the buffers of a socket. A connection in memory has none.
func boundBuffers(conn net.Conn) {
	if socket, ok := conn.(interface {
		SetReadBuffer(bytes int) error
		SetWriteBuffer(bytes int) error
	}); ok {
		_ = socket.SetReadBuffer(socketBuffer) // fails on a closed connection only
		_ = socket.SetWriteBuffer(socketBuffer)
	}
}

// establish handles a connection and returns when that is over. A panic ends this connection
// only.
func (l *listener) establish(establish listeners.EstablishFn, conn *connection) (err error) {
	defer func() {
		if value := recover(); value != nil {
			l.recover(conn, value)
			err = errPanicked
		}
	}()
	if err := conn.handshake(); err != nil {
		if errors.Is(err, context.DeadlineExceeded) {
			l.countRefused(conn.RemoteAddr(), RefusedSlow)
		}
		return err
	}
	return establish(l.ID(), conn)
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

// track registers a goroutine, for a connection or for Serve. It reports false if the listener
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
		_ = conn.Close()
	}
	l.mu.Unlock()
	l.handlers.Wait()
	l.refusals.Close()
	l.failures.Close()
	l.faults.Close()
}

// The rest implements listeners.Listener.

func (l *listener) ID() string              { return "tcp" }
func (l *listener) Address() string         { return l.socket.Addr().String() }
func (l *listener) Protocol() string        { return l.socket.Addr().Network() }
func (l *listener) Init(*slog.Logger) error { return nil }

// Close is called by mochi's Close, after stop.
func (l *listener) Close(listeners.CloseFn) { l.stop() }
