package server

import (
	"context"
	"crypto/tls"
	"fmt"
	"log/slog"
	"math"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	mqtt "github.com/mochi-mqtt/server/v2"
	"github.com/mochi-mqtt/server/v2/packets"

	"github.com/tenurelock/tenure/internal/engine"
	"github.com/tenurelock/tenure/internal/secure"
	"github.com/tenurelock/tenure/internal/wire"
	"github.com/tenurelock/tenure/server/access"
	"github.com/tenurelock/tenure/server/internal/logs"
	"github.com/tenurelock/tenure/server/internal/pubsub"
	"github.com/tenurelock/tenure/server/internal/quota"
	"github.com/tenurelock/tenure/server/internal/semaphore"
	"github.com/tenurelock/tenure/server/internal/turns"
	"github.com/tenurelock/tenure/statestore"
)

const (
	// connectTimeout bounds an attempt to connect to the broker of an attached store.
	connectTimeout = 10 * time.Second
	// writeTimeout bounds how long a client may leave what is written to it unread,
	// once the sockets on the way are full.
	writeTimeout = 5 * time.Second
	// farewellTimeout bounds a DISCONNECT to a client that may not be reading.
	farewellTimeout = time.Second
	// takeOverPatience is how long the last words of a client that has come back may
	// take to be read.
	takeOverTimeout = 50 * time.Millisecond
	// forcedKeepAlive, in seconds, is imposed on a client that asks for none:
	// it would never be found dead.
	defaultKeepAlive = 60
	// maxSessionExpiry bounds, in seconds, how long the session of a client that is gone
	// is kept.
	maxSessionExpiry = 3600
	// maxKeepAlive bounds, in seconds, the keep-alive of a client of MQTT 5, which is told
	// so in CONNACK.
	maxKeepAlive = 300
	// maxOldKeepAlive is the same for older clients, which cannot be told: one and a half of
	// it is the longest time that the broker can wait. It is not shorter, because the server
	// would then end connections of clients that keep to what they said. TCP finds out by
	// itself that a machine is gone.
	maxOldKeepAlive = 43_690
)

// Server is a broker with a state store. Its methods are safe for concurrent use.
type Server struct {
	options  Options
	logger   *slog.Logger
	engine   *engine.Engine
	mochi    *mqtt.Server
	listener *listener
	messages *pubsub.Broker         // passes ordinary messages on
	outgoing *quota.Quota           // what waits to be written to all connections
	incoming *quota.Quota           // large packets that are not complete, of all connections
	topics   access.TopicAuthorizer // nil: ordinary topics are open to all
	// responseTopics are topics to which only the store may publish.
	responseTopics *responseTopics

	clientIDs *clientIDs // taken while a connection is established, and a session ends

	once     sync.Once   // Serve or Close, whichever comes first
	stopping atomic.Bool // no Will is applied any more

	checks   *semaphore.Fair[netip.Prefix] // where Authenticator is called
	refusals *logs.Limiter
	drops    *logs.Limiter
	slow     *logs.Limiter
	notKept  *logs.Limiter // sessions that are not
	// unsubscribed are subscriptions that were refused.
	refusedSubscriptions *logs.Limiter
	panics               *logs.Limiter

	latest     *sharedNotification // the latest change; guarded by the engine's lock
	backlogged atomic.Bool         // an outbox begins to be full

	mu           sync.Mutex
	connections  map[string]*connection   // by client id, while established
	stats        Stats                    // but Connected
	delayedWills map[string]*ordinaryWill // Wills that wait, by client id
	sessions     keptSessions             // of clients that are not connected
}

