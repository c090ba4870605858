package mqtt

import (
	"bytes"
	"context"
	"errors"
	"net"
	"net/url"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/eclipse/paho.golang/packets"
	"github.com/eclipse/paho.golang/paho"

	"github.com/tenurelock/tenure/internal/await"
)

const (
	keepAliveOfClient = 10 // seconds
	receiveMaximum    = 5
)

// harness is a client, and the broker's end of its connection, in a bubble. The broker does what the
// test says. What the client writes waits, over a pipe, until the test reads it.
type harness struct {
	*testing.T
	broker   net.Conn
	client   *Client
	over     chan struct{} // closed when Run has returned
	received []string      // payloads
	lost     []*packets.Disconnect
	lostAt   time.Time
}

// inBubble calls test with a client that is about to connect.
func inBubble(t *testing.T, test func(t *testing.T, h *harness)) {
	synctest.Test(t, func(t *testing.T) {
		h := &harness{T: t}
		near, far := net.Pipe()
		h.broker = far
		var err error
		h.client, err = Dial(t.Context(), &url.URL{Scheme: "mqtt", Host: "broker:1883"}, Options{
			MaxPacket: 1 << 20, WriteTimeout: time.Hour,
			Dialer: func(context.Context, string, string) (net.Conn, error) { return near, nil },
			Authenticate: func() *packets.Auth {
				return &packets.Auth{ReasonCode: packets.AuthContinueAuthentication, Properties: &packets.Properties{AuthMethod: "method"}}
			},
			Received: func(p *Publish) { h.received = append(h.received, string(p.Payload)) },
			Lost: func(d *packets.Disconnect) {
				h.lost = append(h.lost, d)
				h.lostAt = time.Now()
			},
		})
		if err != nil {
			t.Fatal(err)
		}
		test(t, h)
		_ = far.Close()
		if h.over != nil {
			h.client.Disconnect()
			await.Receive(h.over)
		}
	})
}

// connect makes the client connect while handshake is the broker.
func (h *harness) connect(ctx context.Context, handshake func()) (*paho.Connack, error) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		handshake()
	}()
	maximum := uint16(receiveMaximum)
	connack, err := h.client.Connect(ctx, &paho.Connect{
		ClientID: "a", KeepAlive: keepAliveOfClient, CleanStart: true,
		Properties: &paho.ConnectProperties{ReceiveMaximum: &maximum, RequestProblemInfo: true},
	})
	await.Receive(done)
	if err == nil {
		h.over = make(chan struct{})
		go func() {
			defer close(h.over)
			h.client.Run()
		}()
	}
	return connack, err
}

// mustConnect connects with a CONNACK that has these properties.
func (h *harness) mustConnect(properties packets.Properties) {
	h.Helper()
	if _, err := h.connect(h.Context(), func() {
		h.read()
		h.send(packets.CONNACK, &packets.Connack{Properties: &properties})
	}); err != nil {
		h.Fatal(err)
	}
}

// read returns the next packet of the client.
func (h *harness) read() packets.Packet {
	h.Helper()
	p, err := packets.ReadPacket(h.broker)
	if err != nil {
		h.Fatal(err)
	}
	return p.Content
}

func (h *harness) send(kind byte, content packets.Packet) {
	h.Helper()
	var encoded bytes.Buffer
	p := packets.ControlPacket{FixedHeader: packets.FixedHeader{Type: kind}, Content: content}
	_, _ = p.WriteTo(&encoded)
	if _, err := h.broker.Write(encoded.Bytes()); err != nil {
		h.Fatal(err)
	}
}

func (h *harness) publish(payload string, qos byte, id uint16) {
	h.Helper()
	h.send(packets.PUBLISH, &packets.Publish{Topic: "t", QoS: qos, PacketID: id, Payload: []byte(payload), Properties: &packets.Properties{}})
}

