package transport

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"sync"
	"time"

	"github.com/cenkalti/backoff/v4"
	"github.com/eclipse/paho.golang/packets"
	"github.com/eclipse/paho.golang/paho"

	"github.com/tenurelock/tenure/internal/frame"
	"github.com/tenurelock/tenure/internal/mqttnet"
	"github.com/tenurelock/tenure/internal/protocol"
)

const (
	// receiveMaximum is how many unacknowledged messages the broker may send us.
	// paho reserves a channel of this length for each connection.
	receiveMaximum = 1000
	// connectTimeout bounds one attempt, from the first packet to CONNACK.
	connectTimeout = 10 * time.Second
	// subscribeTimeout bounds one SUBSCRIBE.
	subscribeTimeout = 5 * time.Second
	// subscribeRetry is the pause after a SUBSCRIBE that failed.
	subscribeRetry = 50 * time.Millisecond
	// closeTimeout bounds the farewell to a broker that no longer reads.
	closeTimeout = time.Second
	// leaveTimeout is how long requests under way have to finish before a connection
	// is replaced.
	leaveTimeout = time.Second
	// settled is how long a connection must have lasted for the backoff to
	// begin anew. A broker that accepts and hangs up must not be hammered.
	settled = 5 * time.Second
)

// link is one connection, from CONNACK to its loss.
type link struct {
	down  chan struct{} // closed when lost
	slots *window       // has one in use for each request that the broker has not acknowledged
	wake  chan struct{} // holds one item when there may be something in the queue
	quiet chan struct{} // holds one item once nothing is pending on a link that is leaving

	maxPacket int // bytes that the broker takes in one packet

	net    *mqttnet.Conn  // what it goes over; nil in tests that need none
	probes sync.WaitGroup // the goroutine that finds out whether it still works, if any

	// Guarded by mqttConn.mu.
	store    string // the identity in the latest reply
	pending  map[correlation]*exchange
	urgent   queue // to be sent first, but for those that are no longer pending
	queue    queue // to be sent after these, likewise
	leaving  bool  // nothing new may be sent
	answered bool  // a reply has come
	probing  bool  // a probe is under way
}

func newLink() *link {
	return &link{
		down:    make(chan struct{}),
		wake:    make(chan struct{}, 1),
		quiet:   make(chan struct{}, 1),
		pending: make(map[correlation]*exchange),
	}
}

// obey notes what the broker has said of its limits.
func (l *link) obey(connack *paho.Connack) {
	l.maxPacket, l.slots = maxPacket(connack), newWindow(receiveMaximumOf(connack))
}

// freeSlot lets another request be sent: one was acknowledged, or will never be sent.
func (l *link) freeSlot() { l.slots.free() }

// pushLocked puts an exchange into the queue, urgent ones before all others.
func (l *link) pushLocked(e *exchange) {
	if e.request.Urgent {
		l.urgent.push(e)
	} else {
		l.queue.push(e)
	}
}

// popLocked returns nil if there is nothing left.
func (l *link) popLocked() *exchange {
	if e := l.urgent.pop(); e != nil {
		return e
	}
	return l.queue.pop()
}

// identityLocked returns what a reply says of the store as a string. It is the same one in nearly
// every reply, which costs no memory then.
func (l *link) identityLocked(store []byte) string {
	if l.store != string(store) {
		l.store = string(store)
	}
	return l.store
}

// takeLocked removes an exchange that still waits, and returns nil if there is none.
func (l *link) takeLocked(id correlation) *exchange {
	e := l.pending[id]
	delete(l.pending, id)
	l.signalQuietLocked()
	return e
}

func (l *link) signalQuietLocked() {
	if l.leaving && len(l.pending) == 0 {
		select {
		case l.quiet <- struct{}{}:
		default:
		}
	}
}

// queue is first in, first out, and keeps its memory.
type queue struct {
	exchanges []*exchange
	first     int
}

func (q *queue) push(e *exchange) {
	if q.first > len(q.exchanges)/2 {
		q.exchanges = slices.Delete(q.exchanges, 0, q.first)
		q.first = 0
	}
	q.exchanges = append(q.exchanges, e)
}

// pop returns nil if there is nothing left.
func (q *queue) pop() *exchange {
	if q.first == len(q.exchanges) {
		q.exchanges, q.first = q.exchanges[:0], 0
		return nil
	}
	e := q.exchanges[q.first]
	q.exchanges[q.first] = nil
	q.first++
	return e
}

// run connects, again and again, until ctx ends, or every broker has refused the first
// connection for good.
func (c *mqttConn) run(ctx context.Context) {
	policy := backoff.NewExponentialBackOff(
		backoff.WithInitialInterval(c.options.ReconnectMin),
		backoff.WithMaxInterval(c.options.ReconnectMax),
		backoff.WithMaxElapsedTime(0), // never give up
	)
	pause := time.NewTimer(0)
	defer pause.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-pause.C:
		}
		began := time.Now()
		replaced, err := c.connect(ctx)
		if err != nil {
			c.failed(err)
		}
		if c.refusals >= len(c.servers) {
			c.terminate(err)
			return
		}
		if !replaced {
			c.turn = (c.turn + 1) % len(c.servers)
		}
		if time.Since(began) > settled {
			policy.Reset()
		}
		if replaced {
			pause.Reset(0)
		} else {
			pause.Reset(policy.NextBackOff())
		}
	}
}

