package transport

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"sync"
	"time"

	"github.com/eclipse/paho.golang/packets"
	"github.com/eclipse/paho.golang/paho"

	"github.com/tenurelock/tenure/internal/closed"
	"github.com/tenurelock/tenure/internal/loglimit"
	"github.com/tenurelock/tenure/internal/mqtt"
	"github.com/tenurelock/tenure/internal/sleep"
	"github.com/tenurelock/tenure/internal/storeconn"
)

const (
	// connectTimeout bounds one attempt, from the first packet to CONNACK.
	connectTimeout = 10 * time.Second
	// firstTimeout bounds it where there are other addresses: a server that is frozen accepts
	// connections and does not answer, and another one may take its place meanwhile. It doubles
	// with every fourth attempt that this server does not answer, up to connectTimeout, because
	// the server may be slow.
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
// One goroutine, in run, connects, reads, and connects again; it ends with Close. Another one for each link, in
// connect, subscribes, sends and disconnects.
type mqttConn struct {
	options Options
	logger  *slog.Logger
	events  storeconn.Events
	dialing context.Context // bounds the attempts until there has been a connection

	life  context.Context // ends, with the reason, once there will be no more connections
	end   context.CancelCauseFunc
	tasks sync.WaitGroup // run, and the end of a link
	calls calls

	// Used by the goroutine run, and by those that it waits for.
	servers    *mqtt.Rotation   // its server is the server of the present attempt or connection
	refusals   int              // attempts in a row that servers refused for good or sent elsewhere
	permanent  error            // the latest refusal for good among them; nil: there was none
	referral   error            // what sent the client from the latest server to another one; nil: nothing
	failureLog *slog.Logger     // for attempts to connect
	failures   int              // attempts in a row that failed
	logged     loglimit.Limiter // of them
	unanswered int              // own attempts that got no answer, maxUnanswered at most; see wasOwnConnect
	gaveUp     time.Time        // when the latest of them ended

	first chan struct{} // closed when there has been a connection
	tried chan struct{} // closed when there has been an attempt to connect that failed

	mu    sync.Mutex
	queue []*call      // the calls that no link has taken, in order, the urgent ones first
	link  *link        // the present connection; nil while there is none
	last  error        // why the last attempt to connect failed, or the connection was lost; nil while connected
	will  *pendingWill // for the next connection; nil: none

	replace chan struct{} // holds one item when the present connection may have to be replaced
}

func newMQTTConn(ctx context.Context, servers []*url.URL, options Options) *mqttConn {
	// A program that waits in Dial would be silent without a Logger, and look as if it hung.
	dialLogger := slog.New(handler{cmp.Or(options.Logger, slog.Default()).Handler(), options.program})
	c := &mqttConn{
		dialing:    ctx,
		servers:    mqtt.NewRotation(servers),
		options:    options,
		logger:     options.program.logger(options.Logger).With("client", options.ClientID),
		failureLog: dialLogger.With("client", options.ClientID),
		first:      make(chan struct{}),
		tried:      make(chan struct{}),
		replace:    make(chan struct{}, 1),
	}
	c.life, c.end = context.WithCancelCause(context.Background())
	return c
}

func (c *mqttConn) ClientID() string { return c.options.ClientID }

// Start implements Conn.
func (c *mqttConn) Start(events storeconn.Events) {
	c.events = events
	c.tasks.Go(c.run)
}

// Close implements Conn.
func (c *mqttConn) Close() error {
	c.terminate(ErrClosed)
	c.tasks.Wait()
	return nil
}

// terminate ends the connection permanently with cause, unless it has ended before.
func (c *mqttConn) terminate(cause error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.life.Err() != nil {
		return
	}
	c.end(cause)
	c.events.Ended(cause)
	if l := c.link; l != nil {
		c.dropLocked(l, cause)
		c.tasks.Go(l.client.Disconnect) // the goroutine that reads waits for what arrives
	}
	c.failQueuedLocked(func(*call) error { return notSent(cause) })
}

// run connects, again and again, until the life of the connection ends or every broker has permanently
// refused the first connection.
func (c *mqttConn) run() {
	ctx, wait := c.life, time.Duration(0)
	pauses := newPauses(&c.options, c.servers.Len())
	for sleep.For(ctx, wait) {
		began := time.Now()
		replaced, err := c.connect(ctx)
		if err != nil {
			c.failed(err)
		}
		if refusal := c.refusal(); refusal != nil {
			c.terminate(refusal)
		}
		if c.dialGaveUp() {
			return // the last failure says why Dial gives up
		}
		if time.Since(began) > stableAfter {
			if err == nil { // it was a connection
				pauses = newPauses(&c.options, c.servers.Len())
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

// refusal returns the latest permanent refusal of the first connection, once every broker has refused it or sent
// the client elsewhere; until then nil.
func (c *mqttConn) refusal() error {
	if c.refusals >= c.servers.Len() {
		return c.permanent
	}
	return nil
}

// moveOn goes to the server for the next attempt. It reports true if that needs no pause: the
// latest server sent the client to another one, which has not done so itself since the latest
// pause. So a client finds the active one among several at once, and those that all stand by
// are not hammered.
func (c *mqttConn) moveOn() (atOnce bool) {
	atOnce = c.servers.Next(c.referral != nil)
	if c.referral != nil {
		c.logger.Info("going on to another server", "next", c.server().Host, "at once", atOnce, "error", c.referral)
	}
	return atOnce
}

// dialGaveUp reports whether Dial gave up before there was a connection.
func (c *mqttConn) dialGaveUp() bool {
	ends, bounded := c.dialing.Deadline()
	return !closed.Is(c.first) && (c.dialing.Err() != nil || bounded && !time.Now().Before(ends))
}

// within returns a context for a part of an attempt to connect, which Dial bounds until there has been a connection.
func (c *mqttConn) within(ctx context.Context, limit time.Duration) (context.Context, context.CancelFunc) {
	most := time.Now().Add(limit)
	if ends, bounded := c.dialing.Deadline(); bounded && ends.Before(most) && !closed.Is(c.first) {
		most = ends
	}
	return context.WithDeadline(ctx, most)
}

// attemptTimeout returns the bound for the next attempt.
func (c *mqttConn) attemptTimeout() time.Duration {
	if c.servers.Len() == 1 {
		return connectTimeout
	}
	return min(connectTimeout, firstTimeout<<min(c.servers.Silence()/4, 8))
}

// connect makes one connection and reads from it until it is lost, or given up because it is
// to be replaced at once. The error says why there was no connection.
func (c *mqttConn) connect(ctx context.Context) (replaced bool, err error) {
	l, err := c.open(ctx)
	if err != nil {
		return false, err
	}
	served := make(chan struct{})
	go func() {
		defer close(served)
		defer l.client.Disconnect()
		if err = c.establish(ctx, l); err == nil {
			replaced = c.serve(l)
		}
	}()
	l.client.Run()
	<-served
	c.conclude(l)
	return replaced, err
}

// open connects to a broker that takes requests, up to its CONNACK. The error says why there is no
// connection.
func (c *mqttConn) open(ctx context.Context) (l *link, err error) {
	attempt, cancel := c.within(ctx, c.attemptTimeout())
	defer cancel()
	var connack *paho.Connack
	defer func() {
		if connack == nil && attempt.Err() != nil {
			c.servers.TimedOut()
		}
	}()
	c.events.Trying(c.server().String())
	c.servers.Silent() // unless it answers
	refusals, permanent := c.refusals, c.permanent
	c.refusals, c.permanent, c.referral = 0, nil, nil // unless this attempt is refused too
	password, token, err := c.options.secrets()
	if err != nil {
		return nil, err
	}
	l = c.newLink(token)
	if err := l.dial(attempt); err != nil {
		return nil, err
	}
	connect := c.connectPacket(password, token)
	if l.will != nil {
		l.will.write(connect)
	}
	if connack, err = l.client.Connect(attempt, connect); connack != nil {
		c.servers.Answered()
	} else {
		c.unanswered, c.gaveUp = min(c.unanswered+1, maxUnanswered), time.Now()
	}
	switch {
	case err == nil:
		return l, nil
	case connack != nil:
		err = c.refusedWith(l.will, connack)
	case l.will != nil && attempt.Err() == nil && l.client.CloseCause() == nil: // it need not say why [MQTT-3.1.4-2]
		err = fmt.Errorf("%w (the connection was to have a Will; if this broker takes none, turn off InstantFailover)", err)
	}
	if c.isPermanent(err) {
		c.refusals, c.permanent = refusals+1, err
	} else if errors.Is(err, ErrUseAnotherServer) {
		c.refusals, c.permanent, c.referral = refusals+1, permanent, err
	}
	return nil, err
}

// establish makes a connection ready for requests, while packets are read from it. The error says why
// it does not succeed.
func (c *mqttConn) establish(ctx context.Context, l *link) error {
	attempt, cancel := c.within(ctx, subscribeTimeout)
	defer cancel()
	if err := l.subscribe(attempt); err != nil {
		return err
	}
	if err := c.established(l); err != nil {
		return err
	}
	c.concluded(l.will, willResult{lost: l.down, silence: l.client.Silence})
	c.logConnected()
	return nil
}

// conclude ends a connection that was lost or that disconnect has ended.
func (c *mqttConn) conclude(l *link) {
	l.client.Disconnect() // or waits for the one under way
	c.mu.Lock()
	cause := l.cause
	c.mu.Unlock()
	if errors.Is(cause, ErrUseAnotherServer) {
		c.referral = cause
	}
	if ended := (*ConnectionError)(nil); !errors.As(cause, &ended) {
		c.servers.Silent()
		if l.client.CloseCause() != nil { // this client ended it, because the server did not answer
			c.servers.TimedOut()
		}
	}
}

// serve sends the requests of a connection until it is lost or, as serve then reports, to be replaced.
func (c *mqttConn) serve(l *link) (replaced bool) {
	var patience, check <-chan time.Time
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
			if l.hasLeft() {
				return true
			}
			l.send()
		case <-check:
			l.showToken(c.options.TokenFile)
		case <-c.replace:
			if patience == nil && c.outdated(l.will) {
				l.leave()
				patience = time.After(leaveTimeout)
			}
		case <-patience:
			return true
		}
	}
}

// server returns the broker of the present attempt or connection. Only run may call it.
func (c *mqttConn) server() *url.URL { return c.servers.Server() }

// isPermanent reports whether an attempt to connect failed because of a refusal that the next attempt
// would meet again.
//
// Only the first connection can be refused permanently: then the setup is wrong. A broker that
// accepted this client once refuses it for reasons that pass: a directory that is down, access
// rules or files that change. Ending the client for them would end its elections.
func (c *mqttConn) isPermanent(err error) bool {
	var refused *ConnectionError
	return errors.As(err, &refused) && reasons[int(refused.Code)].lasts && !closed.Is(c.first)
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

// failed notes why there is no connection.
func (c *mqttConn) failed(err error) {
	c.mu.Lock()
	c.last = err
	if !closed.Is(c.tried) {
		close(c.tried)
	}
	c.mu.Unlock()
	c.events.Failed(err)
	// Otherwise the client was closed during the attempt, or Dial returns the error.
	if c.life.Err() == nil && c.refusal() == nil {
		c.logFailure(err)
	}
}

// established makes l the present connection, unless it is lost already.
func (c *mqttConn) established(l *link) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.life.Err() != nil {
		return context.Cause(c.life)
	}
	if closed.Is(l.down) {
		return cmp.Or(l.client.CloseCause(), l.cause)
	}
	c.events.Up() // a caller with a reply must see Connected
	c.link, c.last = l, nil
	if !closed.Is(c.first) {
		close(c.first)
	}
	signal(l.wake) // for what waits in the queue
	return nil
}

// lost ends a connection. It is called first with the broker's reason, if there is one. A tenure may end
// with the connection, because the broker releases its lease then. So Down does not wait for the goroutine
// that connects.
func (c *mqttConn) lost(l *link, disconnect *packets.Disconnect) {
	if disconnect != nil && disconnect.ReasonCode == packets.DisconnectSessionTakenOver && !c.wasOwnConnect() {
		c.terminate(ErrSessionTakenOver)
	}
	cause, why := errConnectionLost, error(nil)
	if disconnect != nil {
		why = &ConnectionError{true, disconnect.ReasonCode, disconnect.Properties.ReasonString,
			disconnect.Properties.ServerReference}
	} else if !closed.Is(l.down) {
		why = l.client.CloseCause()
	}
	if why != nil {
		cause = fmt.Errorf("%w: %w", cause, why)
		c.logger.Warn("the connection ends", "error", cause)
	}
	c.mu.Lock()
	if disconnect == nil && l.leaving {
		cause = errConnectionReplaced
	}
	c.dropLocked(l, cause)
	c.mu.Unlock()
}

// wasOwnConnect reports whether an own attempt, which got no answer, may have taken the connection over: its
// CONNECT may be handled late. It counts each attempt once, so two programs with one client id end each other all
// the same.
func (c *mqttConn) wasOwnConnect() bool {
	if c.unanswered == 0 || time.Since(c.gaveUp) >= lateConnect {
		return false
	}
	c.unanswered--
	return true
}

var (
	errConnectionLost     = errors.New("the connection was lost")
	errConnectionReplaced = errors.New("the connection is replaced by one with another Will")
)

// dropLocked marks a connection as lost, unless it is, and fails at once every request that it took.
func (c *mqttConn) dropLocked(l *link, cause error) {
	if closed.Is(l.down) {
		return
	}
	close(l.down)
	l.cause = cause
	if c.link == l {
		c.link, c.last = nil, cause
		c.events.Down(cause)
	}
	for _, call := range l.pending {
		l.takeLocked(call)
		call.end(storeconn.Reply{}, unknown(cause))
	}
	c.failQueuedLocked(func(call *call) error {
		if closed.Is(call.request.Binding.Connection) {
			return notSent(errBoundConnection)
		}
		return nil
	})
}

// Probe implements Conn.
func (c *mqttConn) Probe(within time.Duration) {
	c.mu.Lock()
	l := c.link
	c.mu.Unlock()
	if l != nil {
		l.client.Probe(max(within, minProbe))
	}
}

// awaitFirst waits for the first connection. The error begins with why there was none, if that is known.
func (c *mqttConn) awaitFirst(ctx context.Context) error {
	select {
	case <-c.first:
		return nil
	case <-c.life.Done():
		return context.Cause(c.life)
	case <-ctx.Done():
	}
	if errors.Is(ctx.Err(), context.DeadlineExceeded) {
		select { // the first attempt ends with ctx
		case <-c.first:
			return nil
		case <-c.tried:
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.unconnectedLocked(context.Cause(ctx))
}

// unconnectedLocked puts why there is no connection, if that is known, before the cause for which a wait
// for one is given up.
func (c *mqttConn) unconnectedLocked(cause error) error {
	if c.last != nil {
		return fmt.Errorf("%w (%w)", c.last, cause)
	}
	return cause
}

// logFailure logs why there is no connection, unless that was logged a moment ago.
func (c *mqttConn) logFailure(err error) {
	c.failures++
	if !c.logged.Due(err.Error(), time.Now()) {
		return
	}
	level := slog.LevelWarn
	if errors.Is(err, ErrUseAnotherServer) {
		level = slog.LevelInfo // the other servers may accept the client
	}
	c.failureLog.Log(context.Background(), level, "cannot connect",
		"broker", c.server().Host, "attempt", c.failures, "error", err)
}

// logConnected logs a connection that follows failures, to the logger that has those.
func (c *mqttConn) logConnected() {
	if c.failures > 0 {
		c.failureLog.Info("connected", "broker", c.server().Host, "failed_attempts", c.failures)
	}
	c.failures, c.failureLog = 0, c.logger
	c.logged.Reset()
}
