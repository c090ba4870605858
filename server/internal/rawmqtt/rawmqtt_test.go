package rawmqtt_test

import (
	"bufio"
	"bytes"
	"errors"
	"strings"
	"testing"

	"github.com/mochi-mqtt/server/v2/packets"

	"github.com/tenurelock/tenure/internal/mqtt"
	"github.com/tenurelock/tenure/server/internal/rawmqtt"
	"github.com/tenurelock/tenure/server/internal/testsupport"
)

// What is meant to be right must be right, or an attack shows only that the server refuses
// nonsense.
func TestValidPacketsAreWhatTheirFieldsSay(t *testing.T) {
	login := read(t, rawmqtt.Login{ID: "a", User: "u", Password: "p", KeepAlive: 7, Expiry: 9, Resume: true}.Packet())
	if err := login.ConnectDecode(body(t, login.raw)); err != nil {
		t.Fatal(err)
	}
	c := login.Connect
	if c.ClientIdentifier != "a" || string(c.Username) != "u" || string(c.Password) != "p" || c.Keepalive != 7 || c.Clean || login.Properties.SessionExpiryInterval != 9 {
		t.Errorf("CONNECT: %+v", c)
	}
	subscribe := read(t, rawmqtt.SubscribeTo(3, 1, "a/b", "c/#"))
	if err := subscribe.SubscribeDecode(body(t, subscribe.raw)); err != nil {
		t.Fatal(err)
	}
	if len(subscribe.Filters) != 2 || subscribe.Filters[1].Filter != "c/#" || subscribe.Filters[1].Qos != 1 || subscribe.PacketID != 3 {
		t.Errorf("SUBSCRIBE: %+v", subscribe.Filters)
	}
	packet := rawmqtt.Message{Topic: "t", QoS: 1, ID: 5, Retain: true, Properties: rawmqtt.Body(nil).Byte(packets.PropResponseTopic).Text("r").User("k", "v"), Payload: []byte("p")}.Packet()
	p, ok := testsupport.ParsePublish(packet)
	if value, _ := p.User("k"); !ok || string(p.Topic) != "t" || p.QoS != 1 || p.PacketID != 5 || !p.Retain || string(p.ResponseTopic) != "r" || string(value) != "v" || string(p.Payload) != "p" {
		t.Errorf("PUBLISH: %+v, %v", p, ok)
	}
}

func TestAPacketIsReadWhole(t *testing.T) {
	stream := append(rawmqtt.Message{Topic: "t", Payload: bytes.Repeat([]byte("x"), 300)}.Packet(), rawmqtt.Packet(packets.Pingreq, 0, nil)...)
	from := bufio.NewReader(bytes.NewReader(stream))
	first, body, err := rawmqtt.Read(from, 1000)
	if first != packets.Publish<<4 || len(body) != 304 || err != nil {
		t.Errorf("PUBLISH: %x, %d bytes, %v", first, len(body), err)
	}
	first, body, err = rawmqtt.Read(from, 0)
	if first != packets.Pingreq<<4 || len(body) != 0 || err != nil {
		t.Errorf("PINGREQ: %x, %d bytes, %v", first, len(body), err)
	}
}

func TestAPacketOverTheLimitIsNotAllocated(t *testing.T) {
	_, _, err := rawmqtt.Read(bufio.NewReader(strings.NewReader("\x30\xff\xff\xff\x7f")), 1000)
	if !errors.Is(err, rawmqtt.ErrTooLarge) {
		t.Errorf("a packet of 256 MiB: %v", err)
	}
	if _, _, err := rawmqtt.Read(bufio.NewReader(strings.NewReader("\x30\xff\xff\xff\xff\x01")), 1000); err == nil {
		t.Error("a length of five bytes is read")
	}
}

type decoded struct {
	packets.Packet
	raw []byte
}

func read(t *testing.T, raw []byte) decoded {
	t.Helper()
	d := decoded{raw: raw}
	d.ProtocolVersion = 5
	if err := d.FixedHeader.Decode(raw[0]); err != nil {
		t.Fatal(err)
	}
	return d
}

func body(t *testing.T, raw []byte) []byte {
	t.Helper()
	size, header, ok := mqtt.Size(raw)
	if !ok || size != len(raw) {
		t.Fatalf("the header says %d bytes, and there are %d", size, len(raw))
	}
	return raw[header:]
}
