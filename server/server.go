package server

import (
	"context"
	"fmt"
	"hash/maphash"
	"log/slog"
	"math"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tenurelock/tenure/internal/descriptors"
	"github.com/tenurelock/tenure/internal/engine"
	"github.com/tenurelock/tenure/internal/loglimit"
	"github.com/tenurelock/tenure/internal/semaphore"
	"github.com/tenurelock/tenure/internal/unauthenticated"
	"github.com/tenurelock/tenure/server/access"
	"github.com/tenurelock/tenure/server/internal/events"
	"github.com/tenurelock/tenure/server/internal/fairqueue"
	"github.com/tenurelock/tenure/server/internal/pubsub"
	"github.com/tenurelock/tenure/server/internal/sharedquota"
)

const (
	// writeTimeout bounds how long a write may wait for a client that does not read, once the
	// buffers of the sockets are full.
	writeTimeout = 5 * time.Second
	// disconnectTimeout bounds a DISCONNECT to a client that may not be reading.
	disconnectTimeout = time.Second
)

// Server is a broker with a state store. Its methods are safe for concurrent use.
type Server struct {
	options  Options
	limits   limits
	logger   *slog.Logger
	engine   *engine.Engine
	socket   net.Listener
	auth     *unauthenticated.Limiter // bounds the connections that have not authenticated
	sockets  int                      // how many there may be; 0: no limit
	failed   chan error               // why connections are no longer accepted; space for one
	accepted uint64                   // connections so far, of the goroutine that accepts them
	handlers sync.WaitGroup           // one for each connection, and one for the goroutine that accepts them
	messages *pubsub.Broker           // passes ordinary messages on
	outgoing *sharedquota.Quota       // what waits to be written, and replies that wait for a commit
	arriving *sharedquota.Users       // large packets that are not handled

	processors *fairqueue.Scheduler // the turns in which packets are processed
	writers    *fairqueue.Scheduler // the turns in which connections are written to

	topics    access.TopicAuthorizer          // nil: ordinary topics are open to all
	certified bool                            // each certificate of a client is verified when its handshake is over
	lines     [len(lineTexts)]*loglimit.Lines // of the log
	active    func() string                   // see StandBy; nil: this server is the active one
	seen      *events.Clients
	events    *events.Log

	replyProperties        []byte       // encoded; what all replies of the store have
	notificationProperties []byte       // encoded; what all notifications of the store have
	seed                   maphash.Seed // of response topics
	clientIDTimeout        time.Duration

	tasks sync.WaitGroup // goroutines of Serve, and of replies to Wills
	began time.Time      // when the server began to answer; constant from then on
	once  sync.Once      // Serve or Close, whichever comes first

	running      context.Context         // until the server stops: from then on, no Will is applied
	stop         context.CancelFunc      // ends running
	journalTurns *semaphore.Fair[string] // of requests that wait for space before a slow journal, by user or address
	behind       atomic.Pointer[outbox]  // the latest that was behind; nil: none

	mu          sync.Mutex
	connections map[*connection]struct{}
	clients     map[string]*client // by client id
	ids         map[string]*idLock // by client id
	stats       Stats              // but DroppedMessages
	restored    []string           // clients with a session in the journal, which may come back
}

// The kinds of log lines that clients can cause. Each has a bounded rate.
const (
	lineRefused = iota
	lineNotAccepted
	lineFault
	lineDropped
	lineSubscription
	lineSlow
	linePanic
	lineReferred
)

var lineTexts = [...]struct {
	level slog.Level
	text  string
}{
	lineRefused:      {slog.LevelWarn, "refused a connection"},
	lineNotAccepted:  {slog.LevelError, "cannot accept a connection"},
	lineFault:        {slog.LevelWarn, "ended a connection for what its client sent"},
	lineDropped:      {slog.LevelWarn, "dropped a request"},
	lineSubscription: {slog.LevelWarn, "refused a subscription"},
	lineSlow:         {slog.LevelWarn, "disconnected a client that did not read what was written to it"},
	linePanic:        {slog.LevelError, "the server recovered from a panic"},
	lineReferred:     {slog.LevelInfo, "sent a client to the active server"},
}

