package mqtt

import (
	"bytes"
	"errors"
	"math"
	"reflect"
	"strings"
	"testing"

	"github.com/eclipse/paho.golang/packets"
)

func request() Message {
	return Message{
		Topic:           "statestore/v1/FA9AE35F-2F64-47CD-9BFF-08E2B32A0FE8/command/invoke",
		QoS:             1,
		PacketID:        513,
		MessageExpiry:   10,
		ContentType:     "application/octet-stream",
		ResponseTopic:   "clients/a/services/statestore/_any_/command/invoke/response",
		CorrelationData: []byte("0123456789abcdef"),
		User:            []UserProperty{{"__srcId", "a"}, {"__ts", "1:2:a"}, {"__ts", "the first counts"}},
		Payload:         []byte("*2\r\n$3\r\nGET\r\n$1\r\nk\r\n"),
	}
}

func TestAMessageIsReadAsItWasWritten(t *testing.T) {
	long := strings.Repeat("x", MaxString)
	for name, change := range map[string]func(*Message){
		"a request":             func(*Message) {},
		"a reply":               func(m *Message) { m.QoS, m.PacketID, m.MessageExpiry, m.ResponseTopic = 0, 0, 0, "" },
		"the shortest":          func(m *Message) { *m = Message{Topic: "t"} },
		"QoS 2":                 func(m *Message) { m.QoS = 2 },
		"properties of 127":     func(m *Message) { *m = Message{Topic: "t", ContentType: strings.Repeat("x", 124)} },
		"properties of 128":     func(m *Message) { *m = Message{Topic: "t", ContentType: strings.Repeat("x", 125)} },
		"the longest string":    func(m *Message) { m.ContentType = long },
		"a payload of a MiB":    func(m *Message) { m.Payload = make([]byte, 1<<20) },
		"the greatest id":       func(m *Message) { m.PacketID = math.MaxUint16 },
		"the longest expiry":    func(m *Message) { m.MessageExpiry = math.MaxUint32 },
		"an empty user value":   func(m *Message) { m.User = []UserProperty{{"", ""}} },
		"characters of 4 bytes": func(m *Message) { m.Topic = "🔒" },
	} {
		t.Run(name, func(t *testing.T) {
			m := request()
			change(&m)
			packet, err := m.Append([]byte("before"))
			if err != nil {
				t.Fatal(err)
			}
			packet = packet[len("before"):]
			p, ok := parsePublish(packet)
			if !ok {
				t.Fatal("it is not understood")
			}
			checkMessage(t, p, m)
			checkPaho(t, packet, p)
		})
	}
}

func checkMessage(t *testing.T, p Publish, m Message) {
	t.Helper()
	got := Message{
		Topic: string(p.Topic), QoS: p.QoS, PacketID: p.PacketID, MessageExpiry: p.MessageExpiry,
		ContentType: string(p.ContentType), ResponseTopic: string(p.ResponseTopic),
		CorrelationData: p.CorrelationData, Payload: append([]byte(nil), p.Payload...),
	}
	for name, value := range p.Users {
		got.User = append(got.User, UserProperty{string(name), string(value)})
	}
	if !reflect.DeepEqual(got, m) {
		t.Errorf("got %+v\nwant %+v", got, m)
	}
	first := make(map[string]string)
	for _, user := range m.User {
		if _, ok := first[user.Name]; !ok {
			first[user.Name] = user.Value
		}
	}
	for name, want := range first {
		if value, ok := p.User(name); !ok || string(value) != want {
			t.Errorf("User(%q) = %q, %t; want %q", name, value, ok, want)
		}
	}
	if value, ok := p.User("of which there is none"); ok {
		t.Errorf("a user property that was not written has the value %q", value)
	}
}