// connect makes one connection and serves it until it is lost, or given up because it
// is to be replaced at once. The error says why it did not come about.
func (c *mqttConn) connect(ctx context.Context) (replaced bool, err error) {
	attempt, cancel := context.WithTimeout(ctx, connectTimeout)
	defer cancel()
	c.trying()
	refusals := c.refusals
	c.refusals = 0 // unless this is another one
	secrets, err := c.options.secrets()
	if err != nil {
		return false, err
	}
	conn, err := c.dial(attempt, c.server())
	if err != nil {
		return false, err
	}
	guard := time.AfterFunc(time.Hour, conn.Abort)
	guard.Stop() // until it is to end
	defer guard.Stop()
	// Close does not wait for a write to a peer that no longer reads.
	defer context.AfterFunc(ctx, func() { guard.Reset(closeTimeout) })()
	l := newLink()
	l.net = conn
	packet, will := c.connectPacket(secrets), c.nextWill()
	carried := will
	if will != nil && will.unanswered {
		carried = nil
	}
	if carried != nil {
		carried.write(packet, conn)
	}
	authentication := &authentication{token: secrets.token}
	client := paho.NewClient(paho.ClientConfig{
		ClientID:          c.options.ClientID,
		Conn:              conn,
		AuthHandler:       authentication,
		PingHandler:       &pinger{paho.NewDefaultPinger(), packet.KeepAlive},
		Session:           newSession(l, c),
		OnPublishReceived: []func(paho.PublishReceived) (bool, error){c.receiver(l)},
	})
	connack, err := client.Connect(attempt, packet)
	if err != nil {
		err = cmp.Or(closeCause(conn), err)
		err = c.notConnected(will, carried, conn.Incomplete(), connack, err)
		if c.isForGood(will, err) {
			c.refusals = refusals + 1
		}
		return false, err
	}
	defer func() {
		// Whether it was lost or is to end now: say farewell, but do not wait
		// long for a peer that does not read it.
		guard.Reset(closeTimeout)
		_ = client.Disconnect(&paho.Disconnect{})
		<-client.Done()
		c.lost(l, nil)
		l.probes.Wait() // none begins on a link that is down
	}()
	if err := usable(connack); err != nil {
		return false, err
	}
	l.obey(connack)
	if err := c.subscribe(ctx, client, l); err != nil {
		return false, cmp.Or(closeCause(conn), err)
	}
	send := func() { c.sendPlainly(client, l) }
	if !c.options.PlainPaho {
		send = c.takeShortCut(l, conn)
	}
	// Before anybody can send: who has an answer must find the client connected.
	c.events.Up()
	defer c.events.Down()
	if !c.established(l) {
		return false, closeCause(conn)
	}
	c.logger.Debug("connected", "broker", c.server().Host)
	defer c.logger.Debug("disconnected", "broker", c.server().Host)
	if carried != nil {
		c.concluded(carried, standing{lost: l.down, silence: silence(packet.KeepAlive, connack)})
	} else {
		c.connectedWithout(will)
	}
	return c.serve(ctx, l, carried, send, func() { c.showToken(conn, authentication) }), nil
}

// server returns the one to connect to, or that is connected. Only run may call it.
func (c *mqttConn) server() *url.URL { return c.servers[c.turn] }

// trying notes which broker the next attempt goes to.
func (c *mqttConn) trying() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.present.Broker = c.server().String()
}

// dial opens a connection to server and adds TLS and WebSocket where its address asks.
func (c *mqttConn) dial(ctx context.Context, server *url.URL) (*mqttnet.Conn, error) {
	var config *tls.Config
	if mqttnet.IsEncrypted(server) {
		var err error
		if config, err = c.options.tlsConfig(server); err != nil {
			return nil, err
		}
	}
	return mqttnet.Dial(ctx, server, config, mqttnet.Options{
		MaxPacket:    c.options.MaxPacketSize,
		WriteTimeout: c.options.KeepAlive,
		Dialer:       c.options.Dialer,
	})
}

// closeCause returns why this client closed a connection, or nil if it did not.
func closeCause(conn *mqttnet.Conn) error {
	cause := conn.CloseCause()
	var tooLarge *frame.TooLargeError
	if errors.As(cause, &tooLarge) {
		return fmt.Errorf("%w: %w", ErrPacketTooLarge, cause)
	}
	return cause
}

