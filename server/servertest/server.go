package servertest

import (
	"context"
	"errors"
	"net"
	"sync/atomic"
	"testing"
	"time"

	"github.com/tenurelock/tenure/server"
	"github.com/tenurelock/tenure/server/internal/testsupport/proxy"
	"github.com/tenurelock/tenure/transport"
	"github.com/tenurelock/tenure/transport/transporttest"
)

// patience bounds each wait for the server or for a connection.
const patience = 20 * time.Second

// Options configures a Server. The zero value is a server with default options on a TCP port of
// this machine.
type Options struct {
	// Server configures the server. Its Addr and Listener have no effect. Its Journal must be nil.
	Server server.Options
	// Journal, if not nil, makes the server durable: it keeps its data there, in the memory of
	// the test, and has it again after Restart. The test can make its commits slow, or fail.
	Journal *transporttest.Journal
	// InMemory makes connections in memory instead of sockets, for tests in a bubble of
	// testing/synctest. Clients then reach the server through DialContext only.
	InMemory bool
}

// Server is a running server, and the network in front of it. Its methods may be called
// concurrently, but those that take a testing.TB and Restart are for the goroutine of the test.
type Server struct {
	// URL is the address of the server: what transport.Dial takes. It stays the same when the
	// server is restarted.
	URL string

	t       testing.TB
	options Options
	network *network
	running atomic.Pointer[server.Server]
	stop    func() error // stops the running server, waits until it has stopped, and returns the error of Serve
}

// New starts a server with default options. It ends with the test.
func New(t testing.TB) *Server {
	t.Helper()
	return NewWithOptions(t, Options{})
}

// NewWithOptions starts a server, and fails the test if the options make no sense. The server ends
// with the test; an error of its Serve fails the test.
func NewWithOptions(t testing.TB, options Options) *Server {
	t.Helper()
	if options.Server.Journal != nil {
		t.Fatal("servertest: Options.Server.Journal is set, which a second server could not load again: set Options.Journal")
	}
	scheme := "mqtt://"
	if options.Server.TLS != nil {
		scheme = "mqtts://"
	}
	network, err := newNetwork(options.InMemory)
	if err != nil {
		t.Fatalf("servertest: %v", err)
	}
	s := &Server{t: t, options: options, network: network}
	t.Cleanup(func() {
		network.End()
		s.stopCleanly()
		network.Close()
	})
	s.URL = scheme + s.network.address.String()
	s.start()
	return s
}

func (s *Server) start() {
	s.t.Helper()
	backend := &listener{address: s.network.address, conns: make(chan net.Conn), closed: make(chan struct{})}
	options := s.options.Server
	options.Listener = backend
	options.AllowInsecure = options.AllowInsecure || s.options.InMemory
	if s.options.Journal != nil {
		options.Journal = s.options.Journal.Open()
	}
	running, err := server.New(options)
	if err != nil {
		s.t.Fatalf("servertest: %v", err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	served := make(chan error, 1)
	go func() { served <- running.Serve(ctx) }()
	s.running.Store(running)
	s.stop = func() error {
		cancel()
		select {
		case err := <-served:
			return err
		case <-time.After(patience):
			return errors.New("it does not return")
		}
	}
	s.network.backend.Store(backend)
}

// stopCleanly stops the server, if one runs. It must have had no error.
func (s *Server) stopCleanly() {
	s.t.Helper()
	if s.stop == nil {
		return
	}
	if err := s.stop(); err != nil {
		s.t.Errorf("servertest: Serve: %v", err)
	}
	s.stop = nil
}

// Server returns the running server, for its Stats and Usage. After Restart it is another one.
func (s *Server) Server() *server.Server { return s.running.Load() }

// Client returns a connected client with this client id. It is closed when t ends; the test fails
// if it cannot connect.
func (s *Server) Client(t testing.TB, id string) *transport.Client {
	t.Helper()
	return s.Dial(t, transport.Options{ClientID: id})
}

// Dial is Client with options. A Dialer of theirs has precedence over DialContext.
func (s *Server) Dial(t testing.TB, options transport.Options) *transport.Client {
	t.Helper()
	if options.Dialer == nil {
		options.Dialer = s.DialContext
	}
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	client, err := transport.Dial(ctx, s.URL, options)
	if err != nil {
		t.Fatalf("servertest: %v", err)
	}
	t.Cleanup(func() { _ = client.Close() })
	return client
}

// DialContext connects to the server, whatever the network and the address: it is a
// transport.Options.Dialer. It returns an error if ctx has ended, or while the server is down.
func (s *Server) DialContext(ctx context.Context, _, _ string) (net.Conn, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	return s.network.dial(ctx)
}

// Cut closes all connections. Requests that are under way are lost, or applied without a reply.
// New connections are accepted at once.
func (s *Server) Cut() { s.network.Cut() }

// Down closes all connections and refuses new ones until Up. The server goes on: leases expire.
func (s *Server) Down() {
	s.network.Refuse(true)
	s.network.Cut()
}

// Up accepts connections again after Down.
func (s *Server) Up() { s.network.Refuse(false) }

// Freeze stops everything that passes between the server and its clients, and leaves the
// connections open. New connections open too, and are as silent. What is sent meanwhile waits for
// Thaw, as do the ends of connections.
func (s *Server) Freeze() {
	s.network.Hold(proxy.ToServer)
	s.network.Hold(proxy.ToClient)
}

// Thaw lets everything pass again after Freeze, beginning with what has waited.
func (s *Server) Thaw() {
	s.network.Release(proxy.ToServer)
	s.network.Release(proxy.ToClient)
}

// Restart stops the server, which tells its clients so, and starts another one with the same
// options at the same address. With Options.Journal the new one has the data of the former one, and
// its identity: tenures go on, and only watches are forgotten, which clients register again. Without,
// it knows no keys, leases or watches, and has another identity. After Crash, Restart only starts.
// Connections that were frozen stay frozen, and end with Thaw.
func (s *Server) Restart() {
	s.t.Helper()
	s.stopCleanly()
	s.start()
}

// Crash ends the server like SIGKILL or a power cut: connections end, no Will is kept, and what is not
// committed is lost. No client can connect until Restart. A server without Options.Journal loses
// everything.
func (s *Server) Crash() {
	s.t.Helper()
	if s.stop == nil {
		return
	}
	if s.options.Journal != nil {
		s.options.Journal.Fail(0)
	}
	s.network.Cut()
	_ = s.stop() // it fails, or not, if nothing was left to commit
	s.stop = nil
}