// New returns a server that listens already, so that its address is known and
// taken; connections are accepted by Serve. A server that is not served must be
// closed. The error says which option makes no sense or why the address cannot
// be used.
func New(options Options) (*Server, error) {
	if err := options.complete(); err != nil {
		return nil, fmt.Errorf("server: %w", err)
	}
	if options.Store.Identity == "" {
		options.Store.Identity = engine.NewIdentity() // it starts without what an earlier one knew
	}
	store, err := statestore.New(options.Store)
	if err != nil {
		return nil, fmt.Errorf("server: %w", err)
	}
	socket := options.Listener
	if socket == nil {
		if socket, err = net.Listen("tcp", options.Addr); err != nil {
			return nil, fmt.Errorf("server: %w", err)
		}
	}
	if options.TLS != nil {
		config := options.TLS.Clone()
		secure.Restrict(config)
		socket = tls.NewListener(socket, config) // the handshake comes with the first read
	}
	s := &Server{
		options:              options,
		logger:               options.Logger,
		clientIDs:            newClientIDs(),
		connections:          make(map[string]*connection),
		stats:                Stats{Dropped: make(map[DropReason]uint64), Refused: make(map[RefusalReason]uint64)},
		responseTopics:       newResponseTopics(),
		messages:             pubsub.New(options.messageLimits()),
		outgoing:             quota.New(options.Limits.AllOutgoingBytes),
		incoming:             quota.New(options.Limits.AllArrivingBytes),
		delayedWills:         make(map[string]*ordinaryWill),
		sessions:             newKeptSessions(),
		notKept:              logs.NewLimiter(options.Logger, slog.LevelWarn, "a session was not kept: its user has as many as it may"),
		refusedSubscriptions: logs.NewLimiter(options.Logger, slog.LevelWarn, "refused a subscription"),
		panics:               logs.NewLimiter(options.Logger, slog.LevelError, "the server recovered from a panic"),
		refusals:             logs.NewLimiter(options.Logger, slog.LevelWarn, "refused a connection"),
		drops:                logs.NewLimiter(options.Logger, slog.LevelWarn, "dropped a request"),
		slow:                 logs.NewLimiter(options.Logger, slog.LevelWarn, "disconnected a client that did not read what was written to it"),
	}
	s.listener = newListener(socket, &options, s.countRefused)
	all, post := turns.New(0), newWriteLimiter()
	s.listener.connect = func(socket net.Conn) *connection {
		conn := newConnection(socket, &s.options, all, s.outgoing, post)
		conn.incoming = s.incoming
		return conn
	}
	s.listener.recover = s.handleReadingPanic
	// Half of those at the door at most: there is always one that can be dropped for another.
	door := s.listener.auth
	s.checks = semaphore.New(options.PasswordChecks, max(1, door.max/2), func(source netip.Prefix) int {
		return max(1, door.limitOf(source)/2)
	})
	s.topics, _ = options.Authorizer.(access.TopicAuthorizer)
	s.engine = engine.New(store, s.deliver)
	s.engine.AfterDelivery(s.wake)
	s.mochi = newMochi(options)
	if err := s.mochi.AddHook(&hook{server: s}, nil); err != nil {
		return nil, fmt.Errorf("server: %w", err)
	}
	if err := s.mochi.AddListener(s.listener); err != nil {
		return nil, fmt.Errorf("server: %w", err)
	}
	return s, nil
}

// newBroker configures the embedded broker.
func newMochi(options Options) *mqtt.Server {
	capabilities := mqtt.NewDefaultServerCapabilities()
	capabilities.MaximumQos = 1
	capabilities.MaximumPacketSize = options.MaxPacketSize
	// As many requests as may be delivered again are remembered.
	capabilities.ReceiveMaximum = uint16(options.Store.DedupWindow)
	capabilities.TopicAliasMaximum = 0          // the gate refuses topic aliases
	capabilities.MaximumClientWritesPending = 1 // mochi queues nothing: it passes no messages on
	// mochi ends no session: see expireSessions.
	capabilities.MaximumSessionExpiryInterval = math.MaxUint32
	// mochi answers PUBREC and PUBREL. Its answer would repeat their user properties.
	capabilities.Compatibilities.NoInheritedPropertiesOnAck = true
	return mqtt.New(&mqtt.Options{
		Capabilities: capabilities,
		// The log of mochi contains whole packets of clients.
		Logger: slog.New(slog.DiscardHandler),
		// Statistics topics stop the world to be collected; once a day is
		// as rarely as the broker lets us have them.
		SysTopicResendInterval: 24 * 60 * 60,
	})
}

