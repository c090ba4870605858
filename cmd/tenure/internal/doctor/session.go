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
	"github.com/tenurelock/tenure/internal/queueprobe"
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
	client        *paho.Client
	replies       chan *paho.Publish
	notifications chan *paho.Publish
	state         *queueprobe.Session
	probe         *queueprobe.Probe
}

func newSession(d *doctor, conn *mqtt.Conn) *session {
	s := &session{doctor: d, conn: conn, replies: make(chan *paho.Publish, unread), notifications: make(chan *paho.Publish, unread)}
	s.state, s.probe = queueprobe.NewSession(), queueprobe.New("clients/"+d.options.Client.ClientID+"/queue-probe")
	s.client = paho.NewClient(paho.ClientConfig{
		Conn:              conn,
		Session:           s.state,
		PacketTimeout:     d.options.Timeout,
		OnPublishReceived: []func(paho.PublishReceived) (bool, error){s.received},
	})
	return s
}

// received takes a message. One goroutine of paho calls it for each message, in order.
func (s *session) received(event paho.PublishReceived) (bool, error) {
	to := s.replies
	if event.Packet.Topic == s.probe.Topic() {
		s.probe.Count()
		return true, nil
	}
	if strings.HasPrefix(event.Packet.Topic, protocol.ReservedPrefix) {
		to = s.notifications
	}
	select {
	case to <- event.Packet:
	default: // it asked for none of so many
	}
	return true, nil
}

// close disconnects, and returns when the connection has ended.
func (s *session) close() {
	guard := time.AfterFunc(time.Second, s.conn.Abort) // the broker may not read
	defer guard.Stop()
	_ = s.client.Disconnect(&paho.Disconnect{})
	<-s.client.Done()
}

// abort ends a connection that the broker has not accepted.
func (s *session) abort() { s.conn.Abort() }

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
	user := paho.UserProperties{
		{Key: protocol.PropertySourceID, Value: id}, {Key: protocol.PropertyProtocolVersion, Value: protocol.ProtocolVersion},
		{Key: protocol.PropertyPartition, Value: id},
	}
	if !at.IsZero() {
		node := strings.ReplaceAll(id, ":", "_") // a timestamp has two colons
		user = append(user, paho.UserProperty{Key: protocol.PropertyTimestamp, Value: hlc.Timestamp{Wall: at.UnixMilli(), Node: node}.String()})
	}
	expiry := uint32(math.Ceil(s.doctor.options.Timeout.Seconds()))
	began, sent := s.doctor.options.Now(), time.Now()
	ack, err := s.client.Publish(ctx, &paho.Publish{
		QoS: 1, Topic: protocol.InvokeTopic, Payload: resp3.AppendCommand(nil, words...),
		Properties: &paho.PublishProperties{
			ResponseTopic: protocol.ResponseTopic(id), CorrelationData: correlation, ContentType: protocol.ContentType,
			MessageExpiry: &expiry, User: user,
		},
	})
	switch {
	case ack != nil && ack.ReasonCode >= 0x80:
		rejected := &transport.RejectedError{Code: int(ack.ReasonCode)}
		if ack.Properties != nil {
			rejected.Reason = ack.Properties.ReasonString
		}
		return answer{}, rejected
	case ack != nil && ack.ReasonCode == packets.PubackNoMatchingSubscribers:
		return answer{}, transport.ErrNoStore
	case err != nil:
		return answer{}, s.cause(err)
	}
	for {
		select {
		case reply := <-s.replies:
			if reply.Properties == nil || string(reply.Properties.CorrelationData) != string(correlation) {
				continue // to an earlier request, which was given up
			}
			return readAnswer(reply, answer{began: began, took: time.Since(sent)})
		case <-s.client.Done():
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
func readAnswer(reply *paho.Publish, a answer) (answer, error) {
	user := reply.Properties.User
	a.store, a.instance = user.Get(protocol.PropertyStore), user.Get(protocol.PropertyInstance)
	if text := user.Get(protocol.PropertyTimestamp); text != "" {
		a.version, _ = hlc.Parse(text) // a version that cannot be read counts as none
	}
	if status, err := strconv.Atoi(user.Get(protocol.PropertyStatus)); err == nil && status >= 400 {
		return a, &transport.RejectedError{Code: status, Reason: user.Get(protocol.PropertyStatusMessage)}
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
	ack, err := s.client.Subscribe(ctx, &paho.Subscribe{Subscriptions: []paho.SubscribeOptions{{Topic: filter, QoS: 1}}})
	if ack != nil && len(ack.Reasons) == 1 && ack.Reasons[0] >= 0x80 {
		rejected := &transport.RejectedError{Code: int(ack.Reasons[0])}
		if ack.Properties != nil {
			rejected.Reason = ack.Properties.ReasonString
		}
		return rejected
	}
	if err != nil {
		return s.cause(err)
	}
	return nil
}
