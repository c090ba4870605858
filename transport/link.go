package transport

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"strings"
	"sync"
	"time"

	"github.com/eclipse/paho.golang/packets"
	"github.com/eclipse/paho.golang/paho"

	"github.com/tenurelock/tenure/internal/mqtt"
	"github.com/tenurelock/tenure/internal/protocol"
)

const (
	// receiveMaximum is how many unacknowledged messages the broker may send us: far more than
	// brokers have under way for one client.
	receiveMaximum = 256
	// subscribeTimeout bounds one SUBSCRIBE.
	subscribeTimeout = 5 * time.Second
	// subscribeRetry is the pause after a SUBSCRIBE that the broker refused.
	subscribeRetry = 50 * time.Millisecond
	// closeTimeout bounds the DISCONNECT to a broker that no longer reads.
	closeTimeout = time.Second
	// minProbe is the least time that a broker has to answer a probe. With less, a machine
	// that is busy for a moment would lose connections that work.
	minProbe = 100 * time.Millisecond
)

// link is one connection to a broker, from CONNECT to its loss. The requests that were
// sent over it end with it.
//
// Its methods that run where the connection is read (take, deliver, acknowledged) must not
// block: nothing else is read meanwhile.
type link struct {
	clientID string
	replies  string // the topic of replies
	events   Events
	logger   *slog.Logger

	net            *mqtt.Conn   // nil in tests that need none
	client         *mqtt.Client // reads; CONNECT, SUBSCRIBE, keep-alive, DISCONNECT
	authentication *authentication
	ending         sync.Once // guards disconnect

	down      chan struct{} // closed when the connection is lost
	wake      chan struct{} // holds one item when the queues may not be empty
	quiet     chan struct{} // holds one item once nothing is pending on a link that is leaving
	slots     *window       // has one in use for each request that the broker has not acknowledged
	maxPacket int           // bytes that the broker takes in one packet
	silence   time.Duration // how long the broker waits before it takes a silent connection for lost

	path  *fastPath      // sends the requests; nil until there is a subscription
	tasks sync.WaitGroup // serve, the goroutine of a probe, if any, and the call of sweep that is due

	mu       sync.Mutex // after mqttConn.mu, where both are held
	store    string     // the identity in the latest reply
	instance string     // likewise
	pending  map[correlation]*exchange
	urgent   queue     // to be sent first, except those that are no longer pending
	queue    queue     // to be sent after these, likewise
	overdue  deadlines // of the pending ones that have any
	leaving  bool      // nothing new may be sent
	answered bool      // a reply has come
	probing  bool      // a probe is under way
	cause    error     // why the connection was lost; nil until then
}

// newLink returns the link over conn, which only tests leave nil.
func newLink(clientID string, events Events, logger *slog.Logger, conn *mqtt.Conn) *link {
	l := &link{
		clientID: clientID,
		replies:  protocol.ResponseTopic(clientID),
		events:   events,
		logger:   logger,
		down:     make(chan struct{}),
		wake:     make(chan struct{}, 1),
		quiet:    make(chan struct{}, 1),
		pending:  make(map[correlation]*exchange),
		net:      conn,
	}
	l.overdue = deadlines{call: l.sweep, tasks: &l.tasks}
	return l
}

// handshake sends CONNECT and waits for CONNACK. It calls lost when the connection
// ends, with the broker's DISCONNECT if there was one. The CONNACK may be nil with an error.
func (l *link) handshake(ctx context.Context, connect *paho.Connect, lost func(*packets.Disconnect)) (*paho.Connack, error) {
	l.authentication = &authentication{}
	if connect.Properties.AuthMethod != "" {
		l.authentication.token = connect.Properties.AuthData
	}
	client, connack, err := mqtt.Connect(ctx, l.net, connect, mqtt.ClientOptions{
		Authenticate: l.authentication.Authenticate,
		Received:     l.received,
		Lost:         lost,
	})
	if err != nil {
		return connack, cmp.Or(l.closeCause(), err)
	}
	l.client = client
	return connack, nil
}

