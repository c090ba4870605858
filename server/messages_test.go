package server_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/tenurelock/tenure/internal/await"
	"github.com/tenurelock/tenure/internal/wire"
	"github.com/tenurelock/tenure/server"
	"github.com/tenurelock/tenure/server/internal/rawmqtt"
)

func TestTheReceiveMaximumOfASubscriberIsHonoured(t *testing.T) {
	address := start(t, server.Options{})
	subscriber := hello{id: "subscriber", properties: rawmqtt.Body{wire.ReceiveMaximum}.Uint16(3)}.join(t, address)
	publisher := hello{id: "publisher"}.join(t, address)
	subscriber.hears("t")
	publisher.tells("t", numbered(10)...)
	var waiting []heard
	for i := range 3 {
		waiting = append(waiting, subscriber.next())
		if got := waiting[i].payload; got != fmt.Sprintf("%05d", i) {
			t.Errorf("message %d is %q", i, got)
		}
	}
	// A message of QoS 0 does not count, and comes where the others wait.
	publisher.send(rawmqtt.Message{Topic: "t", Payload: []byte("QoS 0")})
	if got := subscriber.next(); got.payload != "QoS 0" {
		t.Errorf("beyond the Receive Maximum came %+v", got)
	}
	subscriber.ack(waiting[1])
	if got := subscriber.next(); got.payload != "00003" {
		t.Errorf("after an acknowledgement came %+v", got)
	}
}

// What was sent before comes with DUP and its packet identifier, what was not comes without.
func TestWhatIsNotAcknowledgedComesAgainInItsOrder(t *testing.T) {
	for name, leave := range map[string]func(*messenger, func() *messenger) *messenger{
		"after a lost connection": func(c *messenger, join func() *messenger) *messenger { _ = c.conn.Close(); return join() },
		"after a DISCONNECT":      func(c *messenger, join func() *messenger) *messenger { c.farewell(); return join() },
		"after a take-over":       func(_ *messenger, join func() *messenger) *messenger { return join() },
	} {
		for _, old := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, MQTT 3.1.1: %v", name, old), func(t *testing.T) {
				address, s := startServer(t, server.Options{})
				login := hello{id: "subscriber", old: old, resume: true, expiry: 600}
				most := 4
				if !old {
					login.properties = rawmqtt.Body{wire.ReceiveMaximum}.Uint16(uint16(most))
				}
				c := login.join(t, address)
				publisher := hello{id: "publisher"}.join(t, address)
				c.hears("t")
				if old {
					publisher.tells("t", numbered(most)...) // it takes all there are
				} else {
					publisher.tells("t", numbered(6)...)
				}
				var first []heard
				for range most {
					first = append(first, c.next())
				}
				c.ack(first[1])
				if !old {
					if got := c.next(); got.payload != "00004" {
						t.Fatalf("%+v", got)
					} else {
						first = append(first, got)
					}
				}
				c.write([]byte{0xc0, 0}) // the server has read the PUBACK when this is answered
				if got := c.read(); got[0] != 0xd0 {
					t.Fatalf("%x", got)
				}
				c = leave(c, func() *messenger { return login.join(t, address) })
				if !c.present {
					t.Error("the session is not present")
				}
				if old {
					publisher.tells("t", "00004", "00005")
				}
				for _, want := range slices.Delete(slices.Clone(first), 1, 2) {
					got := c.next()
					if got.payload != want.payload || got.id != want.id || !got.dup || got.qos != 1 {
						t.Errorf("got %+v, want %+v again", got, want)
					}
					c.ack(got)
				}
				for i := len(first); i < 6; i++ {
					if got := c.next(); got.payload != fmt.Sprintf("%05d", i) || got.dup {
						t.Errorf("got %+v, want message %d for the first time", got, i)
					} else {
						c.ack(got)
					}
				}
				eventually(t, "nothing waits", func() bool { return s.Usage().WaitingMessages == 0 && s.Usage().WaitingBytes == 0 })
			})
		}
	}
}

