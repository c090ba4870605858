package wire_test

import (
	"encoding/binary"
	"errors"
	"strings"
	"testing"

	"github.com/tenurelock/tenure/internal/mqtt"
	"github.com/tenurelock/tenure/server/internal/wire"
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

// start returns what a CONNECT of a version begins with, up to its properties.
func start(version byte, flags byte) string {
	return text("MQTT") + string([]byte{version, flags, 0, 9})
}

var connect5 = packet(0x10, start(5, 2), properties("\x11\x00\x00\x00\x09"), text("c"))

// will returns a CONNECT with a Will.
func will(flags byte, willProperties, topic, payload string) string {
	return packet(0x10, start(5, 6|flags), properties(), text("c"), willProperties, text(topic), text(payload))
}

// publish returns a PUBLISH with QoS 0.
func publish(topic, properties, payload string) string {
	return packet(0x30, text(topic), properties, payload)
}

func subscribe(parts ...string) string {
	return packet(0x82, "\x00\x01", properties(), strings.Join(parts, ""))
}

// users returns n user properties of as many bytes.
func users(n, bytes int) string { return strings.Repeat(user("", strings.Repeat("x", bytes)), n) }

// rules are packets of a client with the reason codes with which they are refused; 0: they are not.
// Each follows those before it in its session. Package mqtt has those of a broker.
var rules = []struct {
	name   string
	before []string // packets that are let through
	packet string
	code   byte
}{
	// The order of packets.
	{"CONNECT", nil, connect5, 0},
	{"another packet first [MQTT-3.1.0-1]", nil, packet(0xc0), mqtt.ProtocolError},
	{"CONNECT again [MQTT-3.1.0-2]", []string{connect5}, connect5, mqtt.ProtocolError},
	{"CONNACK from a client", []string{connect5}, "\x20\x03\x00\x00\x00", mqtt.ProtocolError},
	{"PINGRESP from a client", []string{connect5}, packet(0xd0), mqtt.ProtocolError},
	{"AUTH without a method [MQTT-4.12.0-6]", []string{connect5}, packet(0xf0), mqtt.ProtocolError},
	{"a packet of type 0 [MQTT-2.1.2]", []string{connect5}, packet(0x00), mqtt.ProtocolError},

	// Headers.
	{"PINGREQ", []string{connect5}, packet(0xc0), 0},
	{"PINGREQ with flags [MQTT-2.1.3-1]", []string{connect5}, packet(0xc1), mqtt.Malformed},
	{"PINGREQ with a body", []string{connect5}, packet(0xc0, "x"), mqtt.Malformed},
	{"a length of five bytes [MQTT-1.5.5-1]", []string{connect5}, "\xc0\x80\x80\x80\x80\x01", mqtt.Malformed},
	{"a length of more bytes than it needs [MQTT-1.5.5-1]", []string{connect5}, "\xc0\x80\x00", mqtt.Malformed},
	{"less than the header says", []string{connect5}, "\x30\x09\x00\x01a\x00", mqtt.Malformed},
	{"more than the header says", []string{connect5}, packet(0xc0) + "x", mqtt.Malformed},

	// CONNECT.
	{"CONNECT with flags", nil, packet(0x11, start(5, 2), properties(), text("c")), mqtt.Malformed},
	{"another protocol [MQTT-3.1.2-1]", nil, packet(0x10, text("HTTP"), "\x05\x02\x00\x00", properties(), text("c")), mqtt.UnsupportedVersion},
	{"MQTT 3.1.1", nil, packet(0x10, start(4, 2), text("c")), mqtt.UnsupportedVersion},
	{"MQTT 6 [MQTT-3.1.2-2]", nil, packet(0x10, start(6, 2), properties(), text("c")), mqtt.UnsupportedVersion},
	{"MQIsdp 4", nil, packet(0x10, text("MQIsdp"), "\x04\x02\x00\x00", text("c")), mqtt.UnsupportedVersion},
	{"no version", nil, packet(0x10, text("MQTT")), mqtt.Malformed},
	{"no keep-alive", nil, packet(0x10, text("MQTT"), "\x05\x02\x00"), mqtt.Malformed},
	{"the reserved flag [MQTT-3.1.2-3]", nil, packet(0x10, start(5, 3), properties(), text("c")), mqtt.Malformed},
	{"a Will of QoS 3 [MQTT-3.1.2-12]", nil, will(0x18, properties(), "t", "p"), mqtt.Malformed},
	{"QoS of no Will [MQTT-3.1.2-11]", nil, packet(0x10, start(5, 0x0a), properties(), text("c")), mqtt.Malformed},
	{"a retained Will that is none [MQTT-3.1.2-13]", nil, packet(0x10, start(5, 0x22), properties(), text("c")), mqtt.Malformed},
	{"no client identifier", nil, packet(0x10, start(5, 2), properties(), text("")), 0},
	{"a client identifier that is not UTF-8 [MQTT-3.1.3-4]", nil, packet(0x10, start(5, 2), properties(), text("\xff")), mqtt.Malformed},
	{"user name and password", nil, packet(0x10, start(5, 0xc2), properties(), text("c"), text("u"), text("\xff")), 0},
	{"a password alone", nil, packet(0x10, start(5, 0x42), properties(), text("c"), text("p")), 0},
	{"no user name [MQTT-3.1.2-17]", nil, packet(0x10, start(5, 0x82), properties(), text("c")), mqtt.Malformed},
	{"no password [MQTT-3.1.2-19]", nil, packet(0x10, start(5, 0xc2), properties(), text("c"), text("u")), mqtt.Malformed},
	{"a user name that nothing announces [MQTT-3.1.2-16]", nil, packet(0x10, start(5, 2), properties(), text("c"), text("u")), mqtt.Malformed},
	{"all properties of CONNECT", nil, packet(0x10, start(5, 2), properties("\x11\x00\x00\x00\x00", "\x21\x00\x01", "\x27\x00\x00\x00\x01", "\x22\x00\x00", "\x19\x01", "\x17\x00", user("a", ""), user("a", "")), text("c")), 0},
	{"a Receive Maximum of 0", nil, packet(0x10, start(5, 2), properties("\x21\x00\x00"), text("c")), mqtt.ProtocolError},
	{"a Maximum Packet Size of 0", nil, packet(0x10, start(5, 2), properties("\x27\x00\x00\x00\x00"), text("c")), mqtt.ProtocolError},
	{"a Request Problem Information of 2", nil, packet(0x10, start(5, 2), properties("\x17\x02"), text("c")), mqtt.ProtocolError},
	{"a property of PUBLISH in CONNECT", nil, packet(0x10, start(5, 2), properties("\x01\x00"), text("c")), mqtt.Malformed},
	{"a property twice [MQTT-2.2.2.2]", nil, packet(0x10, start(5, 2), properties("\x17\x00\x17\x00"), text("c")), mqtt.ProtocolError},
	{"an authentication method [MQTT-4.12.0-1]", nil, packet(0x10, start(5, 2), properties("\x15", text("m")), text("c")), mqtt.BadAuthentication},
	{"Authentication Data without a method", nil, packet(0x10, start(5, 2), properties("\x16", text("m")), text("c")), mqtt.ProtocolError},
	{"a Will", nil, will(0x28, properties("\x18\x00\x00\x00\x01", "\x01\x01", "\x08", text("r"), user("a", "")), "t", "p"), 0},
	{"an empty Will", nil, will(0, properties(), "t", ""), 0},
	{"a Will without a topic", nil, will(0, properties(), "", "p"), mqtt.ProtocolError},
	{"a Will with a wildcard", nil, will(0, properties(), "a/#", "p"), mqtt.InvalidTopic},
	{"a Will that is not the text it says", nil, will(0, properties("\x01\x01"), "t", "\xff"), mqtt.InvalidPayloadFormat},
	{"a Will with a property of CONNECT", nil, will(0, properties("\x17\x00"), "t", "p"), mqtt.Malformed},
	{"no payload of a Will", nil, packet(0x10, start(5, 6), properties(), text("c"), properties(), text("t")), mqtt.Malformed},
	{"user properties of CONNECT and Will over the limit", nil, packet(0x10, start(5, 6), properties(users(33, 0)), text("c"), properties(users(32, 0)), text("t"), text("p")), mqtt.QuotaExceeded},

	// PUBLISH.
	{"PUBLISH", []string{connect5}, publish("a/b", properties(), "\xff"), 0},
	{"a topic and no more", []string{connect5}, publish("a", "", ""), mqtt.Malformed},
	{"QoS 1", []string{connect5}, packet(0x3b, text("a"), "\x00\x01", properties()), 0},
	{"QoS 2", []string{connect5}, packet(0x34, text("a"), "\x00\x01", properties()), 0},
	{"QoS 3 [MQTT-3.3.1-4]", []string{connect5}, packet(0x36, text("a"), "\x00\x01", properties()), mqtt.Malformed},
	{"a duplicate with QoS 0 [MQTT-3.3.1-2]", []string{connect5}, packet(0x38, text("a"), properties()), mqtt.ProtocolError},
	{"no packet identifier", []string{connect5}, packet(0x32, text("a")), mqtt.Malformed},
	{"packet identifier 0 [MQTT-2.2.1-3]", []string{connect5}, packet(0x32, text("a"), "\x00\x00", properties()), mqtt.ProtocolError},
	{"a topic name with + [MQTT-3.3.2-2]", []string{connect5}, publish("a/+", properties(), ""), mqtt.InvalidTopic},
	{"an empty topic name [MQTT-4.7.3-1]", []string{connect5}, publish("", properties(), ""), mqtt.ProtocolError},
	{"U+0000 [MQTT-1.5.4-2]", []string{connect5}, publish("a\x00", properties(), ""), mqtt.Malformed},
	{"a surrogate [MQTT-1.5.4-1]", []string{connect5}, publish("\xed\xa0\x80", properties(), ""), mqtt.Malformed},
	{"an overlong encoding", []string{connect5}, publish("\xc0\xaf", properties(), ""), mqtt.Malformed},
	{"U+FEFF [MQTT-1.5.4-3]", []string{connect5}, publish("\ufeff", properties(), ""), 0},
	{"as many levels as there may be", []string{connect5}, publish(strings.Repeat("a/", 63), properties(), ""), 0},
	{"a level more", []string{connect5}, publish(strings.Repeat("a/", 64), properties(), ""), mqtt.InvalidTopic},
	{"as long a topic as may be", []string{connect5}, publish(strings.Repeat("a", 1024), properties(), ""), 0},
	{"a longer one", []string{connect5}, publish(strings.Repeat("a", 1025), properties(), ""), mqtt.InvalidTopic},
	{"all properties of PUBLISH", []string{connect5}, publish("a", properties("\x01\x01", "\x02\x00\x00\x00\x00", "\x03", text(""), "\x08", text("r"), "\x09", text("\xff"), user("a", "b"), user("a", "b")), "text"), 0},
	{"a payload format of 2", []string{connect5}, publish("a", properties("\x01\x02"), ""), mqtt.ProtocolError},
	{"text that is none", []string{connect5}, publish("a", properties("\x01\x01"), "\xff"), mqtt.InvalidPayloadFormat},
	{"a response topic with a wildcard [MQTT-3.3.2-14]", []string{connect5}, publish("a", properties("\x08", text("r/+")), ""), mqtt.InvalidTopic},
	{"an empty response topic [MQTT-4.7.3-1]", []string{connect5}, publish("a", properties("\x08", text("")), ""), mqtt.ProtocolError},
	{"a response topic over the limit", []string{connect5}, publish("a", properties("\x08", text(strings.Repeat("a/", 64))), ""), mqtt.InvalidTopic},
	{"a topic alias [MQTT-3.3.2-9]", []string{connect5}, publish("a", properties("\x23\x00\x01"), ""), mqtt.InvalidAlias},
	{"a Subscription Identifier from a client [MQTT-3.3.4-6]", []string{connect5}, publish("a", properties("\x0b\x01"), ""), mqtt.Malformed},
	{"as many user properties as may be", []string{connect5}, publish("a", properties(users(64, 0)), ""), 0},
	{"one more", []string{connect5}, publish("a", properties(users(65, 0)), ""), mqtt.QuotaExceeded},
	{"as long user properties as may be", []string{connect5}, publish("a", properties(users(2, 8<<10)), ""), 0},
	{"longer ones", []string{connect5}, publish("a", properties(users(2, 8<<10), user("", "x")), ""), mqtt.QuotaExceeded},

	// Acknowledgements.
	{"PUBACK", []string{connect5}, packet(0x40, "\x00\x01"), 0},
	{"PUBACK with a code", []string{connect5}, packet(0x40, "\x00\x01\x80"), 0},
	{"PUBACK with properties", []string{connect5}, packet(0x40, "\x00\x01\x80", properties("\x1f", text("r"), user("", ""))), 0},
	{"PUBACK with half a packet identifier", []string{connect5}, packet(0x40, "\x00"), mqtt.Malformed},
	{"PUBACK of packet identifier 0", []string{connect5}, packet(0x40, "\x00\x00"), mqtt.ProtocolError},
	{"PUBACK with flags [MQTT-2.1.3-1]", []string{connect5}, packet(0x42, "\x00\x01"), mqtt.Malformed},
	{"PUBACK with two reasons", []string{connect5}, packet(0x40, "\x00\x01\x80", properties("\x1f", text("r"), "\x1f", text("r"))), mqtt.ProtocolError},
	{"PUBACK that goes on", []string{connect5}, packet(0x40, "\x00\x01\x80", properties(), "x"), mqtt.Malformed},
	{"PUBCOMP, of QoS 2", []string{connect5}, packet(0x70, "\x00\x01"), mqtt.ProtocolError},

	// SUBSCRIBE and UNSUBSCRIBE.
	{"SUBSCRIBE", []string{connect5}, packet(0x82, "\x00\x01", properties(user("", "")), text("+/a/#"), "\x2e", text("/"), "\x00"), 0},
	{"SUBSCRIBE without options, at which mochi ends the process [MQTT-3.8.3-1]", []string{connect5}, "\x82\x06\x00\x01\x00\x00\x01a", mqtt.Malformed},
	{"SUBSCRIBE without a filter [MQTT-3.8.3-2]", []string{connect5}, subscribe(), mqtt.ProtocolError},
	{"SUBSCRIBE without its flags [MQTT-3.8.1-1]", []string{connect5}, packet(0x80, "\x00\x01", properties(), text("a"), "\x00"), mqtt.Malformed},
	{"SUBSCRIBE with packet identifier 0", []string{connect5}, packet(0x82, "\x00\x00", properties(), text("a"), "\x00"), mqtt.ProtocolError},
	{"a Subscription Identifier", []string{connect5}, packet(0x82, "\x00\x01", properties("\x0b\x01"), text("a"), "\x00"), 0xa1},
	{"reserved options [MQTT-3.8.3-5]", []string{connect5}, subscribe(text("a"), "\x40"), mqtt.Malformed},
	{"a filter of QoS 3", []string{connect5}, subscribe(text("a"), "\x03"), mqtt.ProtocolError},
	{"a Retain Handling of 3", []string{connect5}, subscribe(text("a"), "\x30"), mqtt.ProtocolError},
	{"No Local", []string{connect5}, subscribe(text("a"), "\x04"), 0},
	{"an empty filter [MQTT-4.7.3-1]", []string{connect5}, subscribe(text(""), "\x00"), mqtt.InvalidFilter},
	{"# before other levels [MQTT-4.7.1-1]", []string{connect5}, subscribe(text("#/a"), "\x00"), mqtt.InvalidFilter},
	{"# in a level", []string{connect5}, subscribe(text("a#"), "\x00"), mqtt.InvalidFilter},
	{"+ in a level [MQTT-4.7.1-2]", []string{connect5}, subscribe(text("a/+b"), "\x00"), mqtt.InvalidFilter},
	{"a filter with too many levels", []string{connect5}, subscribe(text(strings.Repeat("a/", 64)), "\x00"), mqtt.InvalidFilter},
	{"a filter that is too long", []string{connect5}, subscribe(text(strings.Repeat("a", 1025)), "\x00"), mqtt.InvalidFilter},
	{"as many filters as may be", []string{connect5}, subscribe(strings.Repeat(text("a")+"\x00", 100)), 0},
	{"a filter more", []string{connect5}, subscribe(strings.Repeat(text("a")+"\x00", 101)), mqtt.QuotaExceeded},
	{"UNSUBSCRIBE", []string{connect5}, packet(0xa2, "\x00\x01", properties(user("", "")), text("a"), text("$share/g/a")), 0},
	{"UNSUBSCRIBE without a filter [MQTT-3.10.3-2]", []string{connect5}, packet(0xa2, "\x00\x01", properties()), mqtt.ProtocolError},
	{"UNSUBSCRIBE without its flags [MQTT-3.10.1-1]", []string{connect5}, packet(0xa0, "\x00\x01", properties(), text("a")), mqtt.Malformed},
	{"UNSUBSCRIBE with a Subscription Identifier", []string{connect5}, packet(0xa2, "\x00\x01", properties("\x0b\x01"), text("a")), 0xa1},
	{"UNSUBSCRIBE with half a filter", []string{connect5}, packet(0xa2, "\x00\x01", properties(), "\x00\x02a"), mqtt.Malformed},
	{"UNSUBSCRIBE with too many filters", []string{connect5}, packet(0xa2, "\x00\x01", properties(), strings.Repeat(text("a"), 101)), mqtt.QuotaExceeded},

	// DISCONNECT.
	{"DISCONNECT", []string{connect5}, packet(0xe0), 0},
	{"DISCONNECT with a code", []string{connect5}, packet(0xe0, "\x04"), 0},
	{"DISCONNECT with properties", []string{connect5}, packet(0xe0, "\x00", properties("\x11\x00\x00\x00\x01", "\x1f", text("r"))), 0},
	{"DISCONNECT with a code of a server [MQTT-3.14.2-1]", []string{connect5}, packet(0xe0, "\x8b"), mqtt.ProtocolError},
	{"DISCONNECT with flags [MQTT-3.14.1-1]", []string{connect5}, packet(0xe8), mqtt.Malformed},
	{"DISCONNECT that goes on", []string{connect5}, packet(0xe0, "\x00", properties(), "x"), mqtt.Malformed},
	{"DISCONNECT that keeps a session that was not to be kept", []string{packet(0x10, start(5, 2), properties(), text("c"))}, packet(0xe0, "\x00", properties("\x11\x00\x00\x00\x01")), mqtt.ProtocolError},
	{"DISCONNECT from a client to another server", []string{connect5}, packet(0xe0, "\x00", properties("\x1c", text("s"))), mqtt.Malformed},
}

// open returns a gate after these packets.
func open(t testing.TB, before ...string) *wire.Gate {
	t.Helper()
	g := wire.NewGate()
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
		for cut := 1; cut < len(test.packet); cut += 1 + len(test.packet)/500 {
			if err := open(t, test.before...).Check([]byte(test.packet[:cut])); err == nil {
				t.Errorf("%s: %d of %d bytes are let through", test.name, cut, len(test.packet))
			}
		}
	}
}

