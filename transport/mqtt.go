package transport

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"sync"
	"sync/atomic"
	"time"

	"github.com/eclipse/paho.golang/packets"
	"github.com/eclipse/paho.golang/paho"

	"github.com/tenurelock/tenure/internal/mqtt"
	"github.com/tenurelock/tenure/internal/sleep"
)

const (
	// connectTimeout bounds one attempt, from the first packet to CONNACK.
	connectTimeout = 10 * time.Second
	// firstTimeout bounds it where there are other addresses: a server that is frozen accepts
	// connections and does not answer, and another one may take its place meanwhile. It doubles
	// with every second attempt that this server does not answer, up to connectTimeout, because
	// the server may be slow. While another server answers, this one has more likely failed, so it
	// doubles with every fourth attempt only.
	firstTimeout = time.Second
	// leaveTimeout is how long requests under way have to finish before a connection
	// is replaced.
	leaveTimeout = time.Second
	// lateConnect is how late a server may handle a CONNECT: it may have been frozen, or its clients may
	// wait for their passwords to be compared. maxUnanswered bounds what is remembered of them.
	lateConnect   = 5 * time.Minute
	maxUnanswered = 16
	// stableAfter is how long a connection must last for the backoff to start again. A
	// broker that accepts and hangs up must not be hammered: it gets one connection in this time.
	stableAfter = defaultReconnectMax
)

// mqttConn is a Conn over MQTT 5: a series of links, one at a time.
//
// One goroutine, run, connects, reads, and connects again; it ends with Close. Another one, serve,
// sends. There is one for each link.
type mqttConn struct {
	options Options
	logger  *slog.Logger
	events  Events

	life  context.Context // ends, with the reason, once there will be no more connections
	end   context.CancelCauseFunc
	tasks sync.WaitGroup // run, and the end of a link

	receiveMaximum atomic.Int64 // of the broker, on the latest connection

	// Used by the goroutine run, and by those that it waits for.
	servers  *mqtt.Rotation // its server is the server of the present attempt or connection
	refusals int            // permanent refusals in a row, before the first connection
	refusal  error          // the latest of them
	referred int            // attempts in between that a server sent to another one
	referral error          // what sent the client from the latest server to another one; nil: nothing
	foreign  string         // the latest server that a broker referred to and that is not followed
	failures failures       // attempts in a row that failed, and what was logged of them
	// Own attempts that got no answer: the CONNECT of each may be handled late, and then takes a later
	// connection over. They are in order.
	unanswered []time.Time

	mu     sync.Mutex
	link   *link         // the present connection; nil while there is none
	ready  chan struct{} // closed while link is set
	last   error         // why the last attempt to connect failed
	silent error         // the error of the present attempt if there is no answer; nil while there is none
	will   *pendingWill  // for the next connection; nil: none
	latest ConnectionStatus
	told   bool // report is due, and will see latest

	exchanges exchangePool

	replace chan struct{} // holds one item when the present connection may have to be replaced
}

func newMQTTConn(servers []*url.URL, options Options) *mqttConn {
	c := &mqttConn{
		servers: mqtt.NewRotation(servers),
		options: options,
		logger:  options.program.logger(options.Logger).With("client", options.ClientID),
		ready:   make(chan struct{}),
		replace: make(chan struct{}, 1),
	}
	c.life, c.end = context.WithCancelCause(context.Background())
	return c
}

func (c *mqttConn) ClientID() string { return c.options.ClientID }

// Start implements Conn.
func (c *mqttConn) Start(events Events) {
	c.events = events
	c.tasks.Go(func() { c.run(c.life) })
}

// Close implements Conn.
func (c *mqttConn) Close() error {
	c.terminate(ErrClosed)
	c.tasks.Wait()
	return nil
}

// terminate ends the connection permanently with cause, unless it has ended before.
func (c *mqttConn) terminate(cause error) {
	var failed ended
	c.mu.Lock()
	first := c.life.Err() == nil
	if first {
		c.end(cause)
		if l := c.link; l != nil {
			failed = append(failed, c.dropLocked(l, cause)...)
			c.tasks.Go(l.disconnect) // the goroutine that reads waits for what arrives
		}
		c.changedLocked(Ended, cause)
	}
	c.mu.Unlock()
	failed.tell()
	if first && c.events.Ended != nil {
		c.events.Ended(cause)
	}
}

