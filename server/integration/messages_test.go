package integration_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/eclipse/paho.golang/packets"

	"github.com/tenurelock/tenure/server"
	"github.com/tenurelock/tenure/server/internal/rawmqtt"
	"github.com/tenurelock/tenure/server/internal/testsupport"
)

// What was sent before comes with DUP and its packet identifier, what was not comes without.
func TestWhatIsNotAcknowledgedComesAgainInItsOrder(t *testing.T) {
	for name, leave := range map[string]func(*testsupport.RawClient){
		"after a lost connection": func(c *testsupport.RawClient) { _ = c.Conn.Close() },
		"after a DISCONNECT":      (*testsupport.RawClient).Disconnect,
		"after a take-over":       func(*testsupport.RawClient) {},
	} {
		t.Run(name, func(t *testing.T) {
			address, s := testsupport.StartServer(t, server.Options{})
			login := testsupport.ConnectPacket{ID: "subscriber", Resume: true, Expiry: 600, Properties: rawmqtt.Body{packets.PropReceiveMaximum}.Uint16(4)}
			c, publisher := login.Connect(t, address), testsupport.ConnectPacket{ID: "publisher"}.Connect(t, address)
			c.Subscribe("t")
			publisher.MustPublish("t", testsupport.Numbered(6)...)
			var first []testsupport.Message
			for range 4 {
				first = append(first, c.Next())
			}
			c.Ack(first[1])
			first = append(first, c.Next()) // the server has read the PUBACK
			leave(c)
			if c = login.Connect(t, address); !c.Present {
				t.Error("the session is not present")
			}
			for _, want := range slices.Delete(first, 1, 2) {
				got := c.Next()
				if got.Payload != want.Payload || got.ID != want.ID || !got.Dup || got.QoS != 1 {
					t.Errorf("got %+v, want %+v again", got, want)
				}
				c.Ack(got)
			}
			if got := c.MustReceive("00005")[0]; got.Dup {
				t.Errorf("%+v is not sent for the first time", got)
			}
			testsupport.Eventually(t, "nothing waits", func() bool { return s.Usage().WaitingMessages == 0 && s.Usage().WaitingBytes == 0 })
		})
	}
}

