package wire_test

import (
	"bytes"
	"errors"
	"math"
	"slices"
	"testing"

	"github.com/eclipse/paho.golang/packets"

	"github.com/tenurelock/tenure/internal/mqtt"
	"github.com/tenurelock/tenure/server/internal/testsupport"
	"github.com/tenurelock/tenure/server/internal/wire"
)

// rawProperties returns a message and its properties as a server passes them on.
func rawProperties(t *testing.T) (mqtt.Publish, []byte) {
	t.Helper()
	p, ok := testsupport.ParsePublish(request())
	if !ok {
		t.Fatal("the request is not understood")
	}
	return p, wire.AppendForwarded(nil, &p)
}

func TestAForwardedMessageIsReadAsItWasWritten(t *testing.T) {
	original, properties := rawProperties(t)
	for name, f := range map[string]wire.Forward{
		"QoS 0":         {MQTT5: true, Topic: "a/b", Payload: []byte("p")},
		"QoS 1":         {MQTT5: true, Topic: "a/b", QoS: 1, PacketID: math.MaxUint16, Payload: []byte("p")},
		"its topic":     {MQTT5: true, TopicBytes: []byte("a/b"), QoS: 1, PacketID: 1, Payload: []byte("p")},
		"sent again":    {MQTT5: true, Topic: "a/b", QoS: 1, PacketID: 1, Duplicate: true},
		"properties":    {MQTT5: true, Topic: "a/b", Properties: properties, Expires: true, MessageExpiry: 7},
		"a long expiry": {MQTT5: true, Topic: "a/b", Expires: true, MessageExpiry: math.MaxUint32, Payload: make([]byte, 1<<20)},
	} {
		t.Run(name, func(t *testing.T) {
			packet, err := f.Append([]byte("before"))
			if err != nil {
				t.Fatal(err)
			}
			if packet = packet[len("before"):]; len(packet) != f.Size() {
				t.Errorf("Size = %d; the packet has %d bytes", f.Size(), len(packet))
			}
			p, ok := testsupport.ParsePublish(packet)
			if !ok {
				t.Fatal("it is not understood")
			}
			got := wire.Forward{
				MQTT5: true, Topic: string(p.Topic), QoS: p.QoS, PacketID: p.PacketID, Duplicate: p.Duplicate,
				MessageExpiry: p.MessageExpiry, Payload: p.Payload,
			}
			if got.Topic != f.Topic+string(f.TopicBytes) || got.QoS != f.QoS || got.PacketID != f.PacketID || got.Duplicate != f.Duplicate ||
				got.MessageExpiry != f.MessageExpiry || !bytes.Equal(got.Payload, f.Payload) {
				t.Errorf("got %+v\nwant %+v", got, f)
			}
			if f.Properties != nil && !bytes.Equal(p.CorrelationData, original.CorrelationData) {
				t.Errorf("the correlation data is %q", p.CorrelationData)
			}
		})
	}
}

func TestPahoReadsAForwardedMessage(t *testing.T) {
	_, properties := rawProperties(t)
	f := wire.Forward{
		MQTT5: true, Topic: "a/b", QoS: 1, PacketID: 9, Expires: true, Identifiers: []int{1, 128, 268_435_455},
		Properties: properties, Payload: []byte("p"),
	}
	packet, err := f.Append(nil)
	if err != nil || len(packet) != f.Size() {
		t.Fatalf("%d bytes (%v), Size = %d", len(packet), err, f.Size())
	}
	read, err := packets.ReadPacket(bytes.NewReader(packet))
	if err != nil {
		t.Fatal(err)
	}
	p := read.Content.(*packets.Publish)
	if p.Topic != "a/b" || p.PacketID != 9 || string(p.Payload) != "p" || len(p.Properties.User) != 2 {
		t.Errorf("paho reads %v", p)
	}
	if expiry := p.Properties.MessageExpiry; expiry == nil || *expiry != 0 {
		t.Error("an expiry of 0 is left out")
	}
	// Paho keeps one identifier only: the last.
	if id := p.Properties.SubscriptionIdentifier; id == nil || *id != 268_435_455 {
		t.Errorf("the identifier is %v", id)
	}
}

func TestAForwardedMessageHasNoPropertiesIn311(t *testing.T) {
	f := wire.Forward{Topic: "a", QoS: 1, PacketID: 2, Expires: true, Identifiers: []int{1}, Properties: []byte{1, 1}, Payload: []byte("p")}
	packet, err := f.Append(nil)
	if want := []byte{0x32, 6, 0, 1, 'a', 0, 2, 'p'}; err != nil || !slices.Equal(packet, want) || f.Size() != len(want) {
		t.Errorf("% x (%v), want % x", packet, err, want)
	}
}

func TestAForwardedMessageThatIsTooLongIsRefused(t *testing.T) {
	topic := make([]byte, mqtt.MaxString+1)
	for _, long := range []wire.Forward{{MQTT5: true, Topic: string(topic)}, {MQTT5: true, TopicBytes: topic}} {
		if dst, err := long.Append([]byte("x")); !errors.Is(err, mqtt.ErrTooLong) || string(dst) != "x" {
			t.Errorf("%d bytes, %v", len(dst), err)
		}
	}
}
