package server

import (
	"errors"
	"log/slog"
	"net"
	"sync"
	"time"

	"github.com/mochi-mqtt/server/v2/listeners"
)

// listener accepts connections for the broker. The broker's own would end
// silently at the first error of Accept, wait for ever for a CONNECT, and hang
// in Close on connections that never sent one.
type listener struct {
	socket net.Listener
	logger *slog.Logger
	plain  bool       // connections know no express
	failed chan error // why no connections are accepted any more; room for one

	maxPacket uint32 // bytes of a packet from a client

	stopping chan struct{}
	handlers sync.WaitGroup // one for each connection, and one for Serve

	mu          sync.Mutex
	stopped     bool
	connections map[*connection]struct{}
}

var _ listeners.Listener = (*listener)(nil)

func newListener(socket net.Listener, logger *slog.Logger, plain bool, maxPacket uint32) *listener {
	return &listener{
		socket:      socket,
		logger:      logger,
		plain:       plain,
		failed:      make(chan error, 1),
		maxPacket:   maxPacket,
		stopping:    make(chan struct{}),
		connections: make(map[*connection]struct{}),
	}
}

// acceptPause is how long to wait after a failure to accept, such as too many
// open files, before the next try.
const acceptPause = 50 * time.Millisecond

// Serve accepts connections until stopAccepting. The broker calls it in a
// goroutine; establish returns when all of the connection is over.
func (l *listener) Serve(establish listeners.EstablishFn) {
	if !l.track(nil) {
		return
	}
	defer l.handlers.Done()
	pause := time.NewTimer(0)
	defer pause.Stop()
	for {
		socket, err := l.socket.Accept()
		switch {
		case err == nil:
			l.handle(socket, establish)
		case errors.Is(err, net.ErrClosed):
			select {
			case <-l.stopping:
			default:
				l.failed <- err
			}
			return
		default:
			l.logger.Error("cannot accept a connection", "error", err)
			pause.Reset(acceptPause)
			select {
			case <-pause.C:
			case <-l.stopping:
				return
			}
		}
	}
}

func (l *listener) handle(socket net.Conn, establish listeners.EstablishFn) {
	conn := newConnection(socket, l.plain, l.maxPacket)
	if !l.track(conn) {
		_ = socket.Close()
		return
	}
	// The broker extends the deadline with each packet, from CONNECT on.
	_ = conn.SetDeadline(time.Now().Add(connectTimeout))
	go func() {
		defer l.handlers.Done()
		err := establish(l.ID(), conn)
		conn.finish()
		l.mu.Lock()
		delete(l.connections, conn)
		l.mu.Unlock()
		l.logger.Debug("connection ended", "remote", socket.RemoteAddr().String(), "error", err)
	}()
}

// track registers a goroutine, for a connection or for Serve, unless the
// listener is stopping.
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

// stopAccepting closes the socket and leaves connections alone.
func (l *listener) stopAccepting() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.stopped {
		l.stopped = true
		close(l.stopping)
		_ = l.socket.Close()
	}
}

// stop closes everything and returns when nothing is left.
func (l *listener) stop() {
	l.stopAccepting()
	l.mu.Lock()
	for conn := range l.connections {
		_ = conn.Close()
	}
	l.mu.Unlock()
	l.handlers.Wait()
}

// The rest is what the broker asks of a listener.

func (l *listener) ID() string              { return "tcp" }
func (l *listener) Address() string         { return l.socket.Addr().String() }
func (l *listener) Protocol() string        { return l.socket.Addr().Network() }
func (l *listener) Init(*slog.Logger) error { return nil }

// Close is called by the broker's Close, after stop.
func (l *listener) Close(listeners.CloseFn) { l.stop() }
