package wire_test

import (
	"bytes"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/eclipse/paho.golang/packets"

	"github.com/tenurelock/tenure/internal/mqtt"
	"github.com/tenurelock/tenure/server/internal/wire"
)

// FuzzCheck shows that no packet makes a Gate panic, and that what it lets through within
// its limits is read by the parsers behind it, within those limits.
func FuzzCheck(f *testing.F) {
	for _, test := range rules {
		before := ""
		if len(test.before) > 0 {
			before = test.before[0]
		}
		f.Add([]byte(before), []byte(test.packet))
	}
	f.Add([]byte(connect5), request())
	f.Fuzz(func(t *testing.T, before, packet []byte) {
		g := wire.NewGate(limits)
		_ = g.Check(before)
		kept := bytes.Clone(packet)
		err := g.Check(packet)
		if !bytes.Equal(packet, kept) {
			t.Fatal("the packet is changed")
		}
		if farewell, refused := g.AppendRefusal(nil, err); refused != (err != nil) || len(farewell) > 400 {
			t.Errorf("%v: a farewell of %d bytes, %t", err, len(farewell), refused)
		}
		if err != nil {
			return
		}
		if size, _, ok := mqtt.Size(packet); !ok || size != len(packet) {
			t.Fatalf("%d bytes are let through; the header says %d", len(packet), size)
		}
		checkParsed(t, packet, g.Version)
	})
}

func checkParsed(t *testing.T, packet []byte, version byte) {
	t.Helper()
	filters := 0
	switch packet[0] >> 4 {
	case packets.PUBLISH:
		var p, again mqtt.Publish
		if refusal := p.Decode(packet, version, &limits.Limits); refusal != nil {
			t.Fatal(refusal)
		}
		if len(p.Topic) > limits.TopicLength {
			t.Errorf("a topic of %d bytes", len(p.Topic))
		}
		// What is passed on is good again.
		properties := wire.AppendForwarded(nil, &p)
		m := mqtt.Message{Topic: string(p.Topic), Payload: p.Payload}
		if version < mqtt.Version5 || len(properties) > 127 {
			return
		}
		forwarded, err := m.Append(nil)
		if err != nil {
			t.Fatal(err)
		}
		_, header, _ := mqtt.Size(forwarded)
		body := forwarded[header : header+2+len(p.Topic)]
		forwarded = append(mqtt.AppendVariable([]byte{0x30}, len(body)+1+len(properties)+len(p.Payload)), body...)
		forwarded = append(append(append(forwarded, byte(len(properties))), properties...), p.Payload...)
		if refusal := again.Decode(forwarded, version, &limits.Limits); refusal != nil {
			t.Fatalf("what is passed on is refused: %v", refusal)
		}
		if !bytes.Equal(wire.AppendForwarded(nil, &again), properties) || !bytes.Equal(again.ResponseTopic, p.ResponseTopic) ||
			!bytes.Equal(again.CorrelationData, p.CorrelationData) || again.MessageExpiry != 0 || again.Identified {
			t.Errorf("%+v is passed on as %+v", p, again)
		}
	case packets.SUBSCRIBE, packets.UNSUBSCRIBE:
		var s wire.Subscribe
		ok := s.Decode(packet, version, new(wire.Limits)) == nil
		if filters = len(s.Filters); !ok || s.PacketID == 0 {
			t.Errorf("%+v, %t", s, ok)
		}
	default:
		return
	}
	if filters > limits.Filters {
		t.Errorf("%d filters", filters)
	}
}

func TestASubscribeIsReadAsItWasWritten(t *testing.T) {
	var got wire.Subscribe
	refusal := got.Decode([]byte(packet(0x82, "\x02\x01", properties("\x0b\x81\x01", user("", "")), text("a/#"), "\x2d", text("$share/g/b"), "\x02")), 5, new(wire.Limits))
	want := wire.Subscribe{PacketID: 513, Identifier: 129, Filters: []wire.Subscription{
		{Topic: "a/#", QoS: 1, NoLocal: true}, {Topic: "$share/g/b", QoS: 2},
	}}
	if refusal != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("%+v, %v\nwant %+v", got, refusal, want)
	}
	refusal = got.Decode([]byte(packet(0x82, "\x02\x01", text("a"), "\x01")), 4, new(wire.Limits))
	want = wire.Subscribe{PacketID: 513, Filters: []wire.Subscription{{Topic: "a", QoS: 1}}}
	if refusal != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("MQTT 3.1.1: %+v, %v\nwant %+v", got, refusal, want)
	}
	var none wire.Subscribe
	refusal = none.Decode([]byte(packet(0xa2, "\x02\x01", properties(), text("a"), text("b"))), 5, new(wire.Limits))
	if refusal != nil || !reflect.DeepEqual(none, wire.Subscribe{PacketID: 513, Filters: []wire.Subscription{{Topic: "a"}, {Topic: "b"}}}) {
		t.Errorf("UNSUBSCRIBE: %+v, %v", none, refusal)
	}
}

func TestWhatABrokerPassesOnIsAsItCame(t *testing.T) {
	passed := []string{"\x01\x01", user("b", "1"), "\x03" + text("c"), "\x08" + text("r"), user("a", ""), "\x09" + text("\x26\x00"), user("b", "2")}
	all := slices.Concat(passed[:2], []string{"\x02\x00\x00\x00\x09", "\x0b\xff\x7f"}, passed[2:], []string{"\x0b\x01"})
	var p mqtt.Publish
	if refusal := p.Decode([]byte(publish("a", properties(all...), "")), 5, &mqtt.Limits{}); refusal != nil {
		t.Fatal(refusal)
	}
	want := strings.Join(passed, "")
	if got := string(wire.AppendForwarded([]byte("before"), &p)); got != "before"+want {
		t.Errorf("%q\nwant %q", got, want)
	}
}
