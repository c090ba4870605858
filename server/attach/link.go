package attach

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"sync"
	"time"

	"github.com/eclipse/paho.golang/packets"
	"github.com/eclipse/paho.golang/paho"

	"github.com/tenurelock/tenure/internal/mqttnet"
	"github.com/tenurelock/tenure/internal/protocol"
	"github.com/tenurelock/tenure/server/internal/envelope"
	"github.com/tenurelock/tenure/server/internal/logs"
)

const (
	// connectTimeout bounds an attempt to connect to the broker.
	connectTimeout = 10 * time.Second
	// writeTimeout bounds how long the broker may leave what is written to it unread, once the
	// sockets on the way are full.
	writeTimeout = 5 * time.Second
	// farewellTimeout bounds the end of a connection to a broker that may not be reading.
	farewellTimeout = time.Second
	// requestedKeepAlive, in seconds: the broker gives a store up, and says so to the
	// next, after one and a half of them, or when it gets around to it.
	requestedKeepAlive = 5
	// stepTimeout bounds each exchange with the broker.
	stepTimeout = 5 * time.Second
	// defaultReceiveMaximum is how many requests the broker may send before they are
	// acknowledged: as many as MQTT can say. mosquitto 2.0.11 goes by it whatever its own
	// max_inflight_messages says, queues max_queued_messages beyond, and throws away the rest.
	// What is in flight waits in the broker and the socket, not in memory of this process.
	defaultReceiveMaximum = math.MaxUint16
	// propertiesRoom is what the properties of a message of ours take up at most, but
	// for topics and correlation data.
	propertiesRoom = 512
	// leastPacket is how large a packet the broker must take: messages of ours that no
	// client has a part in are smaller.
	leastPacket = 1024
)

var (
	errConnectionLost = errors.New("the connection was lost")
	errOvertaken      = fmt.Errorf("%w, or begins to at this moment, or has while this one was away", ErrAnotherStore)
)

// link is one connection of an attached store.
type link struct {
	store      *Store
	client     *paho.Client
	session    *session
	probing    *queueProbe
	ctx        context.Context // ends with the connection
	clientID   string
	maxPacket  int           // of the broker; 0: any
	keepAlive  uint16        // that counts for stores on the broker
	answered   chan struct{} // holds one item once a message came to our own topic: an answer to our probe, or see drain
	changed    chan struct{} // holds one item after presence may have changed
	superseded chan struct{} // closed when presence says that we yield

	mu       sync.Mutex
	presence presence
	claims   bool // we have said so on this connection
}

// connect makes one connection and serves it until it is lost or ctx ends. The error is
// never nil.
func (s *Store) connect(ctx context.Context) error {
	attempt, cancel := context.WithTimeout(ctx, connectTimeout)
	defer cancel()
	conn, err := mqttnet.Dial(attempt, s.broker, s.tls, mqttnet.Options{
		MaxPacket:    int(min(s.options.MaxPacketSize, math.MaxInt32)), // MQTT's own limit is lower
		WriteTimeout: writeTimeout,
	})
	if err != nil {
		return err
	}
	linkCtx, lost := context.WithCancel(context.Background())
	defer lost()
	l := &link{
		store:      s,
		ctx:        linkCtx,
		clientID:   "tenure-store-" + s.instance,
		keepAlive:  requestedKeepAlive,
		answered:   make(chan struct{}, 1),
		changed:    make(chan struct{}, 1),
		superseded: make(chan struct{}),
		presence:   presence{me: s.instance, memory: s.memory},
	}
	l.session = newSession(s.unread)
	l.probing = &queueProbe{topic: envelope.ClientTopics + l.clientID + "/queue-probe", received: make(chan struct{}, 1)}
	l.client = paho.NewClient(paho.ClientConfig{
		Conn:              conn,
		Session:           l.session,
		OnPublishReceived: []func(paho.PublishReceived) (bool, error){l.received},
		PacketTimeout:     stepTimeout,
	})
	connack, err := l.client.Connect(attempt, l.connectPacket())
	if err != nil {
		return connackError(connack, cmp.Or(conn.CloseCause(), err))
	}
	var tasks sync.WaitGroup
	defer tasks.Wait()
	tasks.Go(func() {
		select {
		case <-l.client.Done():
		case <-linkCtx.Done():
		}
		lost()
	})
	defer lost()
	defer l.leave(conn)
	if err := l.accept(connack.Properties); err != nil {
		return finalError{err}
	}
	if err := l.begin(ctx); err != nil {
		return cmp.Or(conn.CloseCause(), err)
	}
	s.attached()
	defer s.connected.Store(false)
	tasks.Go(l.notify)
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-linkCtx.Done():
		return cmp.Or(conn.CloseCause(), errConnectionLost)
	case <-l.superseded:
		return finalError{fmt.Errorf("%w: it has begun to while this one was silent, or both at once", ErrAnotherStore)}
	}
}