// Addr returns the address on which the server listens.
func (s *Server) Addr() net.Addr { return s.listener.socket.Addr() }

// Serve accepts connections until ctx ends, then disconnects all clients, with
// the reason "server shutting down", and returns nil when nothing of the server
// is left. Another error means that the server cannot accept connections any
// more; it is closed then too. A server is served once.
func (s *Server) Serve(ctx context.Context) error {
	err := fmt.Errorf("server: already served or closed")
	s.once.Do(func() { err = s.serve(ctx) })
	return err
}

// Close closes a server that was not served. After Serve it does nothing.
func (s *Server) Close() error {
	s.once.Do(func() {
		s.listener.stop()
		s.closeLogs()
	})
	return nil
}

func (s *Server) serve(ctx context.Context) error {
	expiry, stopExpiry := context.WithCancel(context.Background())
	var tasks sync.WaitGroup
	tasks.Go(func() { s.engine.Run(expiry) })
	tasks.Go(func() { s.expireSessions(expiry) })
	tasks.Go(func() { s.publishDelayedWills(expiry) })
	s.engine.Begin()
	if err := s.mochi.Serve(); err != nil {
		s.listener.stop()
		stopExpiry()
		tasks.Wait()
		return fmt.Errorf("server: %w", err)
	}
	s.logger.Info("listening", "address", s.Addr().String())
	s.logger.Info("limits", s.options.bounds()...)
	var failure error
	select {
	case <-ctx.Done():
	case failure = <-s.listener.failed:
	}
	s.shutdown()
	stopExpiry()
	tasks.Wait()
	s.closeLogs()
	s.logger.Info("stopped")
	return failure
}

// closeLogs writes what is counted of repeated lines. No connection is left.
func (s *Server) closeLogs() {
	for _, limiter := range []*logs.Limiter{s.refusals, s.drops, s.slow, s.notKept, s.refusedSubscriptions, s.panics} {
		limiter.Close()
	}
}

// shutdown disconnects everybody and closes the broker. The broker's own Close
// may deadlock with a client that disconnects at the same time, so it comes when
// no client is left.
func (s *Server) shutdown() {
	s.stopping.Store(true)
	s.listener.stopAccepting()
	var farewells sync.WaitGroup
	for _, cl := range s.mochi.Clients.GetAll() {
		farewells.Go(func() { s.disconnect(cl, packets.ErrServerShuttingDown) })
	}
	farewells.Wait()
	s.listener.stop()
	_ = s.mochi.Close() // returns nil always
}

// disconnect sends a client away. A client that does not read is given up after
// farewellTimeout.
func (s *Server) disconnect(cl *mqtt.Client, reason packets.Code) {
	if cl.Net.Conn == nil {
		return
	}
	_ = cl.Net.Conn.SetWriteDeadline(time.Now().Add(farewellTimeout))
	_ = cl.WritePacket(packets.Packet{
		FixedHeader: packets.FixedHeader{Type: packets.Disconnect},
		ReasonCode:  reason.Code,
		Properties:  packets.Properties{ReasonString: reason.Reason},
	})
	// Not cl.Stop: a client that was stopped while the broker handles a packet of it
	// loses its Will.
	_ = cl.Net.Conn.Close()
}

// takeOver ends a connection whose client has come back, and returns when it is over.
//
// A client that leaves and comes back at once has often said DISCONNECT before, which is
// still to be read. Closing at once would throw that away, and its Will would be executed
// although it said farewell.
func (s *Server) takeOver(old *mqtt.Client, conn *connection) {
	conn.replaced.Store(true)
	farewell := time.NewTimer(takeOverTimeout)
	defer farewell.Stop()
	select {
	case <-conn.over:
		return
	case <-farewell.C:
	}
	s.disconnect(old, packets.ErrSessionTakenOver)
	<-conn.over
}

