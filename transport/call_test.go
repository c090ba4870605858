package transport

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/eclipse/paho.golang/packets"

	"github.com/tenurelock/tenure/hlc"
	"github.com/tenurelock/tenure/internal/await"
	"github.com/tenurelock/tenure/internal/mqtt"
	"github.com/tenurelock/tenure/internal/protocol"
	"github.com/tenurelock/tenure/internal/storeconn"
)

// inBubble runs a test in virtual time, with the options for a client with id "a".
func inBubble(t *testing.T, test func(t *testing.T, options Options)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) { test(t, Options{ClientID: "a"}) })
}

// quietBroker answers and acknowledges requests only when a test says so.
type quietBroker struct {
	*pipeBroker
	mu       sync.Mutex
	requests []*packets.Publish
}

func newQuietBroker(receiveMaximum uint16) *quietBroker {
	b := &quietBroker{pipeBroker: &pipeBroker{}}
	b.answer = func(conn net.Conn, packet *packets.ControlPacket) bool {
		b.mu.Lock()
		defer b.mu.Unlock()
		switch content := packet.Content.(type) {
		case *packets.Connect:
			send(conn, packets.CONNACK, func(p *packets.Connack) { p.Properties.ReceiveMaximum = &receiveMaximum })
			return true
		case *packets.Publish:
			b.requests = append(b.requests, content)
			return true
		}
		return false
	}
	return b
}

// received returns the requests that arrived, after all goroutines of the bubble are blocked.
func (b *quietBroker) received() []*packets.Publish {
	synctest.Wait()
	b.mu.Lock()
	defer b.mu.Unlock()
	return slices.Clone(b.requests)
}

func (b *quietBroker) acknowledge(id uint16, code byte) {
	send(b.present(), packets.PUBACK, func(p *packets.Puback) { p.PacketID, p.ReasonCode = id, code })
}

// keyOf returns the key of a GET.
func keyOf(request *packets.Publish) string {
	return strings.Split(string(request.Payload), "\r\n")[4]
}

// value makes the reply to a request.
func value(request *packets.Publish, value string, qos byte) *packets.ControlPacket {
	packet := packets.NewControlPacket(packets.PUBLISH)
	p := packet.Content.(*packets.Publish)
	p.Topic, p.Payload, p.QoS = request.Properties.ResponseTopic, fmt.Appendf(nil, "$%d\r\n%s\r\n", len(value), value), qos
	p.Properties.CorrelationData = request.Properties.CorrelationData
	p.Properties.User = []packets.User{{Key: protocol.PropertyTimestamp, Value: "1:" + fmt.Sprint(len(value)) + ":s"}}
	if qos > 0 {
		p.PacketID = 9
	}
	return packet
}

type outcome struct {
	entry Entry
	err   error
}

// get asks for keys at the same time and returns where each outcome will be.
func get(ctx context.Context, client *Client, keys ...string) map[string]chan outcome {
	outcomes := make(map[string]chan outcome)
	for _, key := range keys {
		c := make(chan outcome, 1)
		outcomes[key] = c
		go func() {
			entry, err := client.Get(ctx, key)
			c <- outcome{entry, err}
		}()
	}
	return outcomes
}

// A program may have a thousand clients that do nothing, and each goroutine keeps a stack.
func TestAnIdleClientHasTwoGoroutines(t *testing.T) {
	inBubble(t, func(t *testing.T, options Options) {
		before := goroutines()
		b := newQuietBroker(1000)
		client := mustDialTo(t, b.pipeBroker, options)
		idle := before + 2 + 2 // of the broker, and of the client
		for round := range 3 {
			time.Sleep(3 * time.Second)
			synctest.Wait()
			if got := goroutines(); got != idle {
				t.Fatalf("round %d: an idle client has %d goroutines, want 2", round, got-idle+2)
			}
			outcomes := get(t.Context(), client, "k1", "k2")
			for _, request := range b.received()[2*round:] {
				_, _ = value(request, "v", 0).WriteTo(b.present())
				b.acknowledge(request.PacketID, 0)
			}
			for key, c := range outcomes {
				if got := await.Receive(c); got.err != nil || string(got.entry.Value) != "v" {
					t.Errorf("round %d: %s: %+v", round, key, got)
				}
			}
		}
	})
}