func TestADisconnectSaysWhyInThePeersVersion(t *testing.T) {
	small := packet(0x10, start(5, 2), properties("\x27\x00\x00\x00\x14"), text("c"))
	for _, test := range []struct {
		name   string
		before []string
		packet string
		want   string
	}{
		{"before CONNACK", nil, packet(0x10, start(5, 3), properties(), text("c")),
			packet(0x20, "\x00\x81", properties("\x1f", text("CONNECT: its reserved flag is set")))},
		{"a version that is not known", nil, packet(0x10, start(6, 2)),
			packet(0x20, "\x00\x84", properties("\x1f", text("CONNECT: it has version 6 of the protocol: connect with MQTT 5")))},
		{"an old version", nil, packet(0x10, start(2, 2)), "\x20\x02\x00\x01"},
		{"no MQTT at all", nil, packet(0x10, text("HTTP"), "\x01"), ""},
		{"after CONNECT", []string{connect5}, packet(0xc1),
			packet(0xe0, "\x81", properties("\x1f", text("PINGREQ: its flags are reserved")))},
		{"to a client that takes small packets only", []string{small}, packet(0xc1), "\xe0\x02\x81\x00"},
	} {
		t.Run(test.name, func(t *testing.T) {
			g := open(t, test.before...)
			refusal, why := []byte("before"), mqtt.RefusalIn(g.Check([]byte(test.packet)))
			if g.Begun {
				refusal = g.AppendDisconnect(refusal, why)
			} else {
				refusal = g.AppendRefused(refusal, why, "")
			}
			if string(refusal) != "before"+test.want {
				t.Errorf("%q\nwant %q", refusal, "before"+test.want)
			}
		})
	}
}