func (l *link) connectPacket() *paho.Connect {
	receiveMaximum := l.store.receiveMaximum
	return &paho.Connect{
		ClientID:     l.clientID,
		CleanStart:   true, // requests that wait for a store that is gone are too old when it is back
		KeepAlive:    requestedKeepAlive,
		Username:     l.store.options.Username,
		UsernameFlag: l.store.options.Username != "",
		Password:     l.store.options.Password,
		PasswordFlag: len(l.store.options.Password) > 0,
		Properties: &paho.ConnectProperties{
			RequestProblemInfo: true,
			ReceiveMaximum:     &receiveMaximum,
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

// accept takes note of the broker's conditions.
func (l *link) accept(conditions *paho.ConnackProperties) error {
	if conditions == nil {
		return nil
	}
	if !conditions.RetainAvailable {
		return errors.New("the broker keeps no retained messages, by which stores find each other")
	}
	if conditions.MaximumPacketSize != nil {
		l.maxPacket = int(min(*conditions.MaximumPacketSize, math.MaxInt32)) // MQTT's own limit is lower
	}
	if l.maxPacket > 0 && l.maxPacket < leastPacket {
		return fmt.Errorf("the broker takes packets of %d bytes at most; a store needs %d", l.maxPacket, leastPacket)
	}
	if conditions.ServerKeepAlive != nil {
		l.keepAlive = *conditions.ServerKeepAlive
	}
	if l.keepAlive == 0 {
		return errors.New("the broker turns the keep-alive off, by which it finds out that a store is gone")
	}
	return nil
}

// connackError judges whether it helps to connect again.
func connackError(connack *paho.Connack, err error) error {
	if connack == nil {
		return err
	}
	return refused(connack.ReasonCode, fmt.Errorf("the broker refuses the connection (MQTT reason code 0x%02X): %w", connack.ReasonCode, err))
}

// refused makes an error final unless the reason code says that it may go better later.
// CONNACK, PUBACK and SUBACK share those that they have in common.
func refused(code byte, err error) error {
	switch code {
	case packets.ConnackUnspecifiedError, packets.ConnackImplementationSpecificError, packets.ConnackServerUnavailable,
		packets.ConnackServerBusy, packets.ConnackQuotaExceeded, packets.ConnackConnectionRateExceeded:
		return err
	}
	return finalError{err}
}

// received is called by one goroutine of paho for each message, in order.
func (l *link) received(event paho.PublishReceived) (bool, error) {
	switch message := event.Packet; message.Topic {
	case protocol.InvokeTopic:
		if !l.hasYielded() {
			l.handle(message)
		}
	case presenceTopic:
		l.heard(string(message.Payload), message.Retain)
	case protocol.ResponseTopic(l.clientID):
		signalOne(l.answered)
	default:
		if l.probing != nil && message.Topic == l.probing.topic {
			l.probing.count()
		}
	}
	return true, nil
}

func (l *link) hasYielded() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.presence.stage == yielded
}

func (l *link) heard(text string, replayed bool) {
	l.mu.Lock()
	reaction := l.presence.hear(text, replayed)
	insists := l.presence.insists()
	l.mu.Unlock()
	switch {
	case reaction == yield:
		close(l.superseded)
	case reaction == insist:
		// With QoS 0, since nothing may be waited for here.
		l.send(&paho.Publish{Topic: presenceTopic, Retain: true, Payload: []byte(l.says(insists))})
	}
	signalOne(l.changed)
}

func signalOne(to chan<- struct{}) {
	select {
	case to <- struct{}{}:
	default:
	}
}

// send sends with QoS 0, and reports false if the message is too large.
func (l *link) send(message *paho.Publish) bool {
	if l.tooLarge(message) {
		return false
	}
	if _, err := l.client.Publish(l.ctx, message); err != nil {
		l.store.logger.Debug("a message was not sent", "topic", logs.Name(message.Topic), "error", logs.Error(err))
	}
	return true
}

// tooLarge reports, and counts, what the broker would answer by disconnecting us.
func (l *link) tooLarge(message *paho.Publish) bool {
	size := len(message.Topic) + len(message.Payload) + propertiesRoom
	if message.Properties != nil {
		size += len(message.Properties.CorrelationData)
	}
	if l.maxPacket == 0 || size <= l.maxPacket {
		return false
	}
	// By that estimate only: what is near the limit is measured.
	exact, err := message.Packet().WriteTo(io.Discard)
	if err == nil && exact <= int64(l.maxPacket) {
		return false
	}
	l.store.count(func(stats *Stats) { stats.Oversized++ })
	l.store.oversized.Log("topic", logs.Name(message.Topic), "bytes", exact, "limit", l.maxPacket)
	return true
}

// leave says farewell, if the connection is still there, and returns when it is not. What
// was requested until then is answered; who asks later is told that there is no store.
func (l *link) leave(conn *mqttnet.Conn) {
	guard := time.AfterFunc(farewellTimeout, conn.Abort)
	defer guard.Stop()
	select {
	case <-l.client.Done():
		return
	default:
	}
	farewell, cancel := context.WithTimeout(context.Background(), farewellTimeout)
	defer cancel()
	_, err := l.client.Unsubscribe(farewell, &paho.Unsubscribe{Topics: []string{protocol.InvokeTopic}})
	l.mu.Lock()
	answering := l.presence.stage == answering
	said := l.claims && l.presence.retained()
	l.mu.Unlock()
	if answering && (err != nil || !l.drain(farewell)) {
		// The next store begins when it hears that this one is gone, and must not while
		// this one may still grant something: let the broker say it, by the Will, when no
		// answer can follow any more.
		_ = conn.Close()
		<-l.client.Done()
		return
	}
	if said {
		_ = l.announce(farewell, saysGone)
	}
	_ = l.client.Disconnect(&paho.Disconnect{})
	<-l.client.Done()
}

// drain reports whether all requests are answered that the broker sent before. It sends
// itself a message, which comes after them.
func (l *link) drain(ctx context.Context) bool {
	ctx, cancel := context.WithTimeout(ctx, farewellTimeout/2)
	defer cancel()
	defer context.AfterFunc(l.ctx, cancel)()
	select {
	case <-l.answered: // an answer to the probe that came late
	default:
	}
	if _, err := l.publish(ctx, &paho.Publish{QoS: 1, Topic: protocol.ResponseTopic(l.clientID)}); err != nil {
		return false
	}
	select {
	case <-l.answered:
		return true
	case <-ctx.Done():
		return false
	}
}
