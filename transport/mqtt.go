package transport

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/eclipse/paho.golang/packets"
	"github.com/eclipse/paho.golang/paho"

	"github.com/tenurelock/tenure/internal/protocol"
)

// correlationLength is that of a UUID: deployed peers refuse another.
const correlationLength = 16

// mqttConn is a Conn over MQTT 5.
//
// One goroutine, run, connects, sends, and connects again; it ends with Close.
// paho's callbacks (lost, received, acknowledged) only hand over, because paho
// waits for them.
//
// It drives paho's Client itself rather than through autopaho, which has no way
// to send without waiting for the PUBACK, and none to give up when another
// connection takes the client id over.
type mqttConn struct {
	servers []*url.URL
	options Options
	logger  *slog.Logger
	events  Events
	stop    context.CancelFunc
	stopped chan struct{} // closed when run has ended; nil before Start

	dial      func(context.Context, *url.URL) (*netConn, error)
	announcer *announcer // nil: nobody is to be told of the status

	// Of the goroutine run.
	turn     int // index of the server to connect to
	refusals int // attempts in a row that met a refusal for good

	mu    sync.Mutex
	link  *link         // the present connection; nil while down
	ready chan struct{} // closed while link is set
	ended chan struct{} // closed once there will be no more connections
	cause error         // why; set before ended is closed
	last  error         // why the last attempt to connect failed
	will  *lastWill     // for the next connection; nil: none

	present ConnectionStatus

	replace chan struct{} // holds one item when the present connection may have to be replaced
}

// exchange is one request that awaits its reply.
type exchange struct {
	ctx         context.Context
	correlation string
	publish     *paho.Publish
	result      chan result // room for one; whoever takes the exchange out of pending sends
	accepted    bool        // the broker has acknowledged it; guarded by mqttConn.mu
}

type result struct {
	reply Reply
	err   error
}

func newMQTTConn(servers []*url.URL, options Options) *mqttConn {
	c := &mqttConn{
		servers: servers,
		options: options,
		logger:  options.Logger.With("client", options.ClientID),
		ready:   make(chan struct{}),
		ended:   make(chan struct{}),
		replace: make(chan struct{}, 1),
	}
	c.dial = c.dialNet
	return c
}

func (c *mqttConn) ClientID() string { return c.options.ClientID }

// Start implements Conn.
func (c *mqttConn) Start(events Events) {
	ctx, stop := context.WithCancel(context.Background())
	c.events, c.stop, c.stopped = events, stop, make(chan struct{})
	if c.options.OnConnectionChange != nil {
		c.announcer = newAnnouncer(c.options.OnConnectionChange)
	}
	go func() {
		defer close(c.stopped)
		c.run(ctx)
	}()
}

// Close implements Conn.
func (c *mqttConn) Close() error {
	c.terminate(ErrClosed)
	if c.stopped != nil {
		<-c.stopped
	}
	if c.announcer != nil {
		<-c.announcer.done
	}
	return nil
}

// terminate makes cause the end of the connection, for good, unless it had
// ended before.
func (c *mqttConn) terminate(cause error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.cause != nil {
		return
	}
	c.cause = cause
	close(c.ended)
	if c.link != nil {
		c.dropLocked(c.link, cause)
	}
	c.changedLocked(Ended, cause)
	if c.stop != nil {
		c.stop()
	}
}

// awaitFirst waits until the first connection is ready.
func (c *mqttConn) awaitFirst(ctx context.Context) error {
	c.mu.Lock()
	ready := c.ready
	c.mu.Unlock()
	select {
	case <-ready:
		return nil
	case <-c.ended:
		return c.cause
	case <-ctx.Done():
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return errors.Join(context.Cause(ctx), c.last)
}

// failed notes why there is no connection.
func (c *mqttConn) failed(err error) {
	c.logger.Warn("cannot connect", "broker", c.server().Host, "error", err)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.last = err
	c.changedLocked(Connecting, err)
}

// established makes a connection the present one, unless it was lost already.
func (c *mqttConn) established(l *link) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.cause != nil || isClosed(l.down) {
		return false
	}
	c.link, c.last = l, nil
	c.changedLocked(Connected, nil)
	close(c.ready)
	return true
}

