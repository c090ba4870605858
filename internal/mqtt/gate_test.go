package mqtt_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"strings"
	"testing"

	"github.com/eclipse/paho.golang/packets"

	"github.com/tenurelock/tenure/internal/mqtt"
)

// packet returns a packet with this first byte.
func packet(first byte, parts ...string) string {
	body := strings.Join(parts, "")
	return string(binary.AppendUvarint([]byte{first}, uint64(len(body)))) + body
}

// text returns a string as packets have it.
func text(s string) string { return string(binary.BigEndian.AppendUint16(nil, uint16(len(s)))) + s }

// properties returns properties with their length.
func properties(parts ...string) string {
	body := strings.Join(parts, "")
	return string(binary.AppendUvarint(nil, uint64(len(body)))) + body
}

// user returns a user property.
func user(name, value string) string { return "\x26" + text(name) + text(value) }

const connack = "\x20\x03\x00\x00\x00"

// publish returns a PUBLISH with QoS 0.
func publish(topic, properties, payload string) string {
	return packet(0x30, text(topic), properties, payload)
}

// rules are packets of a broker with the reason codes with which they are refused; 0: they are not.
// Each follows those before it in its session. Package server/internal/wire has those of a client.
var rules = []struct {
	name   string
	before []string // packets that are let through
	packet string
	code   byte
}{
	// The order of packets.
	{"CONNACK", nil, connack, 0},
	{"AUTH before CONNACK [MQTT-4.12.0-2]", nil, packet(0xf0, "\x18", properties("\x15", text("m"))), 0},
	{"another packet before CONNACK [MQTT-3.2.0-1]", nil, packet(0xd0), mqtt.ProtocolError},
	{"CONNACK again [MQTT-3.2.0-2]", []string{connack}, connack, mqtt.ProtocolError},
	{"CONNECT from a server", nil, packet(0x10, text("MQTT"), "\x05\x02\x00\x09", properties(), text("c")), mqtt.ProtocolError},
	{"SUBSCRIBE from a server", []string{connack}, packet(0x82, "\x00\x01", properties(), text("a"), "\x00"), mqtt.ProtocolError},

	// PUBLISH.
	{"a topic alias for the topic", []string{connack}, publish("", properties("\x23\x00\x01"), ""), mqtt.InvalidAlias},
	{"a Subscription Identifier that was not asked for", []string{connack}, publish("a", properties("\x0b\x01"), ""), mqtt.Malformed},
	{"a property length of five bytes, at which paho panics", []string{connack}, "\x30\x09\x00\x01a\x80\x80\x80\x80\x0fx", mqtt.Malformed},
	{"a property length that is not minimal [MQTT-1.5.5-1]", []string{connack}, packet(0x30, text("a"), "\x80\x00"), mqtt.Malformed},
	{"a property length beyond the packet", []string{connack}, packet(0x30, text("a"), "\x05\x01"), mqtt.Malformed},
	{"a property that ends beyond the properties", []string{connack}, packet(0x30, text("a"), "\x02\x02\x00", "\x00\x00\x00"), mqtt.Malformed},
	{"an unknown property [MQTT-2.2.2.2]", []string{connack}, publish("a", properties("\x04\x00"), ""), mqtt.Malformed},
	{"a property beyond all", []string{connack}, publish("a", properties("\xff\x00"), ""), mqtt.Malformed},
	{"a user property that is not UTF-8", []string{connack}, publish("a", properties(user("a", "\xff")), ""), mqtt.Malformed},
	{"half a user property", []string{connack}, publish("a", properties("\x26", text("a")), ""), mqtt.Malformed},

	// Acknowledgements.
	{"PUBACK with a code of mochi's", []string{connack}, packet(0x40, "\x00\x01\x01"), 0},
	{"PUBREC, of QoS 2", []string{connack}, packet(0x50, "\x00\x01\x97"), mqtt.ProtocolError},

	// DISCONNECT.
	{"DISCONNECT from a server", []string{connack}, packet(0xe0, "\x9d", properties("\x1c", text("s"))), 0},
	{"DISCONNECT from a server that has a Will", []string{connack}, packet(0xe0, "\x04"), 0},
	{"DISCONNECT from a server that ends a session [MQTT-3.14.2-2]", []string{connack}, packet(0xe0, "\x00", properties("\x11\x00\x00\x00\x00")), mqtt.Malformed},
	{"a property length of five bytes in DISCONNECT", []string{connack}, packet(0xe0, "\x00\x80\x80\x80\x80\x0f"), mqtt.Malformed},

	// The answers of a server.
	{"CONNACK with all properties", nil, packet(0x20, "\x01\x00", properties("\x11\x00\x00\x00\x00", "\x21\x00\x01", "\x24\x01", "\x25\x00", "\x27\x00\x00\x00\x01", "\x12", text("c"), "\x22\x00\x00", "\x1f", text("r"), user("", ""), "\x28\x00", "\x29\x00", "\x2a\x00", "\x13\x00\x00", "\x1a", text("i"), "\x1c", text("s"), "\x15", text("m"), "\x16", text("d"))), 0},
	{"CONNACK of MQTT 3.1.1 in place of MQTT 5", nil, packet(0x20, "\x00\x01"), mqtt.Malformed},
	{"half a CONNACK", nil, packet(0x20, "\x00"), mqtt.Malformed},
	{"CONNACK with flags [MQTT-3.2.2-1]", nil, packet(0x20, "\x02\x00", properties()), mqtt.Malformed},
	{"CONNACK that refuses a session [MQTT-3.2.2-6]", nil, packet(0x20, "\x01\x87", properties()), mqtt.ProtocolError},
	{"CONNACK with a code of DISCONNECT [MQTT-3.2.2-8]", nil, packet(0x20, "\x00\x8b", properties()), 0},
	{"CONNACK with a Maximum QoS of 2", nil, packet(0x20, "\x00\x00", properties("\x24\x02")), mqtt.ProtocolError},
	{"CONNACK with a Receive Maximum of 0", nil, packet(0x20, "\x00\x00", properties("\x21\x00\x00")), mqtt.ProtocolError},
	{"CONNACK that goes on", nil, packet(0x20, "\x00\x00", properties(), "x"), mqtt.Malformed},
	{"a property length of five bytes in CONNACK", nil, packet(0x20, "\x00\x00\x80\x80\x80\x80\x0f"), mqtt.Malformed},
	{"SUBACK", []string{connack}, packet(0x90, "\x00\x01", properties("\x1f", text("r")), "\x00\x01\x02\x80"), 0},
	{"SUBACK without a code [MQTT-3.9.3-1]", []string{connack}, packet(0x90, "\x00\x01", properties()), mqtt.Malformed},
	{"SUBACK with a code of UNSUBACK [MQTT-3.9.3-2]", []string{connack}, packet(0x90, "\x00\x01", properties(), "\x11"), 0},
	{"SUBACK with packet identifier 0", []string{connack}, packet(0x90, "\x00\x00", properties(), "\x00"), mqtt.ProtocolError},
	{"UNSUBACK", []string{connack}, packet(0xb0, "\x00\x01", properties(), "\x11"), 0},
	{"UNSUBACK with a code of SUBACK [MQTT-3.11.3-2]", []string{connack}, packet(0xb0, "\x00\x01", properties(), "\x01"), 0},
	{"a property twice [MQTT-2.2.2.2]", []string{connack}, publish("a", properties("\x03", text("a"), "\x03", text("b")), ""), mqtt.ProtocolError},
	{"PINGRESP", []string{connack}, packet(0xd0), 0},
	{"AUTH", []string{connack}, packet(0xf0), 0},
	{"AUTH with a code of a client [MQTT-3.15.2-1]", []string{connack}, packet(0xf0, "\x19", properties()), 0},
	{"AUTH with flags [MQTT-3.15.1-1]", []string{connack}, packet(0xf1), mqtt.Malformed},
}

