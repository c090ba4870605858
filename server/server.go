package server

import (
	"context"
	"fmt"
	"hash/maphash"
	"log/slog"
	"math"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tenurelock/tenure/internal/engine"
	"github.com/tenurelock/tenure/internal/loglimit"
	"github.com/tenurelock/tenure/internal/mqtt"
	"github.com/tenurelock/tenure/internal/semaphore"
	"github.com/tenurelock/tenure/internal/unauthenticated"
	"github.com/tenurelock/tenure/server/access"
	"github.com/tenurelock/tenure/server/internal/events"
	"github.com/tenurelock/tenure/server/internal/fairqueue"
	"github.com/tenurelock/tenure/server/internal/pubsub"
	"github.com/tenurelock/tenure/statestore"
)

const (
	// writeTimeout bounds how long a write may wait for a client that does not read, once the
	// buffers of the sockets are full.
	writeTimeout = 5 * time.Second
	// disconnectTimeout bounds a DISCONNECT to a client that may not be reading.
	disconnectTimeout = time.Second
	// takeOverTimeout is how long a connection may take to deliver its DISCONNECT when its
	// client has opened another one.
	takeOverTimeout = 50 * time.Millisecond
	// defaultKeepAlive, in seconds, is for a client that asks for none: without one, the server
	// would not notice that it is gone.
	defaultKeepAlive = 60
	// maxSessionExpiry bounds, in seconds, how long the session of a client that is gone
	// is kept.
	maxSessionExpiry = 3600
	// maxKeepAlive bounds, in seconds, the keep-alive of a client of MQTT 5. CONNACK tells the
	// client.
	maxKeepAlive = 300
)

// Server is a broker with a state store. Its methods are safe for concurrent use.
type Server struct {
	options  Options
	logger   *slog.Logger
	engine   *engine.Engine
	listener *listener
	messages *pubsub.Broker // passes ordinary messages on
	quotas   quotas

	processors *fairqueue.Scheduler // the turns in which packets are processed
	writers    *fairqueue.Scheduler // the turns in which connections are written to

	topics access.TopicAuthorizer // nil: ordinary topics are open to all

	replyProperties        []byte       // encoded; what all replies of the store have
	notificationProperties []byte       // encoded; what all notifications of the store have
	seed                   maphash.Seed // of response topics

	clientIDs *clientIDs // locked while a connection is established or a session ends

	began time.Time // when the server began to answer; constant from then on

	once     sync.Once   // Serve or Close, whichever comes first
	stopping atomic.Bool // no Will is applied from now on

	certified bool // each certificate of a client is verified when its handshake is over

	checks   *semaphore.Fair[netip.Prefix] // held for each call of Authenticator
	refusals *loglimit.Lines
	drops    *loglimit.Lines
	denials  *loglimit.Lines
	slow     *loglimit.Lines
	notKept  *loglimit.Lines // sessions that end with their connections, by Limits.SessionsPerUser

	refusedSubscriptions *loglimit.Lines
	panics               *loglimit.Lines
	seen                 *events.Clients
	log                  *events.Log

	running      context.Context         // until the server stops: for Wills that wait for a commit
	stop         context.CancelFunc      // ends running
	journalTurns *semaphore.Fair[string] // of requests that wait for room before a slow journal, by user or address

	willReplies *outbox // replies to Wills on topics that other clients may read

	latest [statestore.Documented + 1]*sharedNotification // the latest change, in each dialect; guarded by the engine's lock
	behind atomic.Pointer[outbox]                         // the latest that was more than a quarter full; nil: none

	mu        sync.Mutex
	clients   map[string]*client // by client id
	connected int                // of clients
	kept      map[string]int     // by user: sessions of clients that are away
	stats     Stats              // but Connected
	restored  []string           // clients with a session in the journal, which may come back
}

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
	if err := options.complete(); err != nil {
		return nil, fmt.Errorf("server: %w", err)
	}
	s := &Server{
		options:              options,
		logger:               options.Logger,
		clientIDs:            newClientIDs(),
		clients:              make(map[string]*client),
		kept:                 make(map[string]int),
		stats:                Stats{Dropped: make(map[DropReason]uint64), Refused: make(map[RefusalReason]uint64)},
		seed:                 maphash.MakeSeed(),
		messages:             pubsub.New(options.messageLimits()),
		quotas:               newQuotas(&options.Limits),
		journalTurns:         semaphore.New(1, math.MaxInt, unlimited), // each connection waits with one request
		processors:           fairqueue.New(0),
		writers:              fairqueue.New(0),
		notKept:              loglimit.NewLines(options.Logger, slog.LevelWarn, "a session was not kept: its user has as many as it may"),
		refusedSubscriptions: loglimit.NewLines(options.Logger, slog.LevelWarn, "refused a subscription"),
		panics:               loglimit.NewLines(options.Logger, slog.LevelError, "the server recovered from a panic"),
		log:                  events.NewLog(options.Logger),
		refusals:             loglimit.NewLines(options.Logger, slog.LevelWarn, "refused a connection"),
		drops:                loglimit.NewLines(options.Logger, slog.LevelWarn, "dropped a request"),
		denials:              loglimit.NewLines(options.Logger, slog.LevelWarn, "refused a request"),
		slow:                 loglimit.NewLines(options.Logger, slog.LevelWarn, "disconnected a client that did not read what was written to it"),
	}
	if options.TLS != nil {
		s.options.TLS = options.TLS.Clone()
		s.certified = unauthenticated.RestrictTLS(s.options.TLS)
	}
	var err error
	began := time.Now()
	if s.engine, err = engine.Open(ctx, options.Store, options.Journal, s.deliver); err != nil {
		return nil, fmt.Errorf("server: %w", err)
	}
	if options.Journal != nil {
		options.Logger.Info("loaded the journal", "keys", s.engine.Usage().Keys, "took", time.Since(began))
	}
	s.seen = events.NewClients(s.engine.RestoredUntil())
	s.replyProperties = encodeReplyProperties(s.engine.Identity())
	s.notificationProperties = encodeNotificationProperties(s.engine.Identity())
	s.engine.BetweenDeliveries(s.letRead)
	socket, err := options.listen()
	if err != nil {
		return nil, fmt.Errorf("server: %w", err)
	}
	s.listener = newListener(socket, &options, s.countRefused)
	s.running, s.stop = context.WithCancel(context.Background())
	s.willReplies = newOutbox(options.Limits.OutgoingBytes, s.quotas.outgoing, s.processors, s.writers)
	s.willReplies.begin(s.publishWillReplies)
	s.listener.connect = s.newConnection
	// At most half of the unauthenticated connections may wait for a check, so that there is
	// always one that can be dropped for a new one.
	auth := s.listener.auth
	s.checks = semaphore.New(options.PasswordChecks, max(1, auth.Max()/2), func(source netip.Prefix) int {
		return max(1, auth.LimitOf(source)/2)
	})
	s.topics, _ = options.Authorizer.(access.TopicAuthorizer)
	return s, nil
}

