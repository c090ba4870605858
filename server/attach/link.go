package attach

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"sync"
	"time"

	"github.com/eclipse/paho.golang/packets"
	"github.com/eclipse/paho.golang/paho"
	"golang.org/x/sync/semaphore"

	"github.com/tenurelock/tenure/internal/closed"
	"github.com/tenurelock/tenure/internal/mqtt"
	"github.com/tenurelock/tenure/internal/protocol"
	"github.com/tenurelock/tenure/internal/wake"
	"github.com/tenurelock/tenure/server/internal/logs"
	"github.com/tenurelock/tenure/transport"
)

const (
	// connectTimeout bounds an attempt to connect to the broker.
	connectTimeout = 10 * time.Second
	// writeTimeout bounds how long the broker may leave what is written to it unread, once the
	// sockets on the way are full.
	writeTimeout = 5 * time.Second
	// leaveTimeout bounds the end of a connection to a broker that may not be reading.
	leaveTimeout = time.Second
	// requestedKeepAlive, in seconds: the broker disconnects a silent store, and publishes its
	// Will to the next one, after one and a half of them, or when it next checks.
	requestedKeepAlive = 5
	// stepTimeout bounds each exchange with the broker.
	stepTimeout = 5 * time.Second
	// receiveMaximum is how many requests may be in flight: as many as MQTT allows. They wait
	// in the broker and in the socket. mosquitto 2.0.11 obeys it whatever its max_inflight_messages
	// is, queues max_queued_messages more, and drops the rest.
	receiveMaximum = math.MaxUint16
	// maxUnsent is how many bytes of replies that need no commit may wait to be sent. Beyond it the broker is
	// not read.
	maxUnsent = 64 << 20
	// leastPacket is how large a packet the broker must accept, in bytes: messages of the store
	// without text of clients are smaller.
	leastPacket = 1024
)

var (
	errConnectionLost = errors.New("the connection was lost")
	errOvertaken      = fmt.Errorf("%w, begins to at this moment, or has begun to while this one was away",
		ErrAnotherStore)
)

// link is one connection of an attached store.
type link struct {
	store      *Store
	client     *mqtt.Client
	ctx        context.Context // ends with the connection
	clientID   string
	unsent     *semaphore.Weighted // bytes of replies that need no commit
	answered   chan struct{}       // has an item after a message to the store's own response topic
	changed    chan struct{}       // has an item after presence may have changed
	superseded chan struct{}       // closed when this store has yielded to another

	mu       sync.Mutex
	presence presence
	claims   bool // announced on this connection
}

func (s *Store) newLink(ctx context.Context) *link {
	return &link{
		store:      s,
		ctx:        ctx,
		clientID:   "tenure-store-" + s.instance,
		unsent:     semaphore.NewWeighted(maxUnsent),
		answered:   make(chan struct{}, 1),
		changed:    make(chan struct{}, 1),
		superseded: make(chan struct{}),
		presence: presence{me: s.instance, data: s.data, shared: s.options.Shared,
			continues: s.engine.Continues(), memory: s.memory},
	}
}

// connect makes one connection and answers requests until it is lost or ctx ends.
func (s *Store) connect(ctx context.Context) error {
	attempt, cancel := context.WithTimeout(ctx, connectTimeout)
	defer cancel()
	linkCtx, lost := context.WithCancel(context.Background())
	defer lost()
	l := s.newLink(linkCtx)
	client, err := mqtt.Dial(attempt, s.broker, mqtt.Options{
		MaxPacket:    int(min(s.options.MaxPacketSize, math.MaxInt32)), // MQTT's own limit is lower
		WriteTimeout: writeTimeout,
		TLS:          s.tls,
		WebSocket:    s.options.WebSocket,
		Received:     l.received,
		Lost:         func(*packets.Disconnect) { lost() },
	})
	if err != nil {
		return err
	}
	connack, err := client.Connect(attempt, l.connectPacket())
	if err != nil {
		if connack != nil {
			return finalUnless(connack.ReasonCode, &transport.ConnectionError{
				Code: connack.ReasonCode, Reason: connack.Properties.ReasonString,
				ServerReference: connack.Properties.ServerReference,
			})
		}
		return err
	}
	l.client = client
	var tasks sync.WaitGroup
	defer tasks.Wait()
	tasks.Go(client.Run)
	tasks.Go(l.sendReplies)
	defer lost()
	defer l.leave()
	if err := l.check(connack.Properties); err != nil {
		return finalError{err}
	}
	beginning, end := context.WithCancel(ctx)
	defer context.AfterFunc(linkCtx, end)()
	err = l.begin(beginning)
	if end(); err != nil {
		return cmp.Or(client.CloseCause(), err)
	}
	s.attached()
	defer s.count(func(stats *Stats) { stats.Attached = false })
	tasks.Go(l.notify)
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-linkCtx.Done():
		return cmp.Or(client.CloseCause(), errConnectionLost)
	case <-l.superseded:
		return finalError{fmt.Errorf("%w: it has begun to while this one was silent, or both at once", ErrAnotherStore)}
	}
}