// run connects, again and again, until ctx ends or every broker has permanently refused the
// first connection.
func (c *mqttConn) run(ctx context.Context) {
	pauses := newPauses(&c.options, c.servers.Len())
	for wait := time.Duration(0); sleep.For(ctx, wait); {
		began := time.Now()
		replaced, err := c.connect(ctx)
		if err != nil {
			c.failed(err)
		}
		if c.isRefused() {
			c.terminate(c.refusal)
			return
		}
		if time.Since(began) > stableAfter {
			if err == nil { // it was a connection
				pauses.reset()
			}
			c.servers.Rest()
		}
		wait = 0
		if !replaced && !c.moveOn() {
			wait = pauses.next()
			if err != nil { // an attempt that took long was a pause for the servers
				wait -= time.Since(began)
			}
		}
	}
}

// isRefused reports whether every broker has permanently refused the first connection.
func (c *mqttConn) isRefused() bool {
	return c.refusals > 0 && c.refusals+c.referred >= c.servers.Len()
}

// moveOn goes to the server for the next attempt. It reports true if that needs no pause: the
// latest server sent the client to another one, which has not done so itself since the latest
// pause. So a client finds the active one among several at once, and those that all stand by
// are not hammered.
func (c *mqttConn) moveOn() (atOnce bool) {
	if c.referral == nil {
		c.servers.Next()
		return false
	}
	from, reference := c.servers.Server().Host, serverReference(c.referral)
	atOnce, known := c.servers.Follow(reference)
	log := c.logger.With("broker", from, "refers to", shown(reference))
	if reference != "" && !known && reference != c.foreign {
		c.foreign = reference
		log.Warn("the broker refers to a server that is none of this client's addresses; add it there if clients are to use it")
	}
	if atOnce {
		log.Info("the broker refers to another server; going on to the next address", "next", c.servers.Server().Host)
	} else {
		log.Warn("each address refers to another server or does not answer; trying again after a pause")
	}
	return atOnce
}

// attemptTimeout returns the bound for the next attempt.
func (c *mqttConn) attemptTimeout() time.Duration {
	if c.servers.Len() == 1 {
		return connectTimeout
	}
	attempts := 2
	if c.servers.OthersAnswer() {
		attempts = 4
	}
	return min(connectTimeout, firstTimeout<<min(c.servers.Silence()/attempts, 8))
}

// connect makes one connection and reads from it until it is lost, or given up because it is
// to be replaced at once. The error says why there was no connection.
func (c *mqttConn) connect(ctx context.Context) (replaced bool, err error) {
	s := new(served)
	if err := c.open(ctx, s); err != nil {
		return false, err
	}
	served := make(chan struct{})
	go func() {
		defer close(served)
		if err = c.establish(ctx, s); err == nil {
			replaced = c.serve(s.link, s.will)
		}
		s.link.disconnect()
	}()
	s.link.client.Run()
	<-served
	c.conclude(s)
	return replaced, err
}

// served is one connection, as open, establish and conclude pass it on.
type served struct {
	link    *link
	connack *paho.Connack
	sent    *paho.Connect
	will    *pendingWill // that it carries; nil: none
	waits   *pendingWill // that waited when the connection began, carried or not
	up      bool         // Up was called, or was about to be
}

// open connects to a broker, up to its CONNACK. The error says why there is no connection.
func (c *mqttConn) open(ctx context.Context, s *served) error {
	attempt, cancel := context.WithTimeout(ctx, c.attemptTimeout())
	defer cancel()
	defer func() {
		if s.connack == nil && attempt.Err() != nil {
			c.servers.TimedOut()
		}
	}()
	c.trying()
	c.servers.Silent() // unless it answers
	refusals, referred := c.refusals, c.referred
	c.refusals, c.referred, c.referral = 0, 0, nil // unless this attempt is refused too
	password, token, err := c.options.secrets()
	if err != nil {
		return err
	}
	conn, err := c.dial(attempt, c.server())
	if err != nil {
		return err
	}
	s.sent, s.waits = c.connectPacket(password, token), c.nextWill()
	if s.waits != nil && !s.waits.unanswered {
		s.will = s.waits
		s.will.write(s.sent)
	}
	s.link = newLink(c.options.ClientID, c.events, c.logger, conn)
	s.connack, err = s.link.handshake(attempt, s.sent, func(d *packets.Disconnect) {
		c.lost(s.link, d)
	})
	if s.connack != nil {
		c.servers.Answered()
	} else {
		c.unanswered = append(c.unanswered[max(0, len(c.unanswered)-maxUnanswered+1):], time.Now())
	}
	if err == nil {
		return nil
	}
	if attempt.Err() != nil && s.connack == nil {
		err = mqtt.NoAnswer(c.server(), err)
	}
	err = c.notConnected(s.waits, s.will, s.connack, err)
	switch {
	case c.isPermanent(s.waits, err):
		c.refusals, c.referred, c.refusal = refusals+1, referred, err
	case errors.Is(err, ErrUseAnotherServer):
		c.refusals, c.referred, c.referral = refusals, referred+1, err
	}
	return err
}