// request is a typical request of a lease.
func request() []byte {
	m := mqtt.Message{
		Topic:           "statestore/v1/FA9AE35F-2F64-47CD-9BFF-08E2B32A0FE8/command/invoke",
		QoS:             1,
		PacketID:        513,
		MessageExpiry:   10,
		ContentType:     "application/octet-stream",
		ResponseTopic:   "clients/a/services/statestore/_any_/command/invoke/response",
		CorrelationData: []byte("0123456789abcdef"),
		User:            []mqtt.UserProperty{{Name: "__srcId", Value: "a"}, {Name: "__ts", Value: "1700000000000:00002:client-a"}},
		Payload:         []byte("*6\r\n$3\r\nSET\r\n$4\r\nlock\r\n$8\r\nclient:1\r\n$3\r\nNEX\r\n$2\r\nPX\r\n$5\r\n10000\r\n"),
	}
	packet, _ := m.Append(nil)
	return packet
}

func TestARequestAndItsAcknowledgementAreCheckedWithoutAllocating(t *testing.T) {
	g := open(t, connect5)
	for _, packet := range [][]byte{request(), mqtt.AppendPuback(nil, 7)} {
		if n := testing.AllocsPerRun(100, func() {
			if err := g.Check(packet); err != nil {
				t.Error(err)
			}
		}); n != 0 {
			t.Errorf("%v allocations for % .3x", n, packet)
		}
	}
}