// forget ends what the store keeps for a connection, before another of the same
// client is established.
func (s *Server) endConnection(clientID string, conn *connection) {
	slow := conn.outbox.overflowed() || conn.stuck.Load()
	if !conn.disconnected.Load() {
		// The broker forgets to forget a client that it could not send a CONNACK.
		cl, ok := s.mochi.Clients.Get(clientID)
		if ok && cl.Net.Conn == net.Conn(conn) && endsWithConnection(cl) {
			s.mochi.Clients.Delete(clientID)
			conn.sessionEnded.Store(true)
		}
	}
	// Where the client is back, its session is not one that is kept for a client that is away.
	if !conn.sessionEnded.Load() && !conn.replaced.Load() && !s.keepSession(conn) {
		s.mochi.Clients.Delete(clientID)
		conn.sessionEnded.Store(true)
	}
	if conn.sessionEnded.Load() {
		s.endSession(clientID)
	} else {
		s.engine.Disconnect(clientID)
		if conn.session != nil {
			conn.session.Detach(conn.outbox)
		}
	}
	// Not before: while the connection is entered, the next of the client waits for it.
	s.mu.Lock()
	if s.connections[clientID] == conn {
		delete(s.connections, clientID)
	}
	if slow {
		s.stats.SlowReaders++
	}
	s.mu.Unlock()
	if slow {
		s.slow.Log("client", logs.Name(clientID), "remote", conn.RemoteAddr().String())
	}
}

// endSession forgets what was kept for a session.
func (s *Server) endSession(clientID string) {
	s.engine.EndSession(clientID)
	s.responseTopics.release(clientID)
	if session, ok := s.messages.Find(clientID); ok {
		session.End()
	}
	if will := s.takeDelayedWill(clientID); will != nil {
		s.publishOrdinaryWill(will) // it waited at most for this [MQTT-3.1.2-8]
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.sessions.remove(clientID)
}

// resume enters a connection, whose client is not away any more.
func (s *Server) enter(cl *mqtt.Client, conn *connection) {
	_ = s.takeDelayedWill(cl.ID)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.sessions.remove(cl.ID)
	s.connections[cl.ID] = conn
}

// start lets a client publish, subscribe and receive, now that its CONNACK is sent.
func (s *Server) startSession(cl *mqtt.Client, conn *connection) {
	conn.session = s.messages.Session(cl.ID)
	conn.outbox.begin(func() { s.writeWaiting(cl, conn) })
	conn.session.Attach(pubsub.Receiver{
		Link:              conn.outbox,
		MQTT5:             cl.Properties.ProtocolVersion >= wire.Version5,
		ReceiveMaximum:    conn.receiveMaximum,
		MaximumPacketSize: cl.Properties.Props.MaximumPacketSize,
		MayRead:           func(topic string) bool { return s.mayReceive(conn, topic) },
	})
	conn.inbound.start(s, cl)
}

// connectionOf returns the connection of a client, or nil.
func (s *Server) connectionOf(client string) *connection {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.connections[client]
}

// keepSession notes that the session of a connection is kept, unless its user has as many
// as it may.
func (s *Server) keepSession(conn *connection) bool {
	s.mu.Lock()
	kept := s.sessions.add(conn.identity, s.options.Limits.SessionsPerUser)
	s.mu.Unlock()
	if !kept {
		s.notKept.Log("client", logs.Name(conn.identity.Client), "user", logs.Name(conn.identity.User), "limit", s.options.Limits.SessionsPerUser,
			"hint", "raise Options.Limits.SessionsPerUser, --max-sessions-per-user, or let clients ask for no Session Expiry Interval")
	}
	return kept
}

// endsWithConnection reports whether a client has no session beyond its connection.
func endsWithConnection(cl *mqtt.Client) bool {
	if cl.Properties.ProtocolVersion < 5 {
		return cl.Properties.Clean
	}
	return cl.Properties.Props.SessionExpiryInterval == 0
}
