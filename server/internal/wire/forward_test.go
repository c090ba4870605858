package wire_test

import (
	"bytes"
	"errors"
	"math"
	"testing"

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

func TestAForwardedMessageHasItsPropertiesInMQTT5Only(t *testing.T) {
	for want, five := range map[string]bool{
		"\x32\x06\x00\x01a\x00\x02p": false,
		"\x32\x15\x00\x01a\x00\x02\x0e\x02\x00\x00\x00\x00\x0b\x01\x0b\xff\xff\xff\x7f\x01\x01p": true,
	} {
		f := wire.Forward{MQTT5: five, Topic: "a", QoS: 1, PacketID: 2, Expires: true, Identifiers: []int{1, 268_435_455},
			Properties: []byte{1, 1}, Payload: []byte("p")}
		if packet, err := f.Append(nil); err != nil || string(packet) != want || f.Size() != len(want) {
			t.Errorf("%q (%v), want %q", packet, err, want)
		}
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