// establish makes a connection ready for requests, while packets are read from it. The error says why
// it does not succeed.
func (c *mqttConn) establish(ctx context.Context, s *served) (err error) {
	l := s.link
	if err := l.adopt(s.connack.Properties, s.sent.KeepAlive); err != nil {
		return err
	}
	if err := l.subscribe(ctx, c.failed); err != nil {
		return err
	}
	l.path = newFastPath(l)
	l.net.Intercept(l.path.take)
	c.receiveMaximum.Store(int64(l.slots.size))
	// Before any request can be sent: a caller with a reply must see Connected.
	s.up = true
	c.events.Up()
	if !c.established(l) {
		return cmp.Or(l.closeCause(), l.lossCause())
	}
	if will := s.will; will != nil {
		c.concluded(will, willResult{lost: l.down, silence: l.silence})
	} else {
		c.connectedWithout(s.waits)
	}
	c.logConnected()
	return nil
}

// conclude ends a connection that was lost or that disconnect has ended.
func (c *mqttConn) conclude(s *served) {
	l := s.link
	if s.up {
		c.events.Down()                                           // a second time, if lost has called it
		c.logger.Debug("disconnected", "broker", c.server().Host) // after Down: its handler may be slow
	}
	l.disconnect() // or waits for the one under way
	l.tasks.Wait()
	cause := l.lossCause()
	if errors.Is(cause, ErrUseAnotherServer) {
		c.referral = cause
	}
	if ended := (*DisconnectError)(nil); !errors.As(cause, &ended) {
		c.servers.Silent()
		if l.closeCause() != nil { // this client ended it, because the server did not answer
			c.servers.TimedOut()
		}
	}
}

// serve sends the requests of a connection that carries will, or none, until the connection is lost
// or, as it then reports, to be replaced.
func (c *mqttConn) serve(l *link, will *pendingWill) (replaced bool) {
	replace, patience := c.replace, (<-chan time.Time)(nil)
	var check <-chan time.Time
	if c.options.TokenFile != "" {
		ticker := time.NewTicker(tokenCheck)
		defer ticker.Stop()
		check = ticker.C
	}
	for {
		select {
		case <-l.down: // the end of the client comes here, too: see terminate
			return false
		case <-l.wake:
			l.path.send()
		case <-check:
			l.showToken(c.options.TokenFile)
		case <-replace:
			if !c.outdated(will) {
				continue
			}
			c.leave(l)
			timer := time.NewTimer(leaveTimeout)
			defer timer.Stop()
			replace, patience = nil, timer.C
		case <-l.quiet:
			return true
		case <-patience:
			return true
		}
	}
}

// server returns the broker of the present attempt or connection. Only run may call it.
func (c *mqttConn) server() *url.URL { return c.servers.Server() }

// trying notes which broker the next attempt goes to.
func (c *mqttConn) trying() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.latest.Broker = c.server().String()
}

// dial opens a connection to server and adds TLS and WebSocket where its address asks.
func (c *mqttConn) dial(ctx context.Context, server *url.URL) (*mqtt.Conn, error) {
	config, err := c.options.tlsConfig(server)
	if err != nil {
		return nil, err
	}
	return mqtt.Dial(ctx, server, config, mqtt.DialOptions{
		MaxPacket:    c.options.MaxPacketSize,
		WriteTimeout: c.options.KeepAlive,
		Dialer:       c.options.Dialer,
		WebSocket:    c.options.WebSocket,
		Local:        "`tenure serve`",
		Step:         c.awaiting,
	})
}

// isPermanent reports whether an attempt to connect, with will waiting for a connection or
// nil, failed because of a refusal that the next attempt would meet again.
//
// Only the first connection can be refused permanently: then the setup is wrong. A broker that
// accepted this client once refuses it for reasons that pass: a directory that is down, access
// rules or files that change. Ending the client for them would end its elections.
func (c *mqttConn) isPermanent(will *pendingWill, err error) bool {
	var refused *ConnectError
	if will != nil || !errors.As(err, &refused) || !refused.permanent() {
		return false // the Will may be the reason: an attempt without it comes first
	}
	return c.status().Connections == 0
}

