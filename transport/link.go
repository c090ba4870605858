package transport

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"runtime"
	"strconv"
	"time"

	"github.com/eclipse/paho.golang/packets"

	"github.com/tenurelock/tenure/internal/closed"
	"github.com/tenurelock/tenure/internal/mqtt"
	"github.com/tenurelock/tenure/internal/protocol"
	"github.com/tenurelock/tenure/internal/storeconn"
)

const (
	// receiveMaximum is how many unacknowledged messages the broker may send us: far more than
	// brokers have under way for one client.
	receiveMaximum = 256
	// subscribeTimeout bounds the SUBSCRIBE.
	subscribeTimeout = 5 * time.Second
	// minProbe is the least time that a broker has to answer a probe. With less, a machine
	// that is busy for a moment would lose connections that work.
	minProbe = 100 * time.Millisecond
)

// link is one connection to a broker, from CONNECT to its loss. The calls that it took end with it.
//
// One goroutine sends the requests, in mqttConn.serve: it gathers what waits in the queue, and no caller
// waits for a broker that does not read. The one of mqttConn.run reads, in mqtt.Client.Run, and must not
// block: it passes on the messages and PUBACKs that arrive.
type link struct {
	conn    *mqttConn
	replies string // the topic of replies

	client *mqtt.Client // reads; CONNECT, SUBSCRIBE, keep-alive, DISCONNECT
	will   *pendingWill // that it carries; nil: none

	down chan struct{} // closed when the connection is lost
	wake chan struct{} // holds one item when there may be something to send, or a link that leaves has left

	// Used by the goroutine that sends only.
	message mqtt.Message
	packets []byte

	store, instance string // in the latest reply; used by the goroutine that reads only

	// Guarded by conn.mu.
	pending  map[correlation]*call
	unacked  map[uint16]correlation // by packet id
	lastID   uint16
	token    []byte // for an AUTH; nil: none
	leaving  bool   // it takes no more calls
	answered bool   // a reply has come
	cause    error  // why the connection was lost; nil until then
}

// newLink returns a link that has no connection yet. It is to carry the Will that waits for one.
func (c *mqttConn) newLink(token []byte) *link {
	c.mu.Lock()
	defer c.mu.Unlock()
	return &link{
		conn:    c,
		replies: protocol.ResponseTopic(c.options.ClientID),
		will:    c.will,
		token:   token,
		down:    make(chan struct{}),
		wake:    make(chan struct{}, 1),
		pending: make(map[correlation]*call),
		unacked: make(map[uint16]correlation),
	}
}

// dial opens a connection to the present server.
func (l *link) dial(ctx context.Context) error {
	options := &l.conn.options
	config, err := mqtt.TLS(options.TLS).ClientConfig(l.conn.server())
	if err != nil {
		return err
	}
	l.client, err = mqtt.Dial(ctx, l.conn.server(), mqtt.Options{
		MaxPacket:    options.MaxPacketSize,
		WriteTimeout: options.KeepAlive,
		TLS:          config,
		Dialer:       options.Dialer,
		WebSocket:    options.WebSocket,
		Local:        "`tenure serve`",
		Authenticate: func() *packets.Auth { return l.authenticate(packets.AuthContinueAuthentication) },
		Received:     l.received,
		Acknowledged: l.acknowledged,
		Lost:         func(d *packets.Disconnect) { l.conn.lost(l, d) },
	})
	return err
}

// subscribe asks for replies and notifications. A broker may refuse for a moment (0x91, packet id in use): the
// next connection asks again.
func (l *link) subscribe(ctx context.Context) error {
	notifications := protocol.NotifyFilter(l.conn.ClientID())
	suback, err := l.client.Subscribe(ctx, packets.SubOptions{Topic: l.replies, QoS: 1},
		packets.SubOptions{Topic: notifications, QoS: 1})
	switch {
	case err == nil || closed.Is(l.down): // which established sees
		return nil
	case suback == nil:
		return cmp.Or(l.client.CloseCause(), fmt.Errorf("subscribe: %w", err))
	}
	return fmt.Errorf("subscribe to %q and %q: %w (reason codes %#x)", l.replies, notifications, err, suback.Reasons)
}

// hasRoom reports whether the broker takes one more request. Of those that it takes at once, an eighth, and sixteen
// at most, are for urgent ones only.
func (l *link) hasRoom(c *call) bool {
	reserved := min(l.client.ReceiveMaximum/8, 16)
	if c.request.Binding.Urgent {
		reserved = 0
	}
	return l.client.ReceiveMaximum-len(l.unacked) > reserved
}

// maxBatch is how many bytes of packets are gathered before they are written.
const maxBatch = 32 << 10

// send writes the requests that wait; those that wait together leave in one write.
func (l *link) send() {
	l.conn.mu.Lock()
	underWay := len(l.pending)
	l.conn.mu.Unlock()
	if underWay > 1 {
		// Replies that arrived together have woken as many callers: let them queue their
		// next requests first.
		runtime.Gosched()
	}
	for l.gather(); len(l.packets) > 0; l.gather() {
		l.client.Write(l.packets)
		if cap(l.packets) > 2*maxBatch {
			l.packets = nil // there was a long one; they are rare
		}
	}
}

