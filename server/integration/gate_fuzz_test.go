package integration_test

import (
	"bytes"
	"slices"
	"testing"

	"github.com/eclipse/paho.golang/packets"
	broker "github.com/mochi-mqtt/server/v2/packets"

	"github.com/tenurelock/tenure/internal/mqtt"
	"github.com/tenurelock/tenure/server/internal/testsupport"
	"github.com/tenurelock/tenure/server/internal/wire"
)

// FuzzGate shows that the decoders of paho and mochi read whatever the gate lets through,
// without a panic, and that they find the same in it as we do.
//
// Known bugs of the decoders that the gate cannot prevent:
//   - mochi v2.7.9 does not read the reason code of a DISCONNECT or AUTH without
//     properties (see reasonOf).
//   - mochi refuses an empty Will and an empty password, which MQTT allows: such a client
//     gets a CONNACK with 0x82.
//   - paho v0.23.0 knows MQTT 5 only, does not tell the properties of a Will from the properties of
//     CONNECT, and keeps only the last Subscription Identifier.
//   - paho cannot read a DISCONNECT without a reason code, nor a CONNACK property that it
//     has forgotten in its table: an error, which ends the connection.
func FuzzGate(f *testing.F) {
	connect := string(testsupport.Packet(0x10, testsupport.Text("MQTT"), []byte{5, 2, 0, 60, 5, 0x11, 0, 0, 0, 9}, testsupport.Text("c")))
	connack := "\x20\x03\x00\x00\x00"
	for _, seed := range []struct {
		first, packet string
		fromServer    bool
	}{
		{connect, "\x82\x06\x00\x01\x00\x00\x01a", false},
		{connect, "\x82\x07\x00\x01\x00\x00\x01a\x2d", false},
		{connect, "\xa2\x06\x00\x01\x00\x00\x01a", false},
		{connect, string(testsupport.Packet(0x3b, testsupport.Text("a/b"), []byte{0, 1}, []byte{16, 1, 1, 2, 0, 0, 0, 9, 8, 0, 1, 'r', 9, 0, 2, 1, 2}, []byte("text"))), false},
		{connect, string(testsupport.Packet(0x30, testsupport.Text("a"), []byte{7, 0x26, 0, 1, 'k', 0, 1, 'v'}, []byte("p"))), false},
		{connect, "\x40\x03\x00\x01\x10", false},
		{connect, "\x62\x02\x00\x01", false},
		{connect, "\xe0\x01\x04", false},
		{connect, "\xe0\x07\x00\x05\x11\x00\x00\x00\x09", false},
		{connack, "\x30\x09\x00\x01a\x80\x80\x80\x80\x0fx", true},
		{connack, "\x30\x08\x00\x01a\x03\x0b\xff\x7fx", true},
		{connack, "\x90\x05\x00\x01\x00\x01\x80", true},
		{connack, "\xb0\x04\x00\x01\x00\x11", true},
		{connack, "\xe0\x07\x8e\x05\x1f\x00\x02no", true},
		{connack, "\xf0\x06\x18\x04\x15\x00\x01m", true},
		{"", connect, false}, {"", connack, true},
		{"", string(testsupport.Packet(0x10, testsupport.Text("MQTT"), []byte{5, 0xee, 0, 60, 0}, testsupport.Text("c"), []byte{2, 1, 1}, testsupport.Text("t"), testsupport.Text("p"), testsupport.Text("u"), testsupport.Text("x"))), false},
	} {
		f.Add([]byte(seed.first), []byte(seed.packet), seed.fromServer)
	}
	f.Fuzz(func(t *testing.T, first, packet []byte, fromServer bool) {
		if fromServer {
			g := mqtt.NewGate()
			if (len(first) == 0 || g.Check(first) == nil) && g.Check(packet) == nil {
				compareWithPaho(t, packet)
			}
			return
		}
		g := wire.NewGate()
		if len(first) > 0 && g.Check(first) != nil || g.Check(packet) != nil {
			return
		}
		compareWithPaho(t, packet)
		compareWithMochi(t, packet, g.Version)
	})
}

// published is a decoded PUBLISH, in a form that the decoders can be compared by.
type published struct {
	topic, response, contentType string
	correlation, payload         []byte
	qos                          byte
	id                           uint16
	retain                       bool
	expiry                       uint32
}

func ours(t *testing.T, packet []byte, version byte) published {
	var p mqtt.Publish
	if refusal := p.Decode(packet, version, new(mqtt.Limits)); refusal != nil {
		t.Fatal(refusal)
	}
	return published{string(p.Topic), string(p.ResponseTopic), string(p.ContentType), p.CorrelationData, p.Payload, p.QoS, p.PacketID, p.Retain, p.MessageExpiry}
}