// One message, and the subscriptions of one client.
func TestAMessageReachesEachSubscriberAsItAsked(t *testing.T) {
	type subscription struct {
		options    byte
		identifier int
		filter     string
	}
	properties := rawmqtt.Body(nil).User("a", "1").User("a", "2")
	properties = append(properties, rawmqtt.Body{wire.ContentType}.Text("c")...)
	properties = append(properties, rawmqtt.Body{wire.ResponseTopic}.Text("answers")...)
	properties = append(properties, rawmqtt.Body{wire.CorrelationData}.Text("n")...)
	properties = append(properties, wire.PayloadFormat, 1)
	expiring := append(rawmqtt.Body{wire.MessageExpiry}.Uint32(100), properties...)
	payload := strings.Repeat("p", 40)
	message := func(qos byte, list rawmqtt.Body) rawmqtt.Message {
		return rawmqtt.Message{Topic: "a/b", QoS: qos, Payload: []byte(payload), Properties: list}
	}
	for _, test := range []struct {
		name    string
		old     bool
		self    bool // the subscriber publishes
		login   rawmqtt.Body
		subs    []subscription
		message rawmqtt.Message
		want    []heard
	}{
		{name: "all properties", subs: []subscription{{1, 0, "a/b"}}, message: message(1, properties), want: []heard{{qos: 1, properties: string(properties)}}},
		{name: "no properties before MQTT 5", old: true, subs: []subscription{{1, 0, "a/b"}}, message: message(1, expiring), want: []heard{{qos: 1}}},
		{name: "an expiry", subs: []subscription{{1, 0, "a/b"}}, message: message(1, expiring), want: []heard{{qos: 1, expiry: 100, properties: string(properties)}}},
		{name: "less by the subscription", subs: []subscription{{0, 0, "a/b"}}, message: message(1, nil), want: []heard{{qos: 0}}},
		{name: "less by the message", subs: []subscription{{1, 0, "a/b"}}, message: message(0, nil), want: []heard{{qos: 0}}},
		{name: "QoS 2 is granted as 1", subs: []subscription{{2, 0, "a/b"}}, message: message(1, nil), want: []heard{{qos: 1}}},
		{name: "an identifier", subs: []subscription{{1, 268_435_455, "a/b"}}, message: message(1, nil), want: []heard{{qos: 1, identifiers: []int{268_435_455}}}},
		{name: "once for all that match", subs: []subscription{{0, 7, "a/b"}, {1, 0, "a/+"}, {0, 9, "#"}, {1, 11, "c"}}, message: message(1, nil), want: []heard{{qos: 1, identifiers: []int{7, 9}}}},
		{name: "a replaced subscription", subs: []subscription{{1, 7, "a/b"}, {0, 8, "a/b"}}, message: message(1, nil), want: []heard{{qos: 0, identifiers: []int{8}}}},
		{name: "No Local", self: true, subs: []subscription{{1 | noLocal, 0, "a/b"}}, message: message(1, nil)},
		{name: "No Local of one of two", self: true, subs: []subscription{{1 | noLocal, 1, "a/b"}, {0, 2, "a/#"}}, message: message(1, nil), want: []heard{{qos: 0, identifiers: []int{2}}}},
		{name: "No Local for others' messages", subs: []subscription{{1 | noLocal, 0, "a/b"}}, message: message(1, nil), want: []heard{{qos: 1}}},
		{name: "to itself", self: true, subs: []subscription{{1, 0, "a/b"}}, message: message(1, nil), want: []heard{{qos: 1}}},
		{name: "just small enough", login: rawmqtt.Body{wire.MaximumPacketSize}.Uint32(50), subs: []subscription{{1, 0, "a/b"}}, message: message(1, nil), want: []heard{{qos: 1}}},
		{name: "too large for its client", login: rawmqtt.Body{wire.MaximumPacketSize}.Uint32(49), subs: []subscription{{1, 0, "a/b"}}, message: message(1, nil)},
		{name: "too large for its client with QoS 0", login: rawmqtt.Body{wire.MaximumPacketSize}.Uint32(47), subs: []subscription{{1, 0, "a/b"}}, message: message(0, nil)},
		{name: "another topic", subs: []subscription{{1, 0, "a/b/c"}, {1, 0, "+"}, {1, 0, "b/#"}}, message: message(1, nil)},
	} {
		t.Run(test.name, func(t *testing.T) {
			address := start(t, server.Options{})
			c := hello{id: "subscriber", old: test.old, properties: test.login}.join(t, address)
			publisher := hello{id: "publisher"}.join(t, address)
			for _, sub := range test.subs {
				if codes := c.follow(sub.options, sub.identifier, sub.filter); codes[0] != min(sub.options&3, 1) {
					t.Fatalf("SUBACK %x for %q", codes, sub.filter)
				}
			}
			c.hears("z")
			if test.self {
				test.message.QoS = 0 // or the PUBACK would come in between
				if len(test.want) == 1 {
					test.want[0].qos = 0
				}
				c.send(test.message)
				c.send(rawmqtt.Message{Topic: "z"})
			} else {
				publisher.send(test.message)
				publisher.send(rawmqtt.Message{Topic: "z"})
			}
			var got []heard
			for h := c.next(); h.topic != "z"; h = c.next() {
				if h.topic != "a/b" || h.payload != payload || (h.id == 0) != (h.qos == 0) {
					t.Errorf("got %+v", h)
				}
				h.topic, h.payload, h.id = "", "", 0
				got = append(got, h)
			}
			if fmt.Sprintf("%+v", got) != fmt.Sprintf("%+v", test.want) {
				t.Errorf("got  %+v\nwant %+v", got, test.want)
			}
		})
	}
}