func TestPacketIDsInUseAreNotGivenAgain(t *testing.T) {
	l := &link{lastID: 65533, unacked: map[uint16]correlation{65535: {}, 1: {}}}
	for _, want := range []uint16{65534, 2, 3} {
		if got := l.nextIDLocked(); got != want {
			t.Errorf("the next packet id is %d, want %d", got, want)
		}
	}
}

func TestAFullBatchIsNotTheLast(t *testing.T) {
	conn, _ := newTestLink(t, 1000)
	l, far := conn.newPipeLink(t, 1000)
	conn.established(l)
	const requests, size = 20, 5000
	for range requests {
		conn.begin(t, t.Context(), storeconn.Request{Payload: make([]byte, size)})
	}
	go func() {
		l.send()
		l.client.Abort()
	}()
	if sent, err := io.ReadAll(far); len(sent) < requests*size || err != nil {
		t.Errorf("%d bytes were sent (%v), want %d requests of %d", len(sent), err, requests, size)
	}
}

func TestARequestThatMQTTCannotEncodeIsNotSentAndDelaysNoOther(t *testing.T) {
	conn, l := newTestLink(t, 2)
	tooLong := conn.begin(t, t.Context(), storeconn.Request{FencingToken: strings.Repeat("x", 1<<16)})
	other := conn.begin(t, t.Context(), storeconn.Request{})
	l.gather()
	select {
	case <-tooLong.done:
		if got := tooLong; !errors.Is(got.err, ErrNotSent) || !errors.Is(got.err, mqtt.ErrTooLong) {
			t.Errorf("%v, want ErrNotSent and ErrTooLong", got.err)
		}
	default:
		t.Error("its caller gets no result")
	}
	if l.pending[other.correlation] != other || len(l.pending) != 1 || len(l.unacked) != 1 || len(l.packets) == 0 {
		t.Errorf("%d calls are pending, %d are unacknowledged; want the other one alone", len(l.pending), len(l.unacked))
	}
}

// docs/protocol.md §1.3, §1.4 and §7.7.
func TestARequestHasThePropertiesThatTheProtocolAsksFor(t *testing.T) {
	inBubble(t, func(t *testing.T, options Options) {
		b := newQuietBroker(10)
		client := mustDialTo(t, b.pipeBroker, options)
		token := hlc.Token{Wall: 1, Counter: 2, Node: "n"}
		for i, test := range []struct {
			do   func(ctx context.Context) error
			want string // the user properties
		}{
			{func(ctx context.Context) error { return second(client.Get(ctx, "k")) }, "__srcId=a __protVer=1.0 $partition=a"},
			{func(ctx context.Context) error {
				return second(client.Set(ctx, "k", nil, SetOptions{FencingToken: token, Persist: true, Binding: Binding{Store: "s"}}))
			}, "__srcId=a __protVer=1.0 $partition=a __ts=now __ft=1:2:n tenure-store=s aio-persistence=true"},
			{func(ctx context.Context) error {
				return second(client.VDel(ctx, "k", nil, DelOptions{Forced: "ana@ops"}))
			}, "__srcId=a __protVer=1.0 $partition=a tenure-forced=ana@ops"},
		} {
			ctx, cancel := context.WithTimeout(t.Context(), 9500*time.Millisecond)
			defer cancel()
			if err := test.do(ctx); !errors.Is(err, ErrOutcomeUnknown) {
				t.Error(err)
			}
			request := b.received()[i]
			p := request.Properties
			var user []string
			for _, u := range p.User {
				if u.Key == protocol.PropertyTimestamp {
					u.Value = "now"
				}
				user = append(user, u.Key+"="+u.Value)
			}
			if got := strings.Join(user, " "); got != test.want {
				t.Errorf("request %d has the user properties %q, want %q", i, got, test.want)
			}
			if p.MessageExpiry == nil || *p.MessageExpiry != 10 || len(p.CorrelationData) != len(correlation{}) {
				t.Errorf("expiry %v, correlation data %x", p.MessageExpiry, p.CorrelationData)
			}
			if p.ResponseTopic != protocol.ResponseTopic("a") || p.ContentType != protocol.ContentType || request.Topic != protocol.InvokeTopic || request.QoS != 1 {
				t.Errorf("topic %q, QoS %d, response topic %q, content type %q", request.Topic, request.QoS, p.ResponseTopic, p.ContentType)
			}
		}
		for _, odd := range []string{"a\x00b", "a\nb", "\xff", strings.Repeat("a", 257)} {
			if _, err := client.Del(t.Context(), "k", DelOptions{Forced: odd}); !errors.Is(err, ErrNotSent) {
				t.Errorf("a reason of %d bytes, %.10q: %v, want ErrNotSent", len(odd), odd, err)
			}
		}
	})
}

