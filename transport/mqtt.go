package transport

import (
	"bytes"
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

	"github.com/tenurelock/tenure/internal/frame"
	"github.com/tenurelock/tenure/internal/protocol"
)

// mqttConn is a Conn over MQTT 5.
//
// One goroutine, run, connects, sends, and connects again; it ends with Close.
// What is called where the connection is read (lost, deliver, acknowledged) only hands
// over, because nothing else is read meanwhile.
//
// It drives paho's Client itself rather than through autopaho, which has no way
// to send without waiting for the PUBACK, and none to give up when another
// connection takes the client id over.
type mqttConn struct {
	servers []*url.URL
	options Options
	logger  *slog.Logger
	replies string // the topic of replies
	events  Events
	stop    context.CancelFunc
	stopped chan struct{} // closed when run has ended; nil before Start

	announcer *announcer // nil: nobody is to be told of the status

	// Of the goroutine run.
	turn     int // index of the server to connect to
	refusals int // attempts in a row that met a refusal for good, before the first connection

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
	request     Request
	correlation correlation

	done   chan struct{} // closed by whoever took the exchange out of pending
	result result        // set before

	// Guarded by mqttConn.mu.
	sent     bool // it may have reached the broker
	accepted bool // the broker has acknowledged it
}

// correlation is the correlation data of a request; deployed peers refuse another length.
type correlation [16]byte

type result struct {
	reply Reply
	err   error
}

func newExchange(ctx context.Context, request Request) *exchange {
	e := &exchange{ctx: ctx, request: request, done: make(chan struct{})}
	e.correlation.choose()
	return e
}

// end gives an exchange its result. Only who took it out of pending may call it.
func (e *exchange) end(outcome result) {
	e.result = outcome
	close(e.done)
}

func newMQTTConn(servers []*url.URL, options Options) *mqttConn {
	c := &mqttConn{
		servers: servers,
		options: options,
		logger:  options.Logger.With("client", options.ClientID),
		replies: protocol.ResponseTopic(options.ClientID),
		ready:   make(chan struct{}),
		ended:   make(chan struct{}),
		replace: make(chan struct{}, 1),
	}
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
	if c.setCause(cause) && c.events.Ended != nil {
		c.events.Ended(cause)
	}
}

// setCause reports whether the connection had not ended before.
func (c *mqttConn) setCause(cause error) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.cause != nil {
		return false
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
	return true
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
	return waitedInVain(context.Cause(ctx), c.last)
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
	if l.net != nil && l.net.CloseCause() != nil && !isClosed(l.down) {
		cause = fmt.Errorf("%w: %w", cause, closeCause(l.net))
		c.logger.Warn("disconnected from the broker", "error", cause)
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
		if e.sent {
			e.end(result{err: unknown(cause)})
		} else {
			e.end(result{err: notSent(cause)})
		}
	}
	l.urgent, l.queue = queue{}, queue{}
}

// leave lets nothing new be sent over a connection.
func (c *mqttConn) leave(l *link) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.link != l {
		return
	}
	l.leaving, c.ready = true, make(chan struct{})
	l.signalQuietLocked()
}

// RoundTrip implements Conn.
func (c *mqttConn) RoundTrip(ctx context.Context, request Request) (Reply, error) {
	e := newExchange(ctx, request)
	l, err := c.post(e)
	if err != nil {
		return Reply{}, err
	}
	select {
	case <-e.done:
		return e.result.reply, e.result.err
	case <-ctx.Done():
	}
	switch waiting, sent := c.abandonExchange(l, e); {
	case !waiting:
		<-e.done // it came at the same moment
		return e.result.reply, e.result.err
	case !sent:
		return Reply{}, notSent(context.Cause(ctx))
	}
	return Reply{}, unknown(c.silence(l, e, context.Cause(ctx)))
}

// post hands an exchange to a connection that is ready and to whose broker one more
// request may be under way [MQTT-4.9.0-2].
func (c *mqttConn) post(e *exchange) (*link, error) {
	for {
		if err := e.request.Binding.Err(); err != nil {
			return nil, err // rather than wait for a connection that cannot be the right one
		}
		l, err := c.awaitLink(e.ctx)
		if err != nil {
			return nil, err
		}
		// Again: l may be the next connection. That is ready only after the channel of the
		// lost one is closed, so this check misses nothing.
		if err := e.request.Binding.Err(); err != nil {
			return nil, err
		}
		switch {
		case l.slots.acquire(e.ctx, l.down, e.request.Urgent):
			if c.enqueue(l, e) {
				return l, nil
			}
			l.freeSlot()
		case e.ctx.Err() != nil && !isClosed(l.down):
			return nil, notSent(fmt.Errorf("%w: as many requests are under way as the broker takes (Receive Maximum %d)",
				context.Cause(e.ctx), l.slots.size))
		}
	}
}