func (c *mqttConn) connectPacket(password, token []byte) *paho.Connect {
	receive, largest := uint16(receiveMaximum), uint32(c.options.MaxPacketSize)
	connect := &paho.Connect{
		ClientID:   c.options.ClientID,
		KeepAlive:  uint16(c.options.KeepAlive / time.Second),
		CleanStart: true, // nothing outlives a connection, on either side
		Properties: &paho.ConnectProperties{
			ReceiveMaximum:    &receive,
			MaximumPacketSize: &largest,
			// Without it brokers may leave out user properties, __ts among them.
			RequestProblemInfo: true,
		},
	}
	if c.options.Username != "" {
		connect.UsernameFlag, connect.Username = true, c.options.Username
	}
	if len(password) > 0 {
		connect.PasswordFlag, connect.Password = true, password
	}
	if len(token) > 0 {
		connect.Properties.AuthMethod, connect.Properties.AuthData = methodServiceAccount, token
	}
	return connect
}

// awaiting notes what the error is if the present attempt gets no further.
func (c *mqttConn) awaiting(unanswered error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.silent = unanswered
}

// failed notes why there is no connection.
func (c *mqttConn) failed(err error) {
	c.mu.Lock()
	c.last, c.silent = err, nil
	c.changedLocked(Connecting, err)
	c.mu.Unlock()
	if c.life.Err() == nil && !c.isRefused() { // else the client was closed during the attempt, or Dial returns the error
		c.logFailure(err)
	}
	if trace := c.options.Trace; trace != nil && trace.ConnectFailed != nil {
		info := ConnectFailedInfo{Broker: c.server().String(), Err: err}
		c.options.program.call(func() { trace.ConnectFailed(info) })
	}
}

// established makes l the present connection, unless it is lost already.
func (c *mqttConn) established(l *link) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.life.Err() != nil || isClosed(l.down) {
		return false
	}
	c.link, c.last, c.silent = l, nil, nil
	c.changedLocked(Connected, nil)
	close(c.ready)
	return true
}

// lost ends a connection. It is called first with the broker's reason, if there is one. A tenure may end
// with the connection, because the broker releases its lease then. So Down comes before anything for
// which a function of the program is called, and does not wait for the goroutine that connects.
func (c *mqttConn) lost(l *link, disconnect *packets.Disconnect) {
	if disconnect != nil && disconnect.ReasonCode == packets.DisconnectSessionTakenOver && !c.wasOwnConnect() {
		c.terminate(ErrSessionTakenOver)
	}
	cause, warning := errConnectionLost, ""
	if disconnect != nil {
		cause = fmt.Errorf("%w: %w", cause, &DisconnectError{disconnect.ReasonCode, disconnect.Properties.ReasonString, disconnect.Properties.ServerReference})
		warning = "disconnected by the broker"
	}
	if why := l.closeCause(); why != nil && !isClosed(l.down) {
		cause = fmt.Errorf("%w: %w", cause, why)
		warning = "disconnected from the broker"
	}
	c.mu.Lock()
	if disconnect == nil && l.isLeaving() {
		cause = errConnectionReplaced
	}
	present := c.link == l
	failed := c.dropLocked(l, cause)
	c.mu.Unlock()
	failed.tell()
	if present {
		c.events.Down()
	}
	if warning != "" {
		c.logger.Warn(warning, "error", cause)
	}
}

// wasOwnConnect reports whether an own attempt, which got no answer, may have taken the connection over. It
// counts each attempt once, so two programs with one client id end each other all the same.
func (c *mqttConn) wasOwnConnect() bool {
	for len(c.unanswered) > 0 {
		began := c.unanswered[0]
		c.unanswered = c.unanswered[1:]
		if time.Since(began) < lateConnect {
			return true
		}
	}
	return false
}

var (
	errConnectionLost     = errors.New("the connection was lost")
	errConnectionReplaced = errors.New("the connection is replaced by one with another Will")
)

// dropLocked fails at once every request that waits on a connection. The caller gives them their
// results, without the lock.
func (c *mqttConn) dropLocked(l *link, cause error) ended {
	failed, first := l.drop(cause)
	if !first || c.link != l {
		return failed
	}
	c.link = nil
	if !l.isLeaving() {
		c.ready = make(chan struct{})
	}
	c.changedLocked(Connecting, cause)
	return failed
}