func TestAPublisherIsToldWhenNoClientSubscribes(t *testing.T) {
	address := start(t, server.Options{})
	publisher, subscriber := hello{id: "publisher"}.join(t, address), hello{id: "subscriber"}.join(t, address)
	old := hello{id: "old", old: true}.join(t, address)
	for _, step := range []struct {
		filter string
		code   byte
	}{{"other", 0x10}, {"t", 0}} {
		subscriber.hears(step.filter)
		if got := publisher.publish(rawmqtt.Message{Topic: "t"}); got != step.code {
			t.Errorf("PUBACK %#x with a subscription to %q, want %#x", got, step.filter, step.code)
		}
		old.send(rawmqtt.Message{Topic: "t", QoS: 1, ID: 7})
		if got := old.read(); string(got) != "\x40\x02\x00\x07" {
			t.Errorf("before MQTT 5, PUBACK %x", got)
		}
	}
}

func TestARepliesSubscriptionIdentifiersAreThoseOfItsClient(t *testing.T) {
	address := start(t, server.Options{})
	c := hello{id: "p"}.join(t, address)
	c.follow(1, 7, "clients/p/response")
	c.follow(1, 300, "clients/p/#")
	c.write(packetOf(t, c.request("GET", "k")))
	reply := c.next()
	slices.Sort(reply.identifiers)
	if reply.topic != "clients/p/response" || !slices.Equal(reply.identifiers, []int{7, 300}) || reply.payload != "$-1\r\n" {
		t.Errorf("%+v", reply)
	}
	if ack := c.read(); ack[0] != 0x40 {
		t.Errorf("%x", ack)
	}
}