func (l *link) connectPacket() *paho.Connect {
	maximum := uint16(receiveMaximum)
	return &paho.Connect{
		ClientID:     l.clientID,
		CleanStart:   true, // requests that waited while the store was away are too old
		KeepAlive:    requestedKeepAlive,
		Username:     l.store.options.Username,
		UsernameFlag: l.store.options.Username != "",
		Password:     l.store.options.Password,
		PasswordFlag: len(l.store.options.Password) > 0,
		Properties: &paho.ConnectProperties{
			RequestProblemInfo: true,
			ReceiveMaximum:     &maximum,
			MaximumPacketSize:  &l.store.options.MaxPacketSize,
		},
		WillMessage: &paho.WillMessage{
			Topic:   presenceTopic,
			Payload: []byte(l.says(saysGone)),
			QoS:     1,
			Retain:  true,
		},
		WillProperties: &paho.WillProperties{},
	}
}

// check returns an error if a store cannot work with what the broker's CONNACK says.
func (l *link) check(conditions *paho.ConnackProperties) error {
	switch {
	case !conditions.RetainAvailable:
		return errors.New("the broker keeps no retained messages, which stores need to find each other")
	case l.client.MaxPacket < leastPacket:
		return fmt.Errorf("the broker takes packets of %d bytes at most; a store needs %d", l.client.MaxPacket, leastPacket)
	case l.client.Silence == 0:
		return errors.New("the broker turns off the keep-alive, which it needs to notice that a store is gone")
	}
	return nil
}

// finalUnless makes an error final unless the reason code means that a later attempt may succeed.
// CONNACK, PUBACK and SUBACK use the same codes for the same reasons.
func finalUnless(code byte, err error) error {
	switch code {
	case packets.ConnackUnspecifiedError, packets.ConnackImplementationSpecificError, packets.ConnackServerUnavailable,
		packets.ConnackServerBusy, packets.ConnackQuotaExceeded, packets.ConnackConnectionRateExceeded:
		return err
	}
	return finalError{err}
}

// received handles a message. The goroutine that reads the connection calls it, and does not write: a broker
// may read no replies before it has written all that it has.
func (l *link) received(message *mqtt.Publish) {
	switch string(message.Topic) {
	case protocol.InvokeTopic:
		if !closed.Is(l.superseded) {
			l.handle(message.Clone())
		}
	case presenceTopic:
		l.heard(string(message.Payload), message.Retain)
	case protocol.ResponseTopic(l.clientID):
		wake.Up(l.answered)
	}
}

func (l *link) heard(text string, replayed bool) {
	l.mu.Lock()
	reaction := l.presence.hear(text, replayed)
	l.mu.Unlock()
	switch reaction {
	case ignore:
	case yield:
		close(l.superseded)
	default:
		says := &mqtt.Message{Topic: presenceTopic, Retain: true, Payload: []byte(l.says(string(reaction)))}
		l.later(&waitingReply{bytes: requestOverhead, message: says})
	}
	wake.Up(l.changed)
}

// send sends a message with QoS 0. It reports false if the message is too large for the broker.
func (l *link) send(message *mqtt.Message) bool {
	err := l.client.Send(message)
	if err != nil {
		l.oversized(message, err)
	}
	return err == nil
}

// oversized notes that a message was not sent because it is too large for the broker.
func (l *link) oversized(message *mqtt.Message, err error) {
	l.store.count(func(stats *Stats) { stats.Oversized++ })
	l.store.oversized.Log("topic", logs.Name(message.Topic), "error", err)
}

// leave ends the connection. Requests that come after the UNSUBACK get no answer.
func (l *link) leave() {
	guard := time.AfterFunc(leaveTimeout, l.client.Abort)
	defer guard.Stop()
	if l.ctx.Err() != nil {
		return
	}
	leaving, cancel := context.WithTimeout(context.Background(), leaveTimeout)
	defer cancel()
	err := l.client.Unsubscribe(leaving, protocol.InvokeTopic)
	flushed := l.store.backlog.flush(leaving)
	l.mu.Lock()
	answered := l.presence.stage == answering
	said := l.claims && l.presence.retained()
	departed := saysGone + " " + l.presence.departed()
	if l.presence.stage != yielded {
		l.presence.stage = yielded
		close(l.superseded) // what a broker sends now is not answered
	}
	l.mu.Unlock()
	if answered && (err != nil || !flushed || !l.store.backlog.flush(leaving)) { // again: a reply may be under way
		// The next store must not begin while this one may still grant a lease. So let the broker
		// publish the Will, after which no reply can follow.
		l.client.Abort()
		return
	}
	if said {
		_ = l.announce(leaving, departed)
	}
	l.client.Disconnect()
}