// lost ends a connection. paho calls it first with the server's reason.
func (c *mqttConn) lost(l *link, disconnect *packets.Disconnect) {
	if disconnect != nil && disconnect.ReasonCode == packets.DisconnectSessionTakenOver {
		c.terminate(ErrSessionTakenOver)
	}
	cause := errConnectionLost
	if disconnect != nil {
		ended := &DisconnectError{Code: disconnect.ReasonCode}
		if disconnect.Properties != nil {
			ended.Reason = disconnect.Properties.ReasonString
		}
		cause = fmt.Errorf("%w: %w", cause, ended)
		c.logger.Warn("disconnected by the broker", "error", cause)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if disconnect == nil && l.leaving {
		cause = errConnectionReplaced
	}
	c.dropLocked(l, cause)
}

var (
	errConnectionLost     = errors.New("the connection was lost")
	errConnectionReplaced = errors.New("the connection is replaced by one with another last will")
)

// dropLocked fails at once everything that waits on a connection.
func (c *mqttConn) dropLocked(l *link, cause error) {
	if isClosed(l.down) {
		return
	}
	close(l.down)
	if c.link == l {
		c.link = nil
		if !l.leaving {
			c.ready = make(chan struct{})
		}
		c.changedLocked(Connecting, cause)
	}
	for correlation, e := range l.pending {
		delete(l.pending, correlation)
		e.result <- result{err: unknown(cause)}
	}
}

// leave lets nothing new be sent over a connection.
func (c *mqttConn) leave(l *link) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.link != l {
		return
	}
	l.leaving, c.ready = true, make(chan struct{})
	l.signalQuiet()
}

// signalQuiet is called with the lock held.
func (l *link) signalQuiet() {
	if l.leaving && len(l.pending) == 0 {
		select {
		case l.quiet <- struct{}{}:
		default:
		}
	}
}

// RoundTrip implements Conn.
func (c *mqttConn) RoundTrip(ctx context.Context, request Request) (Reply, error) {
	e := c.newExchange(ctx, request)
	l, err := c.awaitLink(ctx, e)
	if err != nil {
		return Reply{}, err
	}
	e.publish.Properties.MessageExpiry = messageExpiry(ctx)
	select {
	case l.outgoing <- e:
	case <-l.down:
		return Reply{}, notSent(errConnectionLost)
	case <-ctx.Done():
		c.take(e.correlation)
		return Reply{}, notSent(context.Cause(ctx))
	}
	select {
	case outcome := <-e.result:
		return outcome.reply, outcome.err
	case <-ctx.Done():
	}
	if c.take(e.correlation) == nil {
		outcome := <-e.result // it came at the same moment
		return outcome.reply, outcome.err
	}
	return Reply{}, unknown(c.silence(l, e, context.Cause(ctx)))
}

// silence explains why no reply came in time.
func (c *mqttConn) silence(l *link, e *exchange, cause error) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if e.accepted && !l.answered && errors.Is(cause, context.DeadlineExceeded) {
		return fmt.Errorf("%w: the broker took the request, but it seems that %w", cause, ErrNoStore)
	}
	return cause
}