func unlimited(string) int { return math.MaxInt }

// listen returns the socket on which a server with these options listens.
func (o *Options) listen() (socket net.Listener, err error) {
	socket = o.Listener
	if socket == nil {
		if socket, err = net.Listen("tcp", o.Addr); err != nil {
			return nil, err
		}
	}
	return socket, nil
}

// Addr returns the address on which the server listens.
func (s *Server) Addr() net.Addr { return s.listener.socket.Addr() }

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
		s.listener.stop()
		s.willReplies.close()
		s.closeLogs()
	})
	return nil
}

func (s *Server) serve(ctx context.Context) error {
	expiry, stopExpiry := context.WithCancel(context.Background())
	var tasks sync.WaitGroup
	stored := make(chan error, 1)
	tasks.Go(func() { stored <- s.engine.Run(expiry) })
	s.began, s.restored = time.Now(), s.engine.RestoredClients()
	tasks.Go(func() { eachSecond(expiry, s.endSessions) })
	tasks.Go(func() { eachSecond(expiry, s.publishDueWills) }) // of its own, because ending many sessions takes long
	s.engine.Begin()
	s.listener.start()
	s.logger.Info("listening", "address", s.Addr().String())
	s.logger.Info("limits", s.options.bounds()...)
	var failure error
	select {
	case <-ctx.Done():
	case failure = <-s.listener.failed:
	case failure = <-stored: // it ends by itself only if the journal fails
	}
	s.shutdown()
	stopExpiry() // only now, so that what was applied until the end is committed
	tasks.Wait()
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
	for _, limiter := range []*loglimit.Lines{s.refusals, s.drops, s.denials, s.slow, s.notKept, s.refusedSubscriptions, s.panics} {
		limiter.Close()
	}
	s.log.Close()
}

// shutdown disconnects all clients. They get "server shutting down" after a failure of the journal too:
// "server unavailable" is for CONNACK only.
func (s *Server) shutdown() {
	s.stopping.Store(true)
	s.stop()
	s.listener.stopAccepting()
	var disconnects sync.WaitGroup
	var open []*connection
	s.eachClient(func(c *client) {
		if c.conn != nil {
			open = append(open, c.conn)
		}
	})
	for _, conn := range open {
		disconnects.Go(func() { conn.disconnect(refusal(mqtt.ShuttingDown, "server shutting down")) })
	}
	disconnects.Wait()
	s.listener.stop()
	s.willReplies.close()
}