// One message, and the subscriptions of one client.
func TestAMessageReachesEachSubscriberAsItAsked(t *testing.T) {
	type subscription struct {
		options byte
		filter  string
	}
	properties := rawmqtt.Body(nil).User("a", "1").User("a", "2")
	properties = append(properties, rawmqtt.Body{packets.PropContentType}.Text("c")...)
	properties = append(properties, rawmqtt.Body{packets.PropResponseTopic}.Text("answers")...)
	properties = append(properties, rawmqtt.Body{packets.PropCorrelationData}.Text("n")...)
	properties = append(properties, packets.PropPayloadFormat, 1)
	expiring := append(rawmqtt.Body{packets.PropMessageExpiry}.Uint32(100), properties...)
	payload := strings.Repeat("p", 40)
	message := func(qos byte, list rawmqtt.Body) rawmqtt.Message {
		return rawmqtt.Message{Topic: "a/b", QoS: qos, Payload: []byte(payload), Properties: list}
	}
	for _, test := range []struct {
		name    string
		self    bool // the subscriber publishes
		login   rawmqtt.Body
		subs    []subscription
		message rawmqtt.Message
		want    []testsupport.Message
	}{
		{name: "all properties", subs: []subscription{{1, "a/b"}}, message: message(1, properties), want: []testsupport.Message{{QoS: 1, Properties: string(properties)}}},
		{name: "an expiry", subs: []subscription{{1, "a/b"}}, message: message(1, expiring), want: []testsupport.Message{{QoS: 1, Expiry: 100, Properties: string(properties)}}},
		{name: "less by the subscription", subs: []subscription{{0, "a/b"}}, message: message(1, nil), want: []testsupport.Message{{QoS: 0}}},
		{name: "less by the message", subs: []subscription{{1, "a/b"}}, message: message(0, nil), want: []testsupport.Message{{QoS: 0}}},
		{name: "QoS 2 is granted as 1", subs: []subscription{{2, "a/b"}}, message: message(1, nil), want: []testsupport.Message{{QoS: 1}}},
		{name: "once for all that match", subs: []subscription{{0, "a/b"}, {1, "a/+"}, {0, "#"}, {1, "c"}}, message: message(1, nil), want: []testsupport.Message{{QoS: 1}}},
		{name: "a replaced subscription", subs: []subscription{{1, "a/b"}, {0, "a/b"}}, message: message(1, nil), want: []testsupport.Message{{QoS: 0}}},
		{name: "No Local", self: true, subs: []subscription{{1 | testsupport.NoLocal, "a/b"}}, message: message(1, nil)},
		{name: "No Local of one of two", self: true, subs: []subscription{{1 | testsupport.NoLocal, "a/b"}, {0, "a/#"}}, message: message(1, nil), want: []testsupport.Message{{QoS: 0}}},
		{name: "No Local for others' messages", subs: []subscription{{1 | testsupport.NoLocal, "a/b"}}, message: message(1, nil), want: []testsupport.Message{{QoS: 1}}},
		{name: "to itself", self: true, subs: []subscription{{1, "a/b"}}, message: message(1, nil), want: []testsupport.Message{{QoS: 1}}},
		{name: "just small enough", login: rawmqtt.Body{packets.PropMaximumPacketSize}.Uint32(50), subs: []subscription{{1, "a/b"}}, message: message(1, nil), want: []testsupport.Message{{QoS: 1}}},
		{name: "too large for its client", login: rawmqtt.Body{packets.PropMaximumPacketSize}.Uint32(49), subs: []subscription{{1, "a/b"}}, message: message(1, nil)},
		{name: "too large for its client with QoS 0", login: rawmqtt.Body{packets.PropMaximumPacketSize}.Uint32(47), subs: []subscription{{1, "a/b"}}, message: message(0, nil)},
		{name: "another topic", subs: []subscription{{1, "a/b/c"}, {1, "+"}, {1, "b/#"}}, message: message(1, nil)},
	} {
		t.Run(test.name, func(t *testing.T) {
			address := testsupport.Start(t, server.Options{})
			c := testsupport.ConnectPacket{ID: "subscriber", Properties: test.login}.Connect(t, address)
			publisher := testsupport.ConnectPacket{ID: "publisher"}.Connect(t, address)
			for _, sub := range test.subs {
				if codes := c.Filter(sub.options, sub.filter); codes[0] != min(sub.options&3, 1) {
					t.Fatalf("SUBACK %x for %q", codes, sub.filter)
				}
			}
			c.Subscribe("z")
			if test.self {
				test.message.QoS = 0 // or the PUBACK would come in between
				if len(test.want) == 1 {
					test.want[0].QoS = 0
				}
				c.Send(test.message)
				c.Send(rawmqtt.Message{Topic: "z"})
			} else {
				publisher.Send(test.message)
				publisher.Send(rawmqtt.Message{Topic: "z"})
			}
			var got []testsupport.Message
			for h := c.Next(); h.Topic != "z"; h = c.Next() {
				if h.Topic != "a/b" || h.Payload != payload || (h.ID == 0) != (h.QoS == 0) {
					t.Errorf("got %+v", h)
				}
				h.Topic, h.Payload, h.ID = "", "", 0
				got = append(got, h)
			}
			if fmt.Sprintf("%+v", got) != fmt.Sprintf("%+v", test.want) {
				t.Errorf("got  %+v\nwant %+v", got, test.want)
			}
		})
	}
}

func TestAPublisherLearnsThatNoClientSubscribes(t *testing.T) {
	address := testsupport.Start(t, server.Options{})
	publisher, subscriber := testsupport.ConnectPacket{ID: "publisher"}.Connect(t, address), testsupport.ConnectPacket{ID: "subscriber"}.Connect(t, address)
	for _, step := range []struct {
		filter string
		code   byte
	}{{"other", 0x10}, {"t", 0}} {
		subscriber.Subscribe(step.filter)
		if got := publisher.Publish(rawmqtt.Message{Topic: "t"}); got != step.code {
			t.Errorf("PUBACK %#x with a subscription to %q, want %#x", got, step.filter, step.code)
		}
	}
}