// awaitLink waits for a connection that is ready, and makes it expect the reply to an
// exchange.
func (c *mqttConn) awaitLink(ctx context.Context, e *exchange) (*link, error) {
	for {
		c.mu.Lock()
		l, ready, cause, last := c.link, c.ready, c.cause, c.last
		usable := cause == nil && ctx.Err() == nil && l != nil && !l.leaving
		if usable {
			l.pending[e.correlation] = e
		}
		c.mu.Unlock()
		switch {
		case usable:
			return l, nil
		case cause != nil:
			return nil, notSent(cause)
		case ctx.Err() != nil:
			return nil, notSent(errors.Join(context.Cause(ctx), last))
		}
		select {
		case <-ready:
		case <-c.ended:
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

func (c *mqttConn) newExchange(ctx context.Context, request Request) *exchange {
	correlation := newCorrelation()
	return &exchange{
		ctx:         ctx,
		correlation: string(correlation),
		result:      make(chan result, 1),
		publish: &paho.Publish{
			QoS:     1,
			Topic:   protocol.InvokeTopic,
			Payload: request.Payload,
			Properties: &paho.PublishProperties{
				ResponseTopic:   protocol.ResponseTopic(c.options.ClientID),
				CorrelationData: correlation,
				ContentType:     protocol.ContentType,
				User:            userProperties(c.options.ClientID, request),
			},
		},
	}
}

func userProperties(clientID string, request Request) paho.UserProperties {
	properties := make(paho.UserProperties, 0, 5)
	properties.Add(protocol.PropertySourceID, clientID)
	properties.Add(protocol.PropertyProtocolVersion, protocol.ProtocolVersion)
	properties.Add(protocol.PropertyPartition, clientID)
	if request.Timestamp != "" {
		properties.Add(protocol.PropertyTimestamp, request.Timestamp)
	}
	if request.FencingToken != "" {
		properties.Add(protocol.PropertyFencingToken, request.FencingToken)
	}
	return properties
}

// messageExpiry is what is left of ctx in whole seconds, rounded up, so that a
// broker drops a request which its sender has given up. Nil: ctx has no end.
func messageExpiry(ctx context.Context) *uint32 {
	deadline, ok := ctx.Deadline()
	if !ok {
		return nil
	}
	seconds := math.Ceil(time.Until(deadline).Seconds())
	expiry := uint32(min(max(seconds, 1), math.MaxUint32))
	return &expiry
}

// take removes an exchange that still waits, and returns nil if there is none.
func (c *mqttConn) take(correlation string) *exchange {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.link == nil {
		return nil
	}
	e := c.link.pending[correlation]
	delete(c.link.pending, correlation)
	c.link.signalQuiet()
	return e
}

// finish gives a waiting exchange its result, and reports false if there is none.
func (c *mqttConn) finish(correlation string, outcome result) bool {
	e := c.take(correlation)
	if e != nil {
		e.result <- outcome
	}
	return e != nil
}

// accept notes that the broker took a request.
func (c *mqttConn) accept(correlation string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.link == nil {
		return
	}
	if e := c.link.pending[correlation]; e != nil {
		e.accepted = true
	}
}

// answer gives a waiting exchange the store's reply, and reports false if there is none.
func (c *mqttConn) answer(correlation string, outcome result) bool {
	c.mu.Lock()
	if c.link != nil {
		c.link.answered = true
	}
	c.mu.Unlock()
	return c.finish(correlation, outcome)
}

// acknowledged sees each PUBACK. A bad one says that the broker has not passed the
// request on.
func (c *mqttConn) acknowledged(correlation string, ack *packets.Puback) {
	const failure = 0x80 // [MQTT-4.13.1]: codes from here on are errors
	switch {
	case ack.ReasonCode == packets.PubackNoMatchingSubscribers:
		c.finish(correlation, result{err: notSent(ErrNoStore)})
	case ack.ReasonCode >= failure:
		rejected := &RejectedError{Code: int(ack.ReasonCode)}
		if ack.Properties != nil {
			rejected.Reason = ack.Properties.ReasonString
		}
		c.finish(correlation, result{err: rejected})
	default:
		c.accept(correlation)
	}
}

// received sees each PUBLISH and hands it over. A reply whose correlation nobody waits
// for came too late or twice, or was forged.
func (c *mqttConn) received(event paho.PublishReceived) (bool, error) {
	message := event.Packet
	clientID, key, notified := protocol.ParseNotifyTopic(message.Topic)
	switch {
	case notified && clientID == c.options.ClientID:
		c.events.Notify(Notification{
			Key:       key,
			Payload:   message.Payload,
			Timestamp: userProperty(message, protocol.PropertyTimestamp),
		})
	case notified:
		c.ignore(ForeignNotification, message)
	case strings.HasPrefix(message.Topic, protocol.ReservedPrefix):
		c.ignore(MalformedNotification, message)
	case message.Topic != protocol.ResponseTopic(c.options.ClientID):
		c.ignore(ForeignMessage, message)
	case message.Properties == nil || !c.answer(string(message.Properties.CorrelationData), readReply(message)):
		c.ignore(UnexpectedReply, message)
	}
	return true, nil
}

func (c *mqttConn) ignore(why Ignored, message *paho.Publish) {
	c.events.Ignored(why)
	c.logger.Debug("ignored a message", "topic", message.Topic)
}

// readReply turns a status of 400 or more into an error. Stores that send no
// status are believed.
func readReply(message *paho.Publish) result {
	status, err := strconv.Atoi(userProperty(message, protocol.PropertyStatus))
	if err == nil && status >= 400 {
		return result{err: &RejectedError{Code: status, Reason: userProperty(message, protocol.PropertyStatusMessage)}}
	}
	return result{reply: Reply{
		Payload:   message.Payload,
		Timestamp: userProperty(message, protocol.PropertyTimestamp),
	}}
}

func userProperty(message *paho.Publish, name string) string {
	if message.Properties == nil {
		return ""
	}
	return message.Properties.User.Get(name)
}