func (p published) equal(other published) bool {
	return p.topic == other.topic && p.response == other.response && p.contentType == other.contentType && p.qos == other.qos &&
		p.id == other.id && p.retain == other.retain && p.expiry == other.expiry &&
		bytes.Equal(p.correlation, other.correlation) && bytes.Equal(p.payload, other.payload)
}

func compareWithPaho(t *testing.T, packet []byte) {
	t.Helper()
	control, err := packets.ReadPacket(bytes.NewReader(packet))
	if err != nil {
		if packet[0] == 0xe0 && packet[1] == 0 {
			return // a known fault
		}
		t.Fatalf("paho cannot read it: %v", err)
	}
	switch theirs := control.Content.(type) {
	case *packets.Publish:
		got := published{theirs.Topic, theirs.Properties.ResponseTopic, theirs.Properties.ContentType, theirs.Properties.CorrelationData,
			theirs.Payload, theirs.QoS, theirs.PacketID, theirs.Retain, 0}
		if theirs.Properties.MessageExpiry != nil {
			got.expiry = *theirs.Properties.MessageExpiry
		}
		if want := ours(t, packet, 5); !want.equal(got) {
			t.Errorf("paho reads %+v\nwe read %+v", got, want)
		}
	case *packets.Subscribe:
		var got []wire.Subscription
		for _, s := range theirs.Subscriptions {
			got = append(got, wire.Subscription{Topic: s.Topic, QoS: s.QoS, NoLocal: s.NoLocal})
		}
		var want wire.Subscribe
		if want.Decode(packet) != nil || !slices.Equal(got, want.Filters) || theirs.PacketID != want.PacketID {
			t.Errorf("paho reads %+v\nwe read %+v", got, want)
		}
	case *packets.Unsubscribe:
		var got []wire.Subscription
		for _, topic := range theirs.Topics {
			got = append(got, wire.Subscription{Topic: topic})
		}
		var want wire.Subscribe
		if want.Decode(packet) != nil || !slices.Equal(got, want.Filters) {
			t.Errorf("paho reads %+v\nwe read %+v", got, want.Filters)
		}
	}
}

func compareWithMochi(t *testing.T, packet []byte, version byte) {
	t.Helper()
	_, header, _ := mqtt.Size(packet)
	theirs := broker.Packet{ProtocolVersion: version}
	if err := theirs.FixedHeader.Decode(packet[0]); err != nil {
		t.Fatalf("mochi cannot read its header: %v", err)
	}
	theirs.FixedHeader.Remaining = len(packet) - header
	body := bytes.Clone(packet[header:])
	decode := map[byte]func([]byte) error{
		broker.Connect: theirs.ConnectDecode, broker.Publish: theirs.PublishDecode, broker.Puback: theirs.PubackDecode,
		broker.Pubrec: theirs.PubrecDecode, broker.Pubrel: theirs.PubrelDecode, broker.Pubcomp: theirs.PubcompDecode,
		broker.Subscribe: theirs.SubscribeDecode, broker.Unsubscribe: theirs.UnsubscribeDecode, broker.Disconnect: theirs.DisconnectDecode,
	}[theirs.FixedHeader.Type]
	if decode == nil {
		return
	}
	if err := decode(body); err != nil {
		t.Fatalf("mochi cannot read it: %v", err)
	}
	switch theirs.FixedHeader.Type {
	case broker.Publish:
		got := published{theirs.TopicName, theirs.Properties.ResponseTopic, theirs.Properties.ContentType, theirs.Properties.CorrelationData,
			theirs.Payload, theirs.FixedHeader.Qos, theirs.PacketID, theirs.FixedHeader.Retain, theirs.Properties.MessageExpiryInterval}
		if want := ours(t, packet, version); !want.equal(got) {
			t.Errorf("mochi reads %+v\nwe read %+v", got, want)
		}
	case broker.Subscribe, broker.Unsubscribe:
		var got, want []string
		for _, filter := range theirs.Filters {
			got = append(got, filter.Filter)
		}
		var s wire.Subscribe
		if refusal := s.Decode(packet); refusal != nil {
			t.Fatal(refusal)
		}
		for i, filter := range s.Filters {
			want = append(want, filter.Topic)
			if theirs.FixedHeader.Type == broker.Subscribe && filter.QoS != theirs.Filters[i].Qos {
				t.Errorf("mochi reads the QoS %d, and we %d", theirs.Filters[i].Qos, filter.QoS)
			}
		}
		if !slices.Equal(got, want) {
			t.Errorf("mochi reads %q\nwe read %q", got, want)
		}
	}
}