// gather encodes requests that wait. From here on each of them may reach the broker, even if its caller
// gives up.
func (l *link) gather() {
	l.packets = l.packets[:0]
	l.conn.mu.Lock()
	defer l.conn.mu.Unlock()
	for now := time.Now(); len(l.packets) < maxBatch; {
		c := l.conn.nextLocked(l)
		if c == nil {
			return
		}
		if c.leftBehind = closed.Is(c.gone) || closed.Is(c.over); c.leftBehind {
			continue // its caller, who waits for that too, takes it back
		}
		c.correlation.choose() // here, and not in the caller, whose stack it would double
		id := l.nextIDLocked()
		if err := l.appendLocked(c, id, now); err != nil {
			c.end(storeconn.Reply{}, err)
			continue
		}
		c.link, l.pending[c.correlation], l.unacked[id] = l, c, c.correlation
	}
}

// nextIDLocked returns a packet id that is not in use. There is one: the Receive Maximum is no more
// than there are ids, and nothing else uses packet ids after SUBSCRIBE.
func (l *link) nextIDLocked() uint16 {
	for {
		l.lastID++
		if _, used := l.unacked[l.lastID]; l.lastID != 0 && !used {
			return l.lastID
		}
	}
}

// takeLocked removes a call that is still pending, and reports false if it is not.
func (l *link) takeLocked(c *call) bool {
	if l.pending[c.correlation] != c {
		return false
	}
	delete(l.pending, c.correlation)
	if l.leaving {
		signal(l.wake)
	}
	return true
}

// leave lets the link take no more calls.
func (l *link) leave() {
	l.conn.mu.Lock()
	defer l.conn.mu.Unlock()
	l.leaving = true
	signal(l.wake)
}

// hasLeft reports whether the link takes no more calls, and nothing is pending.
func (l *link) hasLeft() bool {
	l.conn.mu.Lock()
	defer l.conn.mu.Unlock()
	return l.leaving && len(l.pending) == 0
}

// acknowledged handles a PUBACK. A bad one says that the broker has not passed the request on.
func (l *link) acknowledged(ack *mqtt.Puback) {
	l.conn.mu.Lock()
	defer l.conn.mu.Unlock()
	id, ok := l.unacked[ack.PacketID]
	if !ok {
		return // it came twice
	}
	delete(l.unacked, ack.PacketID)
	if len(l.conn.queue) > 0 {
		signal(l.wake)
	}
	c := l.pending[id]
	if c == nil {
		return
	}
	var err error
	switch {
	case ack.ReasonCode == packets.PubackNoMatchingSubscribers:
		err = notSent(errNoStore)
	case ack.ReasonCode >= mqtt.Failure:
		err = &RejectedError{Code: int(ack.ReasonCode), Reason: string(ack.ReasonString)}
	default:
		c.accepted = true
		return
	}
	l.takeLocked(c)
	c.end(storeconn.Reply{}, err)
}

// received passes on a message that arrived. A reply with a correlation for which no call
// waits came too late or twice, or was forged.
func (l *link) received(p *mqtt.Publish) {
	if string(p.Topic) == l.replies && l.answer(p) {
		return
	}
	topic := string(p.Topic)
	if clientID, key, notified := protocol.ParseNotifyTopic(topic); notified && clientID == l.conn.ClientID() {
		l.conn.events.Notify(storeconn.Notification{
			Key: key, Payload: bytes.Clone(p.Payload),
			Timestamp: string(property(p, protocol.PropertyTimestamp)),
			Store:     string(property(p, protocol.PropertyStore)),
		})
	} else {
		l.conn.logger.Debug("ignored a message", "topic", topic)
	}
}

// property returns the first user property of a name, or nil.
func property(p *mqtt.Publish, name string) []byte {
	value, _ := p.User(name)
	return value
}

// answer gives a pending call the store's reply, and reports false if there is none.
func (l *link) answer(p *mqtt.Publish) bool {
	if len(p.CorrelationData) != len(correlation{}) {
		return false
	}
	l.conn.mu.Lock()
	l.answered = true
	c := l.pending[correlation(p.CorrelationData)]
	if c != nil {
		l.takeLocked(c)
	}
	l.conn.mu.Unlock()
	if c == nil {
		return false
	}
	c.end(l.reply(p))
	return true
}

// reply turns a status of 400 or more into an error. After 408 and 5xx it is not known
// whether the request was applied; after any other it was not. A reply without a status
// counts as a success.
func (l *link) reply(p *mqtt.Publish) (storeconn.Reply, error) {
	const timeout, serverError = 408, 500 // as in HTTP, like statusUnavailable
	status, err := strconv.Atoi(string(property(p, protocol.PropertyStatus)))
	if err != nil || status < 400 {
		return storeconn.Reply{
			Payload:   bytes.Clone(p.Payload),
			Timestamp: string(property(p, protocol.PropertyTimestamp)),
			Store:     keep(&l.store, property(p, protocol.PropertyStore)),
			Instance:  keep(&l.instance, property(p, protocol.PropertyInstance)),
		}, nil
	}
	rejected := &RejectedError{Code: status, Reason: string(property(p, protocol.PropertyStatusMessage))}
	if status == timeout || status >= serverError {
		return storeconn.Reply{}, unknown(rejected)
	}
	return storeconn.Reply{}, rejected
}

// keep returns text as one string for all replies with the same: a store has one name in nearly all of them.
func keep(latest *string, text []byte) string {
	if *latest != string(text) {
		*latest = string(text)
	}
	return *latest
}

// signal puts an item into a channel that has space for one, if there is none.
func signal(c chan<- struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}