// leave lets no new request be sent over a connection.
func (c *mqttConn) leave(l *link) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.link != l {
		return
	}
	c.ready = make(chan struct{})
	l.leave()
}

// RoundTrip implements Conn. It obeys the bounds of the binding by itself, which spares the caller a
// context of its own, of five allocations.
func (c *mqttConn) RoundTrip(ctx context.Context, request Request) (Reply, error) {
	e, deadline := c.exchanges.get(ctx, request), request.Binding.Until
	e.deadline = deadline
	l := c.tryPost(e)
	if l == nil { // it has to wait before it can be sent
		bounded, release := bound(ctx, deadline, request.Binding.While)
		defer release()
		ctx, e.ctx, e.deadline = bounded, bounded, time.Time{}
		var err error
		if l, err = c.post(e); err != nil {
			return Reply{}, err
		}
	}
	var over <-chan struct{}
	if while := request.Binding.While; while != nil {
		over = while.Done()
	}
	givenUp := ctx
	select {
	case <-e.done:
		givenUp = nil
	case <-ctx.Done():
	case <-over:
		givenUp = request.Binding.While
	}
	if givenUp != nil {
		if err := l.abandon(e, context.Cause(givenUp)); err != nil {
			return Reply{}, err
		}
		<-e.done // the reply came at the same moment
	}
	reply, err := e.reply, e.err
	c.exchanges.put(e)
	return reply, err
}

// tryPost adds an exchange to the queue of the present connection, if there is one and its broker
// takes one more request. It returns nil otherwise, and for all that post has an error for. It does
// not wait.
func (c *mqttConn) tryPost(e *exchange) *link {
	c.mu.Lock()
	l, ready := c.link, isClosed(c.ready)
	c.mu.Unlock()
	if l == nil || !ready || e.ctx.Err() != nil || e.request.Binding.Err() != nil || !l.slots.tryAcquire(e.request.Urgent) {
		return nil
	}
	if !l.enqueue(e) {
		l.slots.free()
		return nil
	}
	return l
}

// post adds an exchange to the queue of a connection, when there is one and its broker takes
// one more request [MQTT-4.9.0-2].
func (c *mqttConn) post(e *exchange) (*link, error) {
	for {
		if err := e.request.Binding.Err(); err != nil {
			return nil, err // no later connection can be the right one
		}
		l, err := c.awaitLink(e.ctx)
		if err != nil {
			return nil, notSent(err)
		}
		// Check again, because l may be the next connection. The channel of the lost one was
		// closed before that was ready, so this check misses nothing.
		if err := e.request.Binding.Err(); err != nil {
			return nil, err
		}
		switch {
		case l.slots.acquire(e.ctx, l.down, e.request.Urgent):
			if l.enqueue(e) {
				return l, nil
			}
			l.slots.free()
		case e.ctx.Err() != nil && !isClosed(l.down):
			return nil, notSent(l.heldBack(context.Cause(e.ctx)))
		}
	}
}

// awaitLink waits for a connection that is ready. The error begins with why there was none, if
// that is known.
func (c *mqttConn) awaitLink(ctx context.Context) (*link, error) {
	for {
		c.mu.Lock()
		l, ready, last, silent := c.link, c.ready, c.last, c.silent
		usable := isClosed(ready) // later it may be, by a connection that is not l
		c.mu.Unlock()
		switch {
		case c.life.Err() != nil:
			return nil, context.Cause(c.life)
		case ctx.Err() != nil && last != nil:
			return nil, fmt.Errorf("%w (%w)", last, context.Cause(ctx))
		case errors.Is(ctx.Err(), context.DeadlineExceeded) && silent != nil:
			return nil, fmt.Errorf("%w (%w)", silent, context.Cause(ctx))
		case ctx.Err() != nil:
			return nil, context.Cause(ctx)
		case usable:
			return l, nil
		}
		select {
		case <-ready:
		case <-c.life.Done():
		case <-ctx.Done():
		}
	}
}

func isClosed(signal <-chan struct{}) bool {
	select {
	case <-signal:
		return true
	default:
		return false
	}
}

// Probe implements Conn.
func (c *mqttConn) Probe(within time.Duration) {
	c.mu.Lock()
	l := c.link
	c.mu.Unlock()
	if l != nil {
		l.probe(within)
	}
}