func TestASharedSubscriptionGivesEachMessageToOneMember(t *testing.T) {
	address := start(t, server.Options{})
	members := []*messenger{hello{id: "a"}.join(t, address), hello{id: "b", old: true}.join(t, address)}
	alone, publisher := hello{id: "c"}.join(t, address), hello{id: "publisher"}.join(t, address)
	for _, c := range members {
		c.hears("$share/g/t", "end")
	}
	alone.hears("t")
	const messages = 20
	publisher.tells("t", numbered(messages)...)
	publisher.tells("end", "end")
	alone.mustHear(numbered(messages)...)
	var all []string
	for _, c := range members {
		var got []string
		for h := c.next(); h.payload != "end"; h = c.next() {
			c.ack(h)
			got = append(got, h.payload)
		}
		if len(got) == 0 || !slices.IsSorted(got) {
			t.Errorf("%s gets %q", c.id, got)
		}
		all = append(all, got...)
	}
	if slices.Sort(all); strings.Join(all, " ") != strings.Join(numbered(messages), " ") {
		t.Errorf("the members get %q", all)
	}
}

func TestAMessageThatWaitedSaysHowLongItIsStillGood(t *testing.T) {
	address, s := startServer(t, server.Options{})
	login := hello{id: "subscriber", resume: true, expiry: 600}
	c, publisher := login.join(t, address), hello{id: "publisher"}.join(t, address)
	c.hears("t")
	c.farewell()
	eventually(t, "it is away", func() bool { return s.Stats().Connected == 1 })
	for payload, expiry := range map[string]uint32{"short": 1, "long": 100} {
		publisher.publish(rawmqtt.Message{Topic: "t", Payload: []byte(payload), Properties: rawmqtt.Body{wire.MessageExpiry}.Uint32(expiry)})
	}
	eventually(t, "the short one has expired", func() bool { return s.Usage().DroppedMessages["expired"] == 1 })
	if got := login.join(t, address).mustHear("long")[0]; got.expiry < 60 || got.expiry > 99 {
		t.Errorf("it is good for %d s", got.expiry)
	}
}

func TestAClientOfMQTT311PublishesToOthersOfBothVersions(t *testing.T) {
	address := start(t, server.Options{})
	publisher := hello{id: "publisher", old: true}.join(t, address)
	for _, c := range []*messenger{hello{id: "five"}.join(t, address), hello{id: "three", old: true}.join(t, address)} {
		c.hears("t/" + c.id)
		publisher.send(rawmqtt.Message{Topic: "t/" + c.id, Payload: []byte("QoS 0")})
		publisher.send(rawmqtt.Message{Topic: "t/" + c.id, QoS: 1, ID: 3, Payload: []byte("QoS 1")})
		if got := publisher.read(); string(got) != "\x40\x02\x00\x03" {
			t.Errorf("PUBACK %x", got)
		}
		for qos, got := range c.mustHear("QoS 0", "QoS 1") {
			if int(got.qos) != qos || got.properties != "" {
				t.Errorf("%+v", got)
			}
		}
	}
}

// A message that waits is the new connection's: the old one does not get it any more.
func TestATakeOverLosesNothingThatWaits(t *testing.T) {
	address, s := startServer(t, server.Options{})
	login := hello{id: "subscriber", resume: true, expiry: 600, properties: rawmqtt.Body{wire.ReceiveMaximum}.Uint16(5)}
	c, publisher := login.join(t, address), hello{id: "publisher"}.join(t, address)
	c.hears("t")
	const messages = 300
	told := make(chan struct{})
	go func() {
		defer close(told)
		publisher.tells("t", numbered(messages)...)
	}()
	heardOf := make(map[string]bool)
	for len(heardOf) < messages {
		for range 7 {
			if len(heardOf) == messages {
				break
			}
			h := c.next()
			heardOf[h.payload] = true
			c.ack(h)
		}
		c = login.join(t, address)
		if !c.present {
			t.Fatal("the session is not present")
		}
		for len(heardOf) < messages { // what was acknowledged in vain
			h := c.next()
			c.ack(h)
			if isNew := !heardOf[h.payload]; isNew {
				heardOf[h.payload] = true
				break
			}
		}
	}
	await.Receive(told)
	if got := s.Usage().DroppedMessages; got["session full"]+got["no receiver"] != 0 {
		t.Errorf("dropped: %v", got)
	}
}