// log writes a line of a kind, or counts it.
func (s *Server) log(line int, attributes ...any) { s.lines[line].Log(attributes...) }

// New is Open with a context that does not end.
func New(options Options) (*Server, error) { return Open(context.Background(), options) }

// Open returns a server that listens already, so that Addr returns its address. Serve accepts
// connections. A server that is not served must be closed.
//
// With Options.Journal, Open loads the data first, which may take seconds for each million keys;
// the log says how far it is. The server listens only after that, so that a client meanwhile goes
// on to another address at once. Open stops loading when ctx ends, and returns the cause. After
// Open, ctx has no effect.
//
// The error says which option makes no sense, why the journal cannot be loaded, or why the
// server cannot listen; errors.Is finds ErrInsecure in it if the options would let other machines
// connect without TLS or without authentication. Then the journal cannot be used again, except
// for its Close.
func Open(ctx context.Context, options Options) (*Server, error) {
	s, err := newServer(options)
	if err != nil {
		return nil, err
	}
	began := time.Now()
	if s.engine, err = engine.Open(ctx, s.options.Store, options.Journal, s.deliver); err != nil {
		return nil, fmt.Errorf("server: %w", err)
	}
	if options.Journal != nil {
		s.logger.Info("loaded the journal", "keys", s.engine.Usage().Keys, "took", time.Since(began))
	}
	s.seen = events.NewClients(s.engine.RestoredUntil())
	s.encodeProperties(s.engine.Identity())
	s.engine.BetweenDeliveries(s.letRead)
	if s.socket == nil {
		if s.socket, err = net.Listen("tcp", s.options.Addr); err != nil {
			return nil, fmt.Errorf("server: %w", err)
		}
	}
	return s, nil
}

// newServer returns a server that has no store and no listener yet.
func newServer(options Options) (*Server, error) {
	if err := options.complete(); err != nil {
		return nil, fmt.Errorf("server: %w", err)
	}
	s := &Server{
		options:     options,
		limits:      options.limits,
		logger:      options.Logger,
		socket:      options.Listener,
		sockets:     descriptors.MaxSockets(),
		failed:      make(chan error, 1),
		connections: make(map[*connection]struct{}),
		clients:     make(map[string]*client),
		ids:         make(map[string]*idLock),
		stats:       Stats{Dropped: make(map[DropReason]uint64), Refused: make(map[RefusalReason]uint64)},
		seed:        maphash.MakeSeed(),
		messages:    pubsub.New(options.limits.Subscriptions, options.limits.Messages),
		outgoing:    sharedquota.New(options.limits.AllOutgoing),
		arriving:    sharedquota.NewUsers(options.limits.Arriving),
		// Each connection waits with one request.
		journalTurns:    semaphore.New(1, math.MaxInt, func(string) int { return math.MaxInt }),
		processors:      fairqueue.New(0),
		writers:         fairqueue.New(0),
		events:          events.NewLog(options.Logger),
		clientIDTimeout: clientIDTimeout,
	}
	for line, of := range lineTexts {
		s.lines[line] = loglimit.NewLines(options.Logger, of.level, of.text)
	}
	if options.TLS != nil {
		s.options.TLS = options.TLS.Clone()
		s.certified = unauthenticated.RestrictTLS(s.options.TLS)
	}
	s.auth = unauthenticated.New(options.MaxUnauthenticated, options.MaxUnauthenticatedPerAddress, s.sockets)
	s.running, s.stop = context.WithCancel(context.Background())
	s.topics, _ = options.Authorizer.(access.TopicAuthorizer)
	return s, nil
}