// enqueue makes run send an exchange and expect the reply, unless the connection takes
// no more.
func (c *mqttConn) enqueue(l *link, e *exchange) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.link != l || l.leaving {
		return false
	}
	l.pending[e.correlation] = e
	l.pushLocked(e)
	select {
	case l.wake <- struct{}{}:
	default:
	}
	return true
}

// abandonExchange takes back an exchange whose caller leaves, and reports whether it was
// still waiting, and whether it was sent.
func (c *mqttConn) abandonExchange(l *link, e *exchange) (waiting, sent bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	waiting = l.takeLocked(e.correlation) != nil
	if waiting && !e.sent {
		l.freeSlot()
	}
	return waiting, e.sent
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

// waitedInVain returns the end of a wait for a connection: why there was none comes first, if
// that is known.
func waitedInVain(end, why error) error {
	if why == nil {
		return end
	}
	return fmt.Errorf("%w (%w)", why, end)
}

// awaitLink waits for a connection that is ready.
func (c *mqttConn) awaitLink(ctx context.Context) (*link, error) {
	for {
		c.mu.Lock()
		l, ready, cause, last := c.link, c.ready, c.cause, c.last
		c.mu.Unlock()
		switch {
		case cause != nil:
			return nil, notSent(cause)
		case ctx.Err() != nil:
			return nil, notSent(waitedInVain(context.Cause(ctx), last))
		case isClosed(ready):
			return l, nil
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

// requestProperties appends the user properties of a request.
func requestProperties(dst []frame.UserProperty, clientID string, request Request) []frame.UserProperty {
	dst = append(dst,
		frame.UserProperty{Name: protocol.PropertySourceID, Value: clientID},
		frame.UserProperty{Name: protocol.PropertyProtocolVersion, Value: protocol.ProtocolVersion},
		frame.UserProperty{Name: protocol.PropertyPartition, Value: clientID})
	if request.Timestamp != "" {
		dst = append(dst, frame.UserProperty{Name: protocol.PropertyTimestamp, Value: request.Timestamp})
	}
	if request.FencingToken != "" {
		dst = append(dst, frame.UserProperty{Name: protocol.PropertyFencingToken, Value: request.FencingToken})
	}
	if request.Binding.Store != "" {
		dst = append(dst, frame.UserProperty{Name: protocol.PropertyStore, Value: request.Binding.Store})
	}
	if request.Persist {
		dst = append(dst, frame.UserProperty{Name: protocol.PropertyPersistence, Value: "true"})
	}
	return dst
}

// messageExpiry is what is left of ctx in whole seconds, rounded up, so that a
// broker drops a request which its sender has given up. Zero: ctx has no end.
func messageExpiry(ctx context.Context) uint32 {
	deadline, ok := ctx.Deadline()
	if !ok {
		return 0
	}
	seconds := math.Ceil(time.Until(deadline).Seconds())
	return uint32(min(max(seconds, 1), math.MaxUint32))
}

// nextLocked takes the next exchange out of the queue whose caller still waits, writes its
// packet into m, and counts it as sent. It returns nil at the end of the queue.
func (c *mqttConn) nextLocked(l *link, m *frame.Message) *exchange {
	for {
		e := l.popLocked()
		switch {
		case e == nil:
			return nil
		case l.pending[e.correlation] == nil:
			continue // and its slot is free again
		}
		if err := c.write(l, e, m); err != nil {
			l.takeLocked(e.correlation)
			l.freeSlot()
			e.end(result{err: err})
			continue
		}
		e.sent = true
		return e
	}
}

// write makes the packet of a request, or says why there can be none.
func (c *mqttConn) write(l *link, e *exchange, m *frame.Message) error {
	if e.ctx.Err() != nil {
		return notSent(context.Cause(e.ctx))
	}
	*m = frame.Message{
		Topic:           protocol.InvokeTopic,
		QoS:             1,
		MessageExpiry:   messageExpiry(e.ctx),
		ContentType:     protocol.ContentType,
		ResponseTopic:   c.replies,
		CorrelationData: e.correlation[:],
		User:            requestProperties(m.User[:0], c.options.ClientID, e.request),
		Payload:         e.request.Payload,
	}
	// Nobody else looks, and the broker would end the connection [MQTT-3.2.2-15].
	if size := m.Size(); size > l.maxPacket {
		return &RejectedError{
			Code:   codePacketTooLarge,
			Reason: fmt.Sprintf("the request makes a packet of %d bytes, and the broker takes at most %d", size, l.maxPacket),
		}
	}
	return nil
}

// take removes an exchange that still waits, and returns nil if there is none.
func (c *mqttConn) take(l *link, id correlation) *exchange {
	c.mu.Lock()
	defer c.mu.Unlock()
	return l.takeLocked(id)
}

// finish gives a waiting exchange its result, and reports false if there is none.
func (c *mqttConn) finish(l *link, id correlation, outcome result) bool {
	e := c.take(l, id)
	if e != nil {
		e.end(outcome)
	}
	return e != nil
}

// acknowledged is told of the PUBACK of a request. A bad one says that the broker has not
// passed the request on.
func (c *mqttConn) acknowledged(l *link, id correlation, code byte, reason string) {
	const failure = 0x80 // [MQTT-4.13.1]: codes from here on are errors
	l.freeSlot()
	switch {
	case code == packets.PubackNoMatchingSubscribers:
		c.finish(l, id, result{err: notSent(ErrNoStore)})
	case code >= failure:
		c.finish(l, id, result{err: &RejectedError{Code: int(code), Reason: reason}})
	default:
		c.accept(l, id)
	}
}

// accept notes that the broker took a request.
func (c *mqttConn) accept(l *link, id correlation) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if e := l.pending[id]; e != nil {
		e.accepted = true
	}
}

// message is a PUBLISH that came in, whoever read it. What it holds may be overwritten
// later.
type message struct {
	topic, correlation, payload      []byte
	timestamp, status, statusMessage []byte // user properties, empty where there is none
	store                            []byte // likewise
}

// deliver hands a message over. A reply whose correlation nobody waits for came too late
// or twice, or was forged.
func (c *mqttConn) deliver(l *link, m *message) {
	if string(m.topic) == c.replies {
		if !c.answer(l, m) {
			c.ignore(UnexpectedReply, m)
		}
		return
	}
	clientID, key, notified := protocol.ParseNotifyTopic(string(m.topic))
	switch {
	case notified && clientID == c.options.ClientID:
		c.events.Notify(Notification{Key: key, Payload: bytes.Clone(m.payload), Timestamp: string(m.timestamp), Store: string(m.store)})
	case notified:
		c.ignore(ForeignNotification, m)
	case strings.HasPrefix(string(m.topic), protocol.ReservedPrefix):
		c.ignore(MalformedNotification, m)
	default:
		c.ignore(ForeignMessage, m)
	}
}

// answer gives a waiting exchange the store's reply, and reports false if there is none.
func (c *mqttConn) answer(l *link, m *message) bool {
	if len(m.correlation) != len(correlation{}) {
		return false
	}
	c.mu.Lock()
	l.answered = true
	e := l.takeLocked(correlation(m.correlation))
	store := l.identityLocked(m.store)
	c.mu.Unlock()
	if e == nil {
		return false
	}
	e.end(m.reply(store))
	return true
}

func (c *mqttConn) ignore(why Ignored, m *message) {
	c.events.Ignored(why)
	c.logger.Debug("ignored a message", "topic", string(m.topic))
}

// reply turns a status of 400 or more into an error. After 408 and 5xx it is not known
// whether the request was applied; after any other it was not. A reply without a status
// counts as a success.
func (m *message) reply(store string) result {
	status, err := strconv.Atoi(string(m.status))
	if err != nil || status < 400 {
		return result{reply: Reply{Payload: bytes.Clone(m.payload), Timestamp: string(m.timestamp), Store: store}}
	}
	rejected := &RejectedError{Code: status, Reason: string(m.statusMessage)}
	if status == statusTimeout || status >= statusServerError {
		return result{err: unknown(rejected)}
	}
	return result{err: rejected}
}

// Statuses of a reply, as in HTTP.
const (
	statusTimeout     = 408
	statusServerError = 500 // and above
)