// isForGood reports whether an attempt, while waits is the will that waits, if any, failed
// because of a refusal that the next one would meet again.
//
// Only the first connection can be refused for good: then a program was set up wrongly,
// and should hear of it. A broker that took this client once refuses it for reasons that
// pass: a directory that is down, access rules that are being replaced, files that
// change. Ending the client for them would end every election that runs on it.
func (c *mqttConn) isForGood(waits *lastWill, err error) bool {
	var refused *ConnectError
	if waits != nil || !errors.As(err, &refused) || !refused.permanent() {
		return false // the will may be why, even where it was not carried: let it be decided first
	}
	return c.status().Connections == 0
}

func (c *mqttConn) connectPacket(secrets secrets) *paho.Connect {
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
	if len(secrets.password) > 0 {
		connect.PasswordFlag, connect.Password = true, secrets.password
	}
	if len(secrets.token) > 0 {
		connect.Properties.AuthMethod, connect.Properties.AuthData = methodServiceAccount, secrets.token
	}
	return connect
}

// serve sends the requests of a connection that carries will, or none, until it is lost
// or, as it then reports, to be replaced. It calls send when there is something in the
// queue, and showToken from time to time.
func (c *mqttConn) serve(ctx context.Context, l *link, will *lastWill, send, showToken func()) (replaced bool) {
	replace, patience := c.replace, (<-chan time.Time)(nil)
	var check <-chan time.Time
	if c.options.TokenFile != "" {
		ticker := time.NewTicker(tokenCheck)
		defer ticker.Stop()
		check = ticker.C
	}
	for {
		select {
		case <-ctx.Done():
			return false
		case <-l.down:
			return false
		case <-l.wake:
			send()
		case <-check:
			showToken()
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

// subscribe asks for replies and notifications, and repeats that until it is
// granted: brokers may refuse for a moment (0x91, packet id in use).
func (c *mqttConn) subscribe(ctx context.Context, client *paho.Client, l *link) error {
	subscriptions := &paho.Subscribe{Subscriptions: []paho.SubscribeOptions{
		{Topic: c.replies, QoS: 1},
		{Topic: protocol.NotifyFilter(c.options.ClientID), QoS: 1},
	}}
	pause := time.NewTimer(0)
	defer pause.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-l.down:
			return nil
		case <-pause.C:
		}
		attempt, cancel := context.WithTimeout(ctx, subscribeTimeout)
		suback, err := client.Subscribe(attempt, subscriptions)
		cancel()
		if err == nil {
			return nil
		}
		if suback == nil { // no answer: begin with a new connection
			return fmt.Errorf("subscribe: %w", err)
		}
		c.failed(fmt.Errorf("subscribe to %q and %q: %w (reason codes %#x)",
			subscriptions.Subscriptions[0].Topic, subscriptions.Subscriptions[1].Topic, err, suback.Reasons))
		pause.Reset(subscribeRetry)
	}
}

// ConnectError is the broker's refusal of a connection.
type ConnectError struct {
	// Code is the reason code of CONNACK [MQTT-3.2.2.2].
	Code byte
	// Reason is the broker's own text, possibly empty.
	Reason string
}

// Error names the code and what to do about it, where that is known.
func (e *ConnectError) Error() string {
	text := fmt.Sprintf("the broker refused the connection (MQTT reason code 0x%02X)", e.Code)
	switch e.Code {
	case packets.ConnackBadUsernameOrPassword, packets.ConnackNotAuthorized:
		text += "; check user name and password, and what the broker allows this client id"
	case packets.ConnackBadAuthenticationMethod:
		text += "; it takes no " + methodServiceAccount + ": authenticate in another way than with a token"
	case codeServerUnavailable, codeServerBusy, codeRateExceeded:
		text += "; it is busy"
	case codeQuotaExceeded:
		text += "; a quota of it is used up"
	case packets.ConnackUnsupportedProtocolVersion:
		text += "; it must speak MQTT 5"
	case packets.ConnackInvalidClientID:
		text += "; choose another client id"
	}
	if e.Reason != "" {
		text += ": " + e.Reason
	}
	return text
}

// Is matches ErrNotAuthorized, ErrQuotaExceeded, ErrPacketTooLarge and ErrServerBusy.
func (e *ConnectError) Is(target error) bool { return isReason(int(e.Code), target) }

// permanent reports whether another attempt would meet the same refusal, as far as it can
// be known of a broker that never took this client.
func (e *ConnectError) permanent() bool {
	switch e.Code {
	case packets.ConnackUnsupportedProtocolVersion, packets.ConnackInvalidClientID,
		packets.ConnackBadUsernameOrPassword, packets.ConnackNotAuthorized,
		packets.ConnackBanned, packets.ConnackBadAuthenticationMethod:
		return true
	}
	return false
}

// temporary reports whether the refusal says nothing of what was in the CONNECT packet.
func (e *ConnectError) temporary() bool {
	switch e.Code {
	case packets.ConnackServerUnavailable, packets.ConnackServerBusy, packets.ConnackConnectionRateExceeded:
		return true
	}
	return false
}

func refusedConnect(connack *paho.Connack) *ConnectError {
	refused := &ConnectError{Code: connack.ReasonCode}
	if connack.Properties != nil {
		refused.Reason = connack.Properties.ReasonString
	}
	return refused
}