// adopt makes the link obey the conditions in the broker's CONNACK. The error says why they
// allow no request: such a broker would end each connection at the first one [MQTT-3.2.2-11].
func (l *link) adopt(conditions *paho.ConnackProperties, keepAlive uint16) error {
	receive := valueOr(conditions.ReceiveMaximum, math.MaxUint16) // [MQTT-3.3.4-7]
	switch {
	case valueOr(conditions.MaximumQoS, 1) == 0:
		return errors.New("the broker does not accept QoS 1, which requests have: raise its Maximum QoS")
	case receive == 0:
		return errors.New("the broker announces a Receive Maximum of 0, which MQTT forbids")
	}
	l.slots = newWindow(int(receive))
	// MQTT's own limit is lower than the largest int [MQTT-3.2.2-15].
	l.maxPacket = int(min(valueOr(conditions.MaximumPacketSize, math.MaxInt32), math.MaxInt32))
	// One and a half times the keep-alive [MQTT-3.1.2-22], which some brokers round down to
	// whole seconds.
	l.silence = time.Duration(valueOr(conditions.ServerKeepAlive, keepAlive)) * 3 / 2 * time.Second
	return nil
}

// valueOr returns what p points to, or otherwise if it is nil.
func valueOr[T any](p *T, otherwise T) T {
	if p == nil {
		return otherwise
	}
	return *p
}

// subscribe asks for replies and notifications, and repeats that until the broker grants
// it: brokers may refuse for a moment (0x91, packet id in use). It calls refused with each
// refusal. It returns nil, without a subscription, when ctx ends or the link is lost.
func (l *link) subscribe(ctx context.Context, refused func(error)) error {
	notifications := protocol.NotifyFilter(l.clientID)
	for ctx.Err() == nil {
		attempt, cancel := context.WithTimeout(ctx, subscribeTimeout)
		suback, err := l.client.Subscribe(attempt, packets.SubOptions{Topic: l.replies, QoS: 1}, packets.SubOptions{Topic: notifications, QoS: 1})
		cancel()
		if err == nil || isClosed(l.down) {
			return nil
		}
		if suback == nil { // no answer: begin with a new connection
			return cmp.Or(l.closeCause(), fmt.Errorf("subscribe: %w", err))
		}
		refused(fmt.Errorf("subscribe to %q and %q: %w (reason codes %#x)",
			l.replies, notifications, err, suback.Reasons))
		select {
		case <-ctx.Done():
		case <-l.down:
			return nil
		case <-time.After(subscribeRetry):
		}
	}
	return nil
}

// disconnect ends the connection, lost already or not: the goroutine that reads then returns. A
// broker that does not read the DISCONNECT delays it by closeTimeout at most.
func (l *link) disconnect() {
	l.ending.Do(func() {
		abort := time.AfterFunc(closeTimeout, l.net.Abort)
		defer abort.Stop()
		l.client.Disconnect()
	})
}

// wakeUp lets the queues be looked at. It does not wait.
func (l *link) wakeUp() { signal(l.wake) }

// closeCause returns why this client closed the connection, or nil if it did not.
func (l *link) closeCause() error {
	if l.net == nil {
		return nil
	}
	cause := l.net.CloseCause()
	var tooLarge *mqtt.TooLargeError
	if errors.As(cause, &tooLarge) {
		return fmt.Errorf("%w: %w", ErrPacketTooLarge, cause)
	}
	return cause
}

// enqueue adds a request to those to be sent and expects its reply, unless the connection
// takes no more.
func (l *link) enqueue(e *exchange) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.leaving || isClosed(l.down) {
		return false
	}
	l.pending[e.correlation] = e
	e.position = -1
	if !e.deadline.IsZero() {
		l.overdue.add(e)
	}
	if e.request.Urgent {
		l.urgent.push(e)
	} else {
		l.queue.push(e)
	}
	l.wakeUp()
	return true
}

// underWay returns how many requests wait for their replies.
func (l *link) underWay() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.pending)
}

