package wire_test

import (
	"bytes"
	"math"
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
		if len(before) == 0 || len(packet) == 0 {
			return
		}
		g := wire.NewGate()
		_ = g.Check(before)
		kept := bytes.Clone(packet)
		err := g.Check(packet)
		if !bytes.Equal(packet, kept) {
			t.Fatal("the packet is changed")
		}
		if err != nil {
			if refusal := g.AppendDisconnect(nil, mqtt.RefusalIn(err)); len(refusal) > 400 {
				t.Errorf("%v: a refusal of %d bytes", err, len(refusal))
			}
			return
		}
		if size, _, ok := mqtt.Size(packet); !ok || size != len(packet) {
			t.Fatalf("%d bytes are let through; the header says %d", len(packet), size)
		}
		checkParsed(t, packet)
	})
}

func checkParsed(t *testing.T, packet []byte) {
	t.Helper()
	switch packet[0] >> 4 {
	case packets.PUBLISH:
		var p mqtt.Publish
		if refusal := p.Decode(packet, &mqtt.Limits{TopicLength: 1024}); refusal != nil {
			t.Fatal(refusal)
		}
		checkForwarded(t, &p)
	case packets.SUBSCRIBE, packets.UNSUBSCRIBE:
		var s wire.Subscribe
		if refusal := s.Decode(packet); refusal != nil || s.PacketID == 0 || len(s.Filters) > 100 {
			t.Errorf("%+v, %v", s, refusal)
		}
	}
}

// checkForwarded checks that a message is read again as it was, when it is passed on.
func checkForwarded(t *testing.T, p *mqtt.Publish) {
	t.Helper()
	properties := wire.AppendForwarded(nil, p)
	for _, f := range []wire.Forward{
		{Topic: string(p.Topic), Properties: properties, Payload: p.Payload},
		{TopicBytes: p.Topic, Properties: properties, Payload: p.Payload, MessageExpiry: 7},
		{Topic: string(p.Topic), QoS: 1, PacketID: math.MaxUint16, Duplicate: true, Properties: properties, Payload: p.Payload, MessageExpiry: 1},
	} {
		packet := f.Append([]byte("before"))[len("before"):]
		var again mqtt.Publish
		if refusal := again.Decode(packet, new(mqtt.Limits)); refusal != nil || len(packet) != f.Size() {
			t.Fatalf("what is passed on has %d bytes, want %d: %v", len(packet), f.Size(), refusal)
		}
		if !bytes.Equal(again.Topic, p.Topic) || !bytes.Equal(wire.AppendForwarded(nil, &again), properties) ||
			!bytes.Equal(again.ResponseTopic, p.ResponseTopic) || !bytes.Equal(again.CorrelationData, p.CorrelationData) || again.MessageExpiry != f.MessageExpiry ||
			again.QoS != f.QoS || again.PacketID != f.PacketID || again.Duplicate != f.Duplicate {
			t.Errorf("%+v is passed on as %+v", p, again)
		}
	}
}

func TestASubscribeIsReadAsItWasWritten(t *testing.T) {
	for _, test := range []struct {
		packet string
		want   []wire.Subscription
	}{
		{packet(0x82, "\x02\x01", properties(user("", "")), text("a/#"), "\x2d", text("$share/g/b"), "\x02"),
			[]wire.Subscription{{Topic: "a/#", QoS: 1, NoLocal: true}, {Topic: "$share/g/b", QoS: 2}}},
		{packet(0xa2, "\x02\x01", properties(), text("a"), text("b")), []wire.Subscription{{Topic: "a"}, {Topic: "b"}}},
	} {
		var got wire.Subscribe
		if refusal := got.Decode([]byte(test.packet)); refusal != nil || got.PacketID != 513 || !reflect.DeepEqual(got.Filters, test.want) {
			t.Errorf("%+v, %v\nwant %+v", got, refusal, test.want)
		}
	}
}

func TestWhatABrokerPassesOnIsAsItCame(t *testing.T) {
	passed := []string{"\x01\x01", user("b", "1"), "\x03" + text("c"), "\x08" + text("r"), user("a", ""), "\x09" + text("\x26\x00"), user("b", "2")}
	all := slices.Concat(passed[:2], []string{"\x02\x00\x00\x00\x09"}, passed[2:])
	var p mqtt.Publish
	if refusal := p.Decode([]byte(publish("a", properties(all...), "")), &mqtt.Limits{}); refusal != nil {
		t.Fatal(refusal)
	}
	checkForwarded(t, &p)
	want := strings.Join(passed, "")
	if got := string(wire.AppendForwarded([]byte("before"), &p)); got != "before"+want {
		t.Errorf("%q\nwant %q", got, want)
	}
}