// ended waits for the end of the connection, and fails if Lost was not called as it has to be.
func (h *harness) ended(first *packets.Disconnect) {
	h.Helper()
	await.Receive(h.over)
	if _, err := h.broker.Write([]byte{0}); err == nil {
		h.Error("the connection is still open")
	}
	want := []*packets.Disconnect{nil}
	if first != nil {
		want = append([]*packets.Disconnect{first}, want...)
	}
	if len(h.lost) != len(want) || (h.lost[0] == nil) != (first == nil) || h.lost[len(h.lost)-1] != nil {
		h.Errorf("Lost got %v, want %v", h.lost, want)
	}
}

// A connection that is half open is noticed after one to two keep-alives, whichever of the two sides
// asks for a shorter one; a longer one of the broker does not count.
func TestKeepAlive(t *testing.T) {
	for name, test := range map[string]struct {
		server uint16 // Server Keep Alive; 0: none
		want   time.Duration
	}{
		"the client's":         {0, keepAliveOfClient * time.Second},
		"the broker's":         {3, 3 * time.Second},
		"the broker's, longer": {60, keepAliveOfClient * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, h *harness) {
				var properties packets.Properties
				if test.server > 0 {
					properties.ServerKeepAlive = &test.server
				}
				began := time.Now()
				h.mustConnect(properties)
				for i := range 3 {
					if _, ok := h.read().(*packets.Pingreq); !ok || time.Since(began) != time.Duration(i+1)*test.want {
						t.Fatalf("PINGREQ %d came after %v, want one each %v", i, time.Since(began), test.want)
					}
					if i < 2 {
						h.send(packets.PINGRESP, &packets.Pingresp{})
					}
				}
				h.ended(nil)
				if got := h.lostAt.Sub(began); got != 4*test.want {
					t.Errorf("the silence was noticed after %v, want %v", got, 4*test.want)
				}
			})
		})
	}
}

// A broker may not read before it has written all it has. The client must read on although nothing
// takes its PUBACKs.
func TestMessagesAreReadWhileTheBrokerDoesNotReadAcknowledgements(t *testing.T) {
	inBubble(t, func(t *testing.T, h *harness) {
		h.mustConnect(packets.Properties{})
		for i := range receiveMaximum {
			h.publish(string(rune('a'+i)), 1, uint16(i+1))
		}
		h.publish("z", 0, 0)
		synctest.Wait()
		if got := strings.Join(h.received, ""); got != "abcdez" {
			t.Errorf("received %q", got)
		}
		for round := range 2 { // the second time, to see that the quota is free again
			for i := range receiveMaximum {
				if ack, ok := h.read().(*packets.Puback); !ok || ack.PacketID != uint16(i+1) || ack.ReasonCode != 0 {
					t.Fatalf("got %v, want PUBACK %d", ack, i+1)
				}
			}
			for i := range receiveMaximum * (1 - round) {
				h.publish("b", 1, uint16(i+1))
			}
		}
	})
}

// What a broker can make the client hold has a bound: its Receive Maximum.
func TestMoreMessagesThanTheReceiveMaximumEndTheConnection(t *testing.T) {
	inBubble(t, func(t *testing.T, h *harness) {
		h.mustConnect(packets.Properties{})
		h.publish("a", 1, 1)
		synctest.Wait() // its PUBACK is being written: the broker may have it, and this counts no more
		for i := range receiveMaximum + 1 {
			h.publish("a", 1, uint16(i+2))
		}
		h.ended(nil)
		if len(h.received) != receiveMaximum+2 {
			t.Errorf("%d messages were received", len(h.received))
		}
		if why := h.client.CloseCause(); why == nil || !strings.Contains(why.Error(), "Receive Maximum of 5") {
			t.Errorf("the cause is %v", why)
		}
	})
}

func TestAMessageWithQoS2EndsTheConnection(t *testing.T) {
	inBubble(t, func(t *testing.T, h *harness) {
		h.mustConnect(packets.Properties{})
		h.publish("a", 2, 1)
		if d, ok := h.read().(*packets.Disconnect); !ok || d.ReasonCode != packets.DisconnectProtocolError { // 0x9B is a server's [MQTT-3.14.2-1]
			t.Errorf("got %v, want a DISCONNECT with 0x82", d)
		}
		h.ended(nil)
		if why := h.client.CloseCause(); why == nil || !strings.Contains(why.Error(), "QoS 2") {
			t.Errorf("the cause is %v", why)
		}
		if len(h.received) > 0 {
			t.Errorf("received %q", h.received)
		}
	})
}