// checkPaho compares with the decoder of paho, which stands behind a Filter.
func checkPaho(t *testing.T, packet []byte, p Publish) {
	t.Helper()
	control, err := packets.ReadPacket(bytes.NewReader(packet))
	if err != nil {
		t.Fatalf("paho cannot read what was understood: %v", err)
	}
	other := control.Content.(*packets.Publish)
	want := Publish{
		QoS: other.QoS, Duplicate: other.Duplicate, Retain: other.Retain, Topic: []byte(other.Topic),
		PacketID: other.PacketID, ContentType: []byte(other.Properties.ContentType),
		ResponseTopic: []byte(other.Properties.ResponseTopic), CorrelationData: other.Properties.CorrelationData,
		Payload: other.Payload,
	}
	if other.Properties.MessageExpiry != nil {
		want.MessageExpiry = *other.Properties.MessageExpiry
	}
	same := p.QoS == want.QoS && p.Duplicate == want.Duplicate && p.Retain == want.Retain &&
		bytes.Equal(p.Topic, want.Topic) && p.PacketID == want.PacketID && p.MessageExpiry == want.MessageExpiry &&
		bytes.Equal(p.ContentType, want.ContentType) && bytes.Equal(p.ResponseTopic, want.ResponseTopic) &&
		bytes.Equal(p.CorrelationData, want.CorrelationData) && bytes.Equal(p.Payload, want.Payload)
	if !same {
		t.Errorf("got  %+v\npaho %+v", p, want)
	}
	for _, user := range other.Properties.User {
		if value, ok := p.User(user.Key); !ok || !containsUser(other.Properties.User, user.Key, string(value)) {
			t.Errorf("User(%q) = %q, %t", user.Key, value, ok)
		}
	}
}

func containsUser(properties []packets.User, key, value string) bool {
	for _, user := range properties {
		if user.Key == key {
			return user.Value == value // the first
		}
	}
	return false
}

func TestWhatMQTTCannotExpressIsNotWritten(t *testing.T) {
	long := strings.Repeat("x", MaxString+1)
	for name, change := range map[string]func(*Message){
		"topic":               func(m *Message) { m.Topic = long },
		"content type":        func(m *Message) { m.ContentType = long },
		"response topic":      func(m *Message) { m.ResponseTopic = long },
		"correlation data":    func(m *Message) { m.CorrelationData = []byte(long) },
		"user property name":  func(m *Message) { m.User = []UserProperty{{Name: long}} },
		"user property value": func(m *Message) { m.User = []UserProperty{{Value: long}} },
		"packet":              func(m *Message) { m.Payload = make([]byte, MaxRemaining) },
	} {
		t.Run(name, func(t *testing.T) {
			m := request()
			change(&m)
			packet, err := m.Append([]byte("before"))
			if !errors.Is(err, ErrTooLong) || string(packet) != "before" {
				t.Errorf("Append = %q, %v", packet[:min(len(packet), 10)], err)
			}
		})
	}
}

func parsePublish(packet []byte) (Publish, bool) {
	var p Publish
	ok := p.Decode(packet, &noLimits) == nil
	return p, ok
}

func parsePuback(packet []byte) (Puback, bool) {
	var ack Puback
	ok := Type(packet) == packets.PUBACK && ack.Decode(packet, &noLimits) == nil
	return ack, ok
}

func TestReadingAndWritingAllocateNothing(t *testing.T) {
	m := request()
	buffer, _ := m.Append(nil)
	if n := testing.AllocsPerRun(100, func() {
		buffer, _ = m.Append(buffer[:0])
		p, ok := parsePublish(buffer)
		if _, found := p.User("__ts"); !ok || !found {
			t.Error("not understood")
		}
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

func FuzzParsePublish(f *testing.F) {
	m := request()
	packet, _ := m.Append(nil)
	f.Add(packet)
	m.QoS, m.PacketID = 0, 0
	packet, _ = m.Append(nil)
	f.Add(packet)
	f.Add([]byte{packets.PUBLISH << 4, 4, 0, 1, 't', 0})
	f.Fuzz(func(t *testing.T, packet []byte) {
		if p, ok := parsePublish(packet); ok {
			checkPaho(t, packet, p)
		}
	})
}

func FuzzParsePuback(f *testing.F) {
	f.Add([]byte{0x40, 2, 2, 1})
	f.Add([]byte{0x40, 3, 2, 1, 0x10})
	f.Add([]byte{0x40, 8, 2, 1, 0x97, 4, 0x1f, 0, 1, 'x'})
	f.Fuzz(func(t *testing.T, packet []byte) {
		if len(packet) == 0 {
			return
		}
		ack, ok := parsePuback(packet)
		if !ok {
			return
		}
		control, err := packets.ReadPacket(bytes.NewReader(packet))
		if err != nil {
			t.Fatalf("paho cannot read what was understood: %v", err)
		}
		other := control.Content.(*packets.Puback)
		reason := ""
		if other.Properties != nil {
			reason = other.Properties.ReasonString
		}
		if ack.PacketID != other.PacketID || ack.ReasonCode != other.ReasonCode || string(ack.ReasonString) != reason {
			t.Errorf("got %+v; paho %+v %q", ack, other, reason)
		}
	})
}