// heldBack adds to the cause for which a request is given up that it had no slot.
func (l *link) heldBack(cause error) error {
	return fmt.Errorf("%w: as many requests are under way as the broker takes (Receive Maximum %d)", cause, l.slots.size)
}

// popLocked returns the next request, urgent ones first, or nil if the queues are empty.
func (l *link) popLocked() *exchange {
	if e := l.urgent.pop(); e != nil {
		return e
	}
	return l.queue.pop()
}

// requestProperties appends the user properties of a request.
func requestProperties(dst []mqtt.UserProperty, clientID string, request Request) []mqtt.UserProperty {
	dst = append(dst,
		mqtt.UserProperty{Name: protocol.PropertySourceID, Value: clientID},
		mqtt.UserProperty{Name: protocol.PropertyProtocolVersion, Value: protocol.ProtocolVersion},
		mqtt.UserProperty{Name: protocol.PropertyPartition, Value: clientID})
	if request.Timestamp != "" {
		dst = append(dst, mqtt.UserProperty{Name: protocol.PropertyTimestamp, Value: request.Timestamp})
	}
	if request.FencingToken != "" {
		dst = append(dst, mqtt.UserProperty{Name: protocol.PropertyFencingToken, Value: request.FencingToken})
	}
	if request.Binding.Store != "" {
		dst = append(dst, mqtt.UserProperty{Name: protocol.PropertyStore, Value: request.Binding.Store})
	}
	if request.Persist {
		dst = append(dst, mqtt.UserProperty{Name: protocol.PropertyPersistence, Value: "true"})
	}
	if request.Forced != "" {
		dst = append(dst, mqtt.UserProperty{Name: protocol.PropertyForced, Value: request.Forced})
	}
	return dst
}

// messageExpiry returns the time that is left of a request in whole seconds, rounded up, so that
// a broker drops a request that its caller has given up. Zero: it has no end.
func messageExpiry(left time.Duration) uint32 {
	return uint32(min(math.Ceil(left.Seconds()), math.MaxUint32))
}

// takeLocked removes a request that still waits, and returns nil if there is none.
func (l *link) takeLocked(id correlation) *exchange {
	e := l.pending[id]
	delete(l.pending, id)
	if e != nil && e.position >= 0 {
		l.overdue.remove(e)
	}
	l.signalQuietLocked()
	return e
}

// sweep ends the requests whose deadlines are over.
func (l *link) sweep() {
	defer l.tasks.Done()
	var given ended
	defer func() { given.tell() }()
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, e := range l.overdue.fired() {
		given.add(e, Reply{}, l.abandonLocked(e, context.DeadlineExceeded))
	}
}

func (l *link) signalQuietLocked() {
	if l.leaving && len(l.pending) == 0 {
		signal(l.quiet)
	}
}

// signal puts an item into a channel that has room for one, if there is none.
func signal(c chan<- struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// abandon takes back a request whose caller gives up because of cause, and returns the
// error for the caller: nil if the exchange has ended meanwhile.
func (l *link) abandon(e *exchange, cause error) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.abandonLocked(e, cause)
}

func (l *link) abandonLocked(e *exchange, cause error) error {
	switch {
	case l.takeLocked(e.correlation) == nil:
		return nil
	case !e.sent:
		l.slots.free()
		return notSent(cause)
	case e.accepted && !l.answered && errors.Is(cause, context.DeadlineExceeded):
		cause = fmt.Errorf("%w: the broker took the request, but it seems that %w", cause, errNoStore)
	}
	return unknown(cause)
}

// leave lets nothing new be sent.
func (l *link) leave() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.leaving = true
	l.signalQuietLocked()
}

func (l *link) isLeaving() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.leaving
}