func TestTheReasonOfTheBrokerComesFirst(t *testing.T) {
	inBubble(t, func(t *testing.T, h *harness) {
		h.mustConnect(packets.Properties{})
		h.send(packets.DISCONNECT, &packets.Disconnect{ReasonCode: packets.DisconnectSessionTakenOver, Properties: &packets.Properties{ReasonString: "why"}})
		h.ended(&packets.Disconnect{})
		if d := h.lost[0]; d.ReasonCode != packets.DisconnectSessionTakenOver || d.Properties.ReasonString != "why" {
			t.Errorf("got %v", d)
		}
	})
}

func TestDisconnectSaysSo(t *testing.T) {
	inBubble(t, func(t *testing.T, h *harness) {
		h.mustConnect(packets.Properties{})
		go h.client.Disconnect()
		if d, ok := h.read().(*packets.Disconnect); !ok || d.ReasonCode != 0 {
			t.Errorf("got %v", d)
		}
		began := time.Now()
		h.ended(nil)
		if waited := time.Since(began); waited > 0 {
			t.Errorf("the end took %v: the next PINGREQ has to be called off", waited)
		}
	})
}

// Subscribe takes the SUBACK of its own SUBSCRIBE only, and ends with its context and with the
// connection.
func TestSubscribe(t *testing.T) {
	inBubble(t, func(t *testing.T, h *harness) {
		h.mustConnect(packets.Properties{})
		type result struct {
			suback *packets.Suback
			err    error
		}
		subscribe := func(ctx context.Context, answer func(id uint16)) result {
			results := make(chan result, 1)
			go func() {
				suback, err := h.client.Subscribe(ctx, packets.SubOptions{Topic: "t", QoS: 1}, packets.SubOptions{Topic: "u", QoS: 1})
				results <- result{suback, err}
			}()
			p, ok := h.read().(*packets.Subscribe)
			if !ok || len(p.Subscriptions) != 2 || p.Subscriptions[1].Topic != "u" {
				t.Fatalf("got %v", p)
			}
			answer(p.PacketID)
			return await.Receive(results)
		}
		suback := func(id uint16, codes ...byte) {
			h.send(packets.SUBACK, &packets.Suback{PacketID: id, Reasons: codes, Properties: &packets.Properties{}})
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		var late uint16
		if r := subscribe(ctx, func(id uint16) { late = id }); !errors.Is(r.err, context.DeadlineExceeded) || r.suback != nil {
			t.Errorf("without an answer: %+v", r)
		}
		if r := subscribe(t.Context(), func(id uint16) {
			suback(late, 0x87, 0x87)
			suback(id, 1, 1)
			for range 3 { // too often
				suback(id, 0x87, 0x87)
			}
		}); r.err != nil {
			t.Errorf("the late answer counted: %v", r.err)
		}
		if r := subscribe(t.Context(), func(id uint16) { suback(id, 1, 0x87) }); r.err == nil || r.suback == nil {
			t.Errorf("refused: %+v", r)
		}
		if r := subscribe(t.Context(), func(id uint16) { suback(id, 1) }); r.err == nil || r.suback != nil {
			t.Errorf("an answer to one of two: %+v", r)
		}
		if r := subscribe(t.Context(), func(id uint16) { suback(id, bytes.Repeat([]byte{0x87}, 1000)...) }); r.err == nil || r.suback != nil {
			t.Errorf("a thousand refusals of two: %v", r.err)
		}
		if r := subscribe(t.Context(), func(uint16) { _ = h.broker.Close() }); r.err == nil || r.suback != nil {
			t.Errorf("lost: %+v", r)
		}
	})
}

// mustPublish returns the next packet of the client, a PUBLISH.
func (h *harness) mustPublish() *packets.Publish {
	h.Helper()
	p, ok := h.read().(*packets.Publish)
	if !ok {
		h.Fatalf("got %v, want a PUBLISH", p)
	}
	return p
}

func (h *harness) puback(id uint16, code byte, reason string) {
	h.Helper()
	h.send(packets.PUBACK, &packets.Puback{PacketID: id, ReasonCode: code, Properties: &packets.Properties{ReasonString: reason}})
}

// Publish returns the PUBACK of its own message only, and ends with its context and with the connection.
func TestPublish(t *testing.T) {
	inBubble(t, func(t *testing.T, h *harness) {
		h.mustConnect(packets.Properties{})
		type result struct {
			ack *Puback
			err error
		}
		publish := func(ctx context.Context, answer func(p *packets.Publish)) result {
			results := make(chan result, 1)
			go func() {
				ack, err := h.client.Publish(ctx, &Message{Topic: "t", Retain: true, Payload: []byte("a")})
				results <- result{ack, err}
			}()
			p := h.mustPublish()
			if p.QoS != 1 || !p.Retain || p.Topic != "t" || string(p.Payload) != "a" || p.PacketID == 0 {
				t.Errorf("got %v", p)
			}
			answer(p)
			return await.Receive(results)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		var late uint16
		if r := publish(ctx, func(p *packets.Publish) { late = p.PacketID }); !errors.Is(r.err, context.DeadlineExceeded) || r.ack != nil {
			t.Errorf("without an answer: %+v", r)
		}
		if r := publish(t.Context(), func(p *packets.Publish) {
			h.puback(late, 0x87, "late")
			h.send(packets.SUBACK, &packets.Suback{PacketID: p.PacketID, Reasons: []byte{0x87}, Properties: &packets.Properties{}})
			h.puback(p.PacketID, packets.PubackNoMatchingSubscribers, "")
			h.puback(p.PacketID, 0x87, "once more")
		}); r.err != nil || r.ack.ReasonCode != packets.PubackNoMatchingSubscribers {
			t.Errorf("taken: %+v", r)
		}
		if r := publish(t.Context(), func(p *packets.Publish) {
			h.puback(p.PacketID, 0x87, "not you")
			h.publish("overwrites what was read", 0, 0)
		}); r.err == nil || r.ack.ReasonCode != 0x87 || string(r.ack.ReasonString) != "not you" || !strings.Contains(r.err.Error(), "0x87") {
			t.Errorf("refused: %+v", r)
		}
		if r := publish(t.Context(), func(*packets.Publish) { _ = h.broker.Close() }); r.err == nil || r.ack != nil {
			t.Errorf("lost: %+v", r)
		}
	})
}

func TestNoMoreMessagesAreInFlightThanTheBrokerAllows(t *testing.T) {
	inBubble(t, func(t *testing.T, h *harness) {
		const allowed, messages = 2, 5
		maximum := uint16(allowed)
		h.mustConnect(packets.Properties{ReceiveMaximum: &maximum})
		sent, acknowledged := 0, 0
		ended := make(chan error, 1)
		go func() {
			for range messages {
				if err := h.client.PublishAsync(t.Context(), &Message{Topic: "t"}, func(*Puback) { acknowledged++ }); err != nil {
					ended <- err
					return
				}
				sent++
			}
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			ended <- h.client.PublishAsync(ctx, &Message{Topic: "t"}, nil)
		}()
		var inFlight []uint16
		for i := range messages {
			inFlight = append(inFlight, h.mustPublish().PacketID)
			synctest.Wait()
			if want := min(i+1, allowed); sent != i+1 || len(inFlight) != want {
				t.Errorf("%d are sent, %d are in flight, want %d and %d", sent, len(inFlight), i+1, want)
			}
			if len(inFlight) == allowed && i < messages-1 {
				h.puback(inFlight[0], 0, "")
				inFlight = inFlight[1:]
			}
		}
		if err := await.Receive(ended); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("one more: %v", err)
		}
		if want := messages - allowed; acknowledged != want {
			t.Errorf("%d are acknowledged, want %d", acknowledged, want)
		}
	})
}

func TestAMessageThatTheBrokerDoesNotTakeIsNotSent(t *testing.T) {
	size := uint32(50)
	for name, test := range map[string]struct {
		conditions packets.Properties
		message    Message
		want       string
	}{
		"too large":          {packets.Properties{MaximumPacketSize: &size}, Message{Topic: "t", Payload: make([]byte, 50)}, "at most 50"},
		"too large for MQTT": {packets.Properties{}, Message{Topic: strings.Repeat("t", 1<<16)}, ErrTooLong.Error()},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, h *harness) {
				h.mustConnect(test.conditions)
				for range maxInFlight + 1 { // it takes no place
					if err := h.client.PublishAsync(t.Context(), &test.message, nil); err == nil || !strings.Contains(err.Error(), test.want) {
						t.Fatalf("PublishAsync: %v, want %q", err, test.want)
					}
				}
				if err := h.client.Send(&test.message); err == nil || !strings.Contains(err.Error(), test.want) {
					t.Errorf("Send: %v, want %q", err, test.want)
				}
				go func() { _ = h.client.Send(&Message{Topic: "t", Payload: []byte("fits")}) }()
				if p := h.mustPublish(); string(p.Payload) != "fits" || p.QoS != 0 || p.Retain {
					t.Errorf("got %v", p)
				}
			})
		})
	}
}

