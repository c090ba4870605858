package doctor

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"math"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/eclipse/paho.golang/packets"
	"github.com/eclipse/paho.golang/paho"

	"github.com/tenurelock/tenure/hlc"
	"github.com/tenurelock/tenure/internal/mqtt"
	"github.com/tenurelock/tenure/internal/protocol"
	"github.com/tenurelock/tenure/resp3"
	"github.com/tenurelock/tenure/transport"
)

// unread bounds how many messages wait for the doctor; it drops more.
const unread = 64

// session is an MQTT connection that the broker has accepted. It has one request under way at a time.
type session struct {
	doctor        *doctor
	server        *url.URL
	conn          *mqtt.Conn
	client        *mqtt.Client
	replies       chan *mqtt.Publish
	notifications chan *mqtt.Publish
	burst         burst
	ended         chan struct{} // closed when the connection has ended
}

// newSession sends CONNECT and waits for the CONNACK, which comes beside an error if it refuses the client. The
// caller closes the session.
func (d *doctor) newSession(
	ctx context.Context, server *url.URL, conn *mqtt.Conn, connect *paho.Connect,
) (*session, *paho.Connack, error) {
	s := &session{
		doctor: d, server: server, conn: conn,
		replies: make(chan *mqtt.Publish, unread), notifications: make(chan *mqtt.Publish, unread),
		burst: burst{topic: "clients/" + d.options.Client.ClientID + "/queue-probe", received: make(chan struct{}, 1)},
		ended: make(chan struct{}),
	}
	client, connack, err := mqtt.Connect(ctx, conn, connect, mqtt.ClientOptions{
		Received: s.received, Deferred: true, Lost: func(*packets.Disconnect) {},
	})
	if err != nil {
		return nil, connack, err
	}
	s.client = client
	go func() { // until close
		defer close(s.ended)
		client.Run()
	}()
	return s, connack, nil
}

// received takes a message. It is called for each message, in order.
func (s *session) received(p *mqtt.Publish) {
	if string(p.Topic) == s.burst.topic && p.QoS == 1 {
		s.burst.take(p, s.client.Acknowledge)
		return
	}
	to := s.replies
	if strings.HasPrefix(string(p.Topic), protocol.ReservedPrefix) {
		to = s.notifications
	}
	select {
	case to <- p.Clone():
	default: // it asked for none of so many
	}
	if p.QoS == 1 {
		s.client.Acknowledge(p.PacketID)
	}
}

// close disconnects, and returns when the connection has ended.
func (s *session) close() {
	guard := time.AfterFunc(time.Second, s.conn.Abort) // the broker may not read
	defer guard.Stop()
	s.client.Disconnect()
	<-s.ended
}

func (s *session) isOver() bool {
	select {
	case <-s.ended:
		return true
	default:
		return false
	}
}

// answer is what came back for a request.
type answer struct {
	value           resp3.Value
	version         hlc.Timestamp // zero: none
	store, instance string
	began           time.Time // by the doctor's clock
	took            time.Duration
}

var (
	// errSilence: the broker took the request, and no reply came.
	errSilence = errors.New("no reply")
	// errGone: the connection ended.
	errGone = errors.New("the broker ended the connection")
)

// request sends a request and waits for the reply. With at, it carries that time as its timestamp. A
// refusal of the store is a *transport.RefusedError, with an answer. If the broker refuses, or a service
// before the store, it is a *transport.RejectedError.
func (s *session) request(ctx context.Context, at time.Time, words ...string) (answer, error) {
	ctx, cancel := s.doctor.step(ctx)
	defer cancel()
	id := s.doctor.options.Client.ClientID
	correlation := make([]byte, 16)
	_, _ = rand.Read(correlation) // never fails
	user := []mqtt.UserProperty{
		{Name: protocol.PropertySourceID, Value: id},
		{Name: protocol.PropertyProtocolVersion, Value: protocol.ProtocolVersion},
		{Name: protocol.PropertyPartition, Value: id},
	}
	if !at.IsZero() {
		node := strings.ReplaceAll(id, ":", "_") // a timestamp has two colons
		timestamp := hlc.Timestamp{Wall: at.UnixMilli(), Node: node}
		user = append(user, mqtt.UserProperty{Name: protocol.PropertyTimestamp, Value: timestamp.String()})
	}
	began, sent := s.doctor.options.Now(), time.Now()
	ack, err := s.client.Publish(ctx, &mqtt.Message{
		Topic: protocol.InvokeTopic, Payload: resp3.AppendCommand(nil, words...),
		ResponseTopic: protocol.ResponseTopic(id), CorrelationData: correlation, ContentType: protocol.ContentType,
		MessageExpiry: uint32(math.Ceil(s.doctor.options.Timeout.Seconds())), User: user,
	})
	switch {
	case err != nil && ack != nil:
		return answer{}, &transport.RejectedError{Code: int(ack.ReasonCode), Reason: string(ack.ReasonString)}
	case err != nil:
		return answer{}, s.cause(err)
	case ack.ReasonCode == packets.PubackNoMatchingSubscribers:
		return answer{}, transport.ErrNoStore
	}
	for {
		select {
		case reply := <-s.replies:
			if string(reply.CorrelationData) != string(correlation) {
				continue // to an earlier request, which was given up
			}
			return readAnswer(reply, answer{began: began, took: time.Since(sent)})
		case <-s.ended:
			return answer{}, s.cause(errGone)
		case <-ctx.Done():
			return answer{}, errSilence
		}
	}
}

// cause adds why this end closed the connection, if it did.
func (s *session) cause(err error) error {
	if why := s.conn.CloseCause(); why != nil {
		return fmt.Errorf("%w: %w", err, why)
	}
	return err
}

// readAnswer reads a reply.
func readAnswer(reply *mqtt.Publish, a answer) (answer, error) {
	user := func(name string) string {
		value, _ := reply.User(name)
		return string(value)
	}
	a.store, a.instance = user(protocol.PropertyStore), user(protocol.PropertyInstance)
	if text := user(protocol.PropertyTimestamp); text != "" {
		a.version, _ = hlc.Parse(text) // a version that cannot be read counts as none
	}
	if status, err := strconv.Atoi(user(protocol.PropertyStatus)); err == nil && status >= 400 {
		return a, &transport.RejectedError{Code: status, Reason: user(protocol.PropertyStatusMessage)}
	}
	value, err := resp3.DecodeValue(reply.Payload)
	if err != nil {
		return a, fmt.Errorf("%w: %w", transport.ErrBadReply, err)
	}
	a.value = value
	if value.Kind == resp3.Error {
		return a, &transport.RefusedError{Text: protocol.ErrorText(string(value.Text))}
	}
	return a, nil
}

// subscribe subscribes to a filter. The error is a *transport.RejectedError if the broker refuses it.
func (s *session) subscribe(ctx context.Context, filter string) error {
	ctx, cancel := s.doctor.step(ctx)
	defer cancel()
	suback, err := s.client.Subscribe(ctx, packets.SubOptions{Topic: filter, QoS: 1})
	switch {
	case err != nil && suback != nil:
		return &transport.RejectedError{Code: int(suback.Reasons[0]), Reason: suback.Properties.ReasonString}
	case err != nil:
		return s.cause(err)
	}
	return nil
}

// unsubscribe ends a subscription. If that fails, it ends with the connection.
func (s *session) unsubscribe(ctx context.Context, filter string) {
	ctx, cancel := s.doctor.step(ctx)
	defer cancel()
	_ = s.client.Unsubscribe(ctx, filter)
}