// drop marks the link as lost and fails at once every request that waits on it. first is false
// if the link was lost before. The caller gives the requests their results, without a lock.
func (l *link) drop(cause error) (failed ended, first bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if isClosed(l.down) {
		return nil, false
	}
	close(l.down)
	l.cause = cause
	for id, e := range l.pending {
		delete(l.pending, id)
		if e.sent {
			failed.add(e, Reply{}, unknown(cause))
		} else {
			failed.add(e, Reply{}, notSent(cause))
		}
	}
	l.urgent, l.queue, l.overdue.requests = queue{}, queue{}, nil
	l.overdue.stop() // none begins on a link that is down
	return failed, true
}

// lossCause returns why the connection was lost, or nil if it is not.
func (l *link) lossCause() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.cause
}

// errNoStore is ErrNoStore with what to do about it.
var errNoStore = fmt.Errorf("%w: does `tenure attach` run beside it, and is this the right broker?", ErrNoStore)

// acknowledgedLocked handles the PUBACK of a request. A bad one says that the broker has not
// passed the request on. The caller gives a request that ends with it its result, without a lock.
func (l *link) acknowledgedLocked(id correlation, ack mqtt.Puback) (refused ended) {
	const failure = 0x80 // [MQTT-4.13.1]: codes from here on are errors
	l.slots.free()
	e := l.pending[id]
	var err error
	switch {
	case e == nil:
		return nil
	case ack.ReasonCode == packets.PubackNoMatchingSubscribers:
		err = notSent(errNoStore)
	case ack.ReasonCode >= failure:
		err = &RejectedError{Code: int(ack.ReasonCode), Reason: string(ack.ReasonString)}
	default:
		e.accepted = true
		return nil
	}
	l.takeLocked(id)
	refused.add(e, Reply{}, err)
	return refused
}

// received handles a PUBLISH that the fast path left: one with QoS 1, or one that came before it.
func (l *link) received(p *mqtt.Publish) {
	m := readMessage(p)
	l.deliver(&m)
}

// deliver passes on a message that arrived. A reply with a correlation for which no request
// waits came too late or twice, or was forged.
func (l *link) deliver(m *message) {
	if string(m.topic) == l.replies {
		if !l.answer(m) {
			l.ignore(UnexpectedReply, m)
		}
		return
	}
	clientID, key, notified := protocol.ParseNotifyTopic(string(m.topic))
	switch {
	case notified && clientID == l.clientID:
		l.events.Notify(Notification{Key: key, Payload: bytes.Clone(m.payload), Timestamp: string(m.timestamp), Store: string(m.store)})
	case notified:
		l.ignore(ForeignNotification, m)
	case strings.HasPrefix(string(m.topic), protocol.ReservedPrefix):
		l.ignore(MalformedNotification, m)
	default:
		l.ignore(ForeignMessage, m)
	}
}

// answer gives a waiting request the store's reply, and reports false if there is none.
func (l *link) answer(m *message) bool {
	if len(m.correlation) != len(correlation{}) {
		return false
	}
	l.mu.Lock()
	l.answered = true
	e := l.takeLocked(correlation(m.correlation))
	// The names of the store are the same in nearly every reply: keep one string of each.
	if l.store != string(m.store) {
		l.store = string(m.store)
	}
	if l.instance != string(m.instance) {
		l.instance = string(m.instance)
	}
	store, instance := l.store, l.instance
	l.mu.Unlock()
	if e == nil {
		return false
	}
	e.end(m.reply(store, instance))
	return true
}

func (l *link) ignore(why IgnoreReason, m *message) {
	l.events.Ignored(why)
	l.logger.Debug("ignored a message", "reason", why, "topic", string(m.topic))
}

// probe starts a goroutine that closes the connection if the broker does not answer a
// PINGREQ in time. It does nothing if there is one already or the link is lost.
func (l *link) probe(within time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.net == nil || l.probing || isClosed(l.down) {
		return
	}
	l.probing = true
	// The goroutine belongs to the link: mqttConn.connect waits for it once the link is down.
	l.tasks.Go(func() {
		l.net.Probe(max(within, minProbe), l.down)
		l.mu.Lock()
		defer l.mu.Unlock()
		l.probing = false
	})
}