// [MQTT-4.12.0-6]
func TestAnAuthThatTheClientCannotAnswerEndsTheConnection(t *testing.T) {
	auth := &packets.Auth{ReasonCode: packets.AuthContinueAuthentication, Properties: &packets.Properties{AuthMethod: "method"}}
	t.Run("before the CONNACK", func(t *testing.T) {
		inBubble(t, func(t *testing.T, h *harness) {
			h.client.options.Authenticate = nil
			if _, err := h.connect(t.Context(), func() { h.read(); h.send(packets.AUTH, auth) }); err == nil || !strings.Contains(err.Error(), "AUTH") {
				t.Errorf("Connect: %v", err)
			}
		})
	})
	t.Run("later", func(t *testing.T) {
		inBubble(t, func(t *testing.T, h *harness) {
			h.client.options.Authenticate = nil
			h.mustConnect(packets.Properties{})
			h.send(packets.AUTH, auth)
			if d, ok := h.read().(*packets.Disconnect); !ok || d.ReasonCode != packets.DisconnectProtocolError {
				t.Errorf("got %v, want a DISCONNECT with 0x82", d)
			}
			h.ended(nil)
		})
	})
}

// An attempt that fails leaves a closed connection and nothing that runs.
func TestConnectFails(t *testing.T) {
	for name, test := range map[string]struct {
		broker  func(h *harness)
		refused bool
		want    error
	}{
		"no answer":     {func(h *harness) { h.read() }, false, context.DeadlineExceeded},
		"nothing reads": {func(*harness) {}, false, context.DeadlineExceeded},
		"hung up":       {func(h *harness) { h.read(); _ = h.broker.Close() }, false, nil},
		"refused": {func(h *harness) {
			h.read()
			h.send(packets.CONNACK, &packets.Connack{ReasonCode: packets.ConnackNotAuthorized, Properties: &packets.Properties{}})
		}, true, nil},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, h *harness) {
				ctx, cancel := context.WithTimeout(t.Context(), time.Second)
				defer cancel()
				connack, err := h.connect(ctx, func() { test.broker(h) })
				if err == nil || test.want != nil && !errors.Is(err, test.want) {
					t.Errorf("the error is %v, want %v", err, test.want)
				}
				if (connack != nil) != test.refused {
					t.Errorf("the CONNACK is %v", connack)
				}
				if _, err := h.broker.Write([]byte{0}); err == nil {
					t.Error("the connection is still open")
				}
				if len(h.lost) > 0 {
					t.Error("Lost was called")
				}
			})
		})
	}
}

func TestAWriteThatMakesNoProgressEndsTheConnection(t *testing.T) {
	for name, packet := range map[string][]byte{"a packet": []byte("ab"), "a large batch": make([]byte, 32<<10)} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, h *harness) {
				began := time.Now()
				h.client.Write(packet) // and the other end does not read
				if took := time.Since(began); took != time.Hour {
					t.Errorf("it took %v", took)
				}
				if n, err := h.broker.Write([]byte("x")); err == nil {
					t.Errorf("the connection goes on: %d bytes written", n)
				}
			})
		})
	}
}