// StandBy answers the clients of a server that stands by, while another one is active on the same store, at
// options.Listener until ctx ends. Then it closes the connections that have had no answer yet, and returns nil when no
// goroutine of it is left. Another error means that the listener can no longer accept connections.
//
// It accepts no client: a CONNECT gets reason code 0x9C (Use another server), with what active returns as Server
// Reference: the active server as clients should see it, host:port, or an empty string if it is unknown; nil: unknown.
// It is called by several goroutines at once, and must return at once. Package
// transport then goes on to its next address at once. The answer comes before any authentication, because users and
// passwords are not checked: a client that passes TLS learns the address. Before the answer a connection has the
// bounds of one that has not authenticated.
func StandBy(ctx context.Context, options Options, active func() string) error {
	options.AllowInsecure = true // no client is admitted
	s, err := newServer(options)
	if err != nil {
		return err
	}
	if s.active = active; active == nil {
		s.active = func() string { return "" }
	}
	s.listen()
	select {
	case <-ctx.Done():
	case err = <-s.failed:
	}
	s.stop()
	_ = s.socket.Close()
	s.closeAll()
	s.closeLogs()
	if err != nil {
		return fmt.Errorf("server: clients cannot be answered while it stands by: %w", err)
	}
	return nil
}

// Addr returns the address on which the server listens.
func (s *Server) Addr() net.Addr { return s.socket.Addr() }

// Identity returns the identity of the store's data: 32 hexadecimal digits, or Options.Store.Identity.
func (s *Server) Identity() string { return s.engine.Identity() }

// Serve accepts connections until ctx ends. Then it disconnects all clients, with the reason
// "server shutting down", and returns nil when no goroutine of the server is left. Another
// error means that the server can no longer accept connections, or that its journal has failed;
// it is closed then too. A server can be served once.
//
// After a failure of the journal no client gets a reply or a notification any more. All that
// clients were told is in the journal; what they were not told may be in it or not.
//
// Serve does not close Options.Journal. The program does, after Serve has returned.
func (s *Server) Serve(ctx context.Context) error {
	err := fmt.Errorf("server: already served or closed")
	s.once.Do(func() { err = s.serve(ctx) })
	return err
}

// Close closes a server that was not served. After Serve it does nothing.
func (s *Server) Close() error {
	s.once.Do(func() {
		s.stop()
		_ = s.socket.Close()
		s.closeLogs()
	})
	return nil
}

func (s *Server) serve(ctx context.Context) error {
	expiry, stopExpiry := context.WithCancel(context.Background())
	stored := make(chan error, 1)
	s.tasks.Go(func() { stored <- s.engine.Run(expiry) })
	s.began, s.restored = time.Now(), s.engine.RestoredClients()
	s.tasks.Go(func() { s.sweepSessions(expiry) })
	s.tasks.Go(func() { s.events.Follow(expiry, s.engine) })
	s.engine.Begin()
	s.listen()
	s.logger.Info("listening", "address", s.Addr().String())
	s.logger.Debug("limits", "memory", s.options.MaxMemory, "clients", s.options.MaxClients,
		"store", fmt.Sprintf("%+v", s.options.Store), "others", fmt.Sprintf("%+v", s.limits))
	var failure error
	select {
	case <-ctx.Done():
	case failure = <-s.failed:
	case failure = <-stored: // it ends by itself only if the journal fails
	}
	s.shutdown()
	stopExpiry() // only now, so that what was applied until the end is committed
	s.tasks.Wait()
	if failure == nil {
		failure = <-stored
	}
	s.closeLogs()
	s.logger.Info("stopped")
	if failure != nil {
		return fmt.Errorf("server: %w", failure)
	}
	return nil
}

// closeLogs logs how often lines were left out. It is called when no connection is left.
func (s *Server) closeLogs() {
	for _, lines := range s.lines {
		lines.Close()
	}
	s.events.Close()
}

// shutdown disconnects all clients.
func (s *Server) shutdown() {
	s.stop()
	_ = s.socket.Close()
	var disconnects sync.WaitGroup
	s.mu.Lock()
	for _, c := range s.clients {
		if conn := c.conn; conn != nil {
			disconnects.Go(func() { conn.end(endStopped) })
		}
	}
	s.mu.Unlock()
	disconnects.Wait()
	s.closeAll()
}