// second returns the error of a request.
func second[T any](_ T, err error) error { return err }

func TestAReplyNeedsTheWholeCorrelationOfItsRequest(t *testing.T) {
	inBubble(t, func(t *testing.T, options Options) {
		b := newQuietBroker(10)
		client := mustDialTo(t, b.pipeBroker, options)
		c := get(t.Context(), client, "k")["k"]
		request := b.received()[0]
		right := request.Properties.CorrelationData
		for _, wrong := range [][]byte{nil, right[:15], append(bytes.Clone(right), 0), make([]byte, 16)} {
			request.Properties.CorrelationData = wrong
			_, _ = value(request, "wrong", 0).WriteTo(b.present())
		}
		request.Properties.CorrelationData = right
		_, _ = value(request, "right", 0).WriteTo(b.present())
		if got := await.Receive(c); got.err != nil || string(got.entry.Value) != "right" {
			t.Errorf("%q, %v", got.entry.Value, got.err)
		}
	})
}

func TestInvariant44ALinkKeepsNoPartOfAPacketsBuffer(t *testing.T) {
	conn, l := newTestLink(t, 10)
	var notifications []storeconn.Notification
	conn.events.Notify = func(n storeconn.Notification) { notifications = append(notifications, n) }
	user := func(status string) []mqtt.UserProperty {
		return []mqtt.UserProperty{{Name: protocol.PropertyTimestamp, Value: "1:2:s"}, {Name: protocol.PropertyStatus, Value: status}, {Name: protocol.PropertyStatusMessage, Value: "why"}}
	}
	// Each packet is overwritten as soon as it is taken.
	take := func(packet []byte, err error) {
		t.Helper()
		var p mqtt.Publish
		var ack mqtt.Puback
		if err == nil && p.Decode(packet, new(mqtt.Limits)) == nil { // as the gate does
			l.received(&p)
		} else if ack.Decode(packet, new(mqtt.Limits)) == nil {
			l.acknowledged(&ack)
		} else {
			t.Fatalf("not taken (%v)", err)
		}
		for i := range packet {
			packet[i] = '#'
		}
	}
	post := func() *call {
		c := conn.begin(t, t.Context(), storeconn.Request{})
		l.gather()
		return c
	}
	answered, failed, refused := post(), post(), post()
	for e, status := range map[*call]string{answered: "200", failed: "500"} {
		m := mqtt.Message{Topic: l.replies, CorrelationData: e.correlation[:], User: user(status), Payload: []byte("payload")}
		take(m.Append(nil))
	}
	take([]byte{0x40, 10, 0, byte(l.lastID), 0x87, 6, 0x1f, 0, 3, 'w', 'h', 'y'}, nil)
	notification := mqtt.Message{Topic: protocol.NotifyTopic("a", "k"), User: user("200"), Payload: []byte("payload")}
	take(notification.Append(nil))
	if got := answered.outcome(); got.err != nil || string(got.reply.Payload) != "payload" || got.reply.Timestamp != "1:2:s" {
		t.Errorf("the reply: %q, %q, %v", got.reply.Payload, got.reply.Timestamp, got.err)
	}
	for e, want := range map[*call]RejectedError{failed: {Code: 500, Reason: "why"}, refused: {Code: 0x87, Reason: "why"}} {
		var rejected *RejectedError
		if got := e.outcome(); !errors.As(got.err, &rejected) || *rejected != want {
			t.Errorf("%v, want %v", got.err, want)
		}
	}
	if len(notifications) != 1 {
		t.Fatalf("%d notifications", len(notifications))
	}
	if got := notifications[0]; got.Key != "k" || string(got.Payload) != "payload" || got.Timestamp != "1:2:s" {
		t.Errorf("the notification: %+v", got)
	}
}