// open returns a gate after these packets.
func open(t testing.TB, before ...string) *mqtt.Gate {
	t.Helper()
	g := mqtt.NewGate()
	for _, packet := range before {
		if err := g.Check([]byte(packet)); err != nil {
			t.Fatalf("% x: %v", packet, err)
		}
	}
	return g
}

func TestEachRuleOfTheStandardAndEachLimitIsKept(t *testing.T) {
	for _, test := range rules {
		t.Run(test.name, func(t *testing.T) {
			g := open(t, test.before...)
			err := g.Check([]byte(test.packet))
			var refusal *mqtt.Refusal
			switch isRefusal := errors.As(err, &refusal); {
			case test.code == 0 && err != nil:
				t.Errorf("it is refused: %v", err)
			case test.code != 0 && (!isRefusal || refusal.Code != test.code):
				t.Errorf("%v; want the reason code %#x", err, test.code)
			}
		})
	}
}

// Whatever is good is refused where a byte of it is missing.
func TestEveryByteOfAPacketIsNeeded(t *testing.T) {
	for _, test := range rules {
		if test.code != 0 {
			continue
		}
		for cut := 1; cut < len(test.packet); cut++ {
			if err := open(t, test.before...).Check([]byte(test.packet[:cut])); err == nil {
				t.Errorf("%s: %d of %d bytes are let through", test.name, cut, len(test.packet))
			}
		}
	}
}

// FuzzCheck shows that no packet makes a Gate panic, and that what it lets through is whole.
func FuzzCheck(f *testing.F) {
	for _, test := range rules {
		f.Add([]byte(strings.Join(test.before, "")), []byte(test.packet))
	}
	f.Fuzz(func(t *testing.T, before, packet []byte) {
		if len(before) == 0 || len(packet) == 0 {
			return
		}
		g := mqtt.NewGate()
		_ = g.Check(before)
		kept := bytes.Clone(packet)
		err := g.Check(packet)
		if !bytes.Equal(packet, kept) {
			t.Fatal("the packet is changed")
		}
		if (mqtt.RefusalIn(err) != nil) != (err != nil) {
			t.Errorf("%v is no refusal", err)
		}
		if err != nil {
			return
		}
		if size, _, ok := mqtt.Size(packet); !ok || size != len(packet) {
			t.Fatalf("%d bytes are let through; the header says %d", len(packet), size)
		}
		if mqtt.Type(packet) == packets.PUBLISH && len(g.Publish().Topic) == 0 {
			t.Error("a message has no topic")
		}
	})
}
