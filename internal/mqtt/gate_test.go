package mqtt_test

import (
	"encoding/binary"
	"errors"
	"strings"
	"testing"

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

// start returns what a CONNECT of a version begins with, up to its properties.
func start(version byte, flags byte) string {
	name := "MQTT"
	if version == mqtt.Version31 {
		name = "MQIsdp"
	}
	return text(name) + string([]byte{version, flags, 0, 9})
}

var (
	connect5   = packet(0x10, start(5, 2), properties("\x11\x00\x00\x00\x09"), text("c"))
	connect311 = packet(0x10, start(4, 2), text("c"))
	connack5   = packet(0x20, "\x00\x00", properties())
	connack311 = packet(0x20, "\x00\x00")
)

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

var limits = mqtt.Limits{TopicLevels: 4, TopicLength: 20, Filters: 3, UserProperties: 3, UserPropertyBytes: 20, FirstPacket: 100}

// rules are packets with the reason codes with which they are refused; 0: they are not.
// Each follows those before it in its session.
var rules = []struct {
	name    string
	side    mqtt.Side
	version byte     // of the server, if not 5
	before  []string // packets that are let through
	packet  string
	code    byte
}{
	// The order of packets.
	{"CONNECT", mqtt.FromClient, 0, nil, connect5, 0},
	{"CONNECT of MQTT 3.1.1", mqtt.FromClient, 0, nil, connect311, 0},
	{"CONNECT of MQTT 3.1", mqtt.FromClient, 0, nil, packet(0x10, start(3, 2), text("c")), 0},
	{"another packet first [MQTT-3.1.0-1]", mqtt.FromClient, 0, nil, packet(0xc0), mqtt.ProtocolError},
	{"CONNECT again [MQTT-3.1.0-2]", mqtt.FromClient, 0, []string{connect5}, connect5, mqtt.ProtocolError},
	{"CONNACK from a client", mqtt.FromClient, 0, []string{connect5}, connack5, mqtt.ProtocolError},
	{"PINGRESP from a client", mqtt.FromClient, 0, []string{connect5}, packet(0xd0), mqtt.ProtocolError},
	{"AUTH without a method [MQTT-4.12.0-6]", mqtt.FromClient, 0, []string{connect5}, packet(0xf0), mqtt.ProtocolError},
	{"a packet of type 0 [MQTT-2.1.2]", mqtt.FromClient, 0, []string{connect5}, packet(0x00), mqtt.ProtocolError},
	{"a packet after DISCONNECT [MQTT-3.14.4-1]", mqtt.FromClient, 0, []string{connect5, packet(0xe0)}, packet(0xc0), mqtt.ProtocolError},
	{"CONNACK", mqtt.FromServer, 0, nil, connack5, 0},
	{"AUTH before CONNACK [MQTT-4.12.0-2]", mqtt.FromServer, 0, nil, packet(0xf0, "\x18", properties("\x15", text("m"))), 0},
	{"another packet before CONNACK [MQTT-3.2.0-1]", mqtt.FromServer, 0, nil, packet(0xd0), mqtt.ProtocolError},
	{"CONNACK again [MQTT-3.2.0-2]", mqtt.FromServer, 0, []string{connack5}, connack5, mqtt.ProtocolError},
	{"CONNECT from a server", mqtt.FromServer, 0, nil, connect5, mqtt.ProtocolError},
	{"SUBSCRIBE from a server", mqtt.FromServer, 0, []string{connack5}, subscribe(text("a"), "\x00"), mqtt.ProtocolError},

	// Headers.
	{"no packet", mqtt.FromClient, 0, []string{connect5}, "", mqtt.Malformed},
	{"PINGREQ", mqtt.FromClient, 0, []string{connect5}, packet(0xc0), 0},
	{"PINGREQ with flags [MQTT-2.1.3-1]", mqtt.FromClient, 0, []string{connect5}, packet(0xc1), mqtt.Malformed},
	{"PINGREQ with a body", mqtt.FromClient, 0, []string{connect5}, packet(0xc0, "x"), mqtt.Malformed},
	{"a length of five bytes [MQTT-1.5.5-1]", mqtt.FromClient, 0, []string{connect5}, "\xc0\x80\x80\x80\x80\x01", mqtt.Malformed},
	{"a length of more bytes than it needs [MQTT-1.5.5-1]", mqtt.FromClient, 0, []string{connect5}, "\xc0\x80\x00", mqtt.Malformed},
	{"less than the header says", mqtt.FromClient, 0, []string{connect5}, "\x30\x09\x00\x01a\x00", mqtt.Malformed},
	{"more than the header says", mqtt.FromClient, 0, []string{connect5}, packet(0xc0) + "x", mqtt.Malformed},

	// CONNECT.
	{"CONNECT with flags", mqtt.FromClient, 0, nil, packet(0x11, start(5, 2), properties(), text("c")), mqtt.Malformed},
	{"another protocol [MQTT-3.1.2-1]", mqtt.FromClient, 0, nil, packet(0x10, text("HTTP"), "\x05\x02\x00\x00", properties(), text("c")), mqtt.UnsupportedVersion},
	{"MQTT 6 [MQTT-3.1.2-2]", mqtt.FromClient, 0, nil, packet(0x10, start(6, 2), properties(), text("c")), mqtt.UnsupportedVersion},
	{"MQIsdp 4", mqtt.FromClient, 0, nil, packet(0x10, text("MQIsdp"), "\x04\x02\x00\x00", text("c")), mqtt.UnsupportedVersion},
	{"no version", mqtt.FromClient, 0, nil, packet(0x10, text("MQTT")), mqtt.Malformed},
	{"no keep-alive", mqtt.FromClient, 0, nil, packet(0x10, text("MQTT"), "\x05\x02\x00"), mqtt.Malformed},
	{"the reserved flag [MQTT-3.1.2-3]", mqtt.FromClient, 0, nil, packet(0x10, start(5, 3), properties(), text("c")), mqtt.Malformed},
	{"a Will of QoS 3 [MQTT-3.1.2-12]", mqtt.FromClient, 0, nil, will(0x18, properties(), "t", "p"), mqtt.Malformed},
	{"QoS of no Will [MQTT-3.1.2-11]", mqtt.FromClient, 0, nil, packet(0x10, start(5, 0x0a), properties(), text("c")), mqtt.Malformed},
	{"a retained Will that is none [MQTT-3.1.2-13]", mqtt.FromClient, 0, nil, packet(0x10, start(5, 0x22), properties(), text("c")), mqtt.Malformed},
	{"no client identifier", mqtt.FromClient, 0, nil, packet(0x10, start(5, 2), properties(), text("")), 0},
	{"none for a session of MQTT 3.1.1 [3.1.1: MQTT-3.1.3-8]", mqtt.FromClient, 0, nil, packet(0x10, start(4, 0), text("")), mqtt.InvalidClientID},
	{"a client identifier that is not UTF-8 [MQTT-3.1.3-4]", mqtt.FromClient, 0, nil, packet(0x10, start(5, 2), properties(), text("\xff")), mqtt.Malformed},
	{"user name and password", mqtt.FromClient, 0, nil, packet(0x10, start(5, 0xc2), properties(), text("c"), text("u"), text("\xff")), 0},
	{"a password alone", mqtt.FromClient, 0, nil, packet(0x10, start(5, 0x42), properties(), text("c"), text("p")), 0},
	{"a password alone in MQTT 3.1.1 [3.1.1: MQTT-3.1.2-22]", mqtt.FromClient, 0, nil, packet(0x10, start(4, 0x42), text("c"), text("p")), mqtt.Malformed},
	{"no user name [MQTT-3.1.2-17]", mqtt.FromClient, 0, nil, packet(0x10, start(5, 0x82), properties(), text("c")), mqtt.Malformed},
	{"no password [MQTT-3.1.2-19]", mqtt.FromClient, 0, nil, packet(0x10, start(5, 0xc2), properties(), text("c"), text("u")), mqtt.Malformed},
	{"a user name that nothing announces [MQTT-3.1.2-16]", mqtt.FromClient, 0, nil, packet(0x10, start(5, 2), properties(), text("c"), text("u")), mqtt.Malformed},
	{"all properties of CONNECT", mqtt.FromClient, 0, nil, packet(0x10, start(5, 2), properties("\x11\x00\x00\x00\x00", "\x21\x00\x01", "\x27\x00\x00\x00\x01", "\x22\x00\x00", "\x19\x01", "\x17\x00", user("a", ""), user("a", "")), text("c")), 0},
	{"a Receive Maximum of 0", mqtt.FromClient, 0, nil, packet(0x10, start(5, 2), properties("\x21\x00\x00"), text("c")), mqtt.ProtocolError},
	{"a Maximum Packet Size of 0", mqtt.FromClient, 0, nil, packet(0x10, start(5, 2), properties("\x27\x00\x00\x00\x00"), text("c")), mqtt.ProtocolError},
	{"a Request Problem Information of 2", mqtt.FromClient, 0, nil, packet(0x10, start(5, 2), properties("\x17\x02"), text("c")), mqtt.ProtocolError},
	{"a property of PUBLISH in CONNECT", mqtt.FromClient, 0, nil, packet(0x10, start(5, 2), properties("\x01\x00"), text("c")), mqtt.Malformed},
	{"a property twice [MQTT-2.2.2.2]", mqtt.FromClient, 0, nil, packet(0x10, start(5, 2), properties("\x17\x00\x17\x00"), text("c")), mqtt.ProtocolError},
	{"an authentication method [MQTT-4.12.0-1]", mqtt.FromClient, 0, nil, packet(0x10, start(5, 2), properties("\x15", text("m")), text("c")), mqtt.BadAuthentication},
	{"Authentication Data without a method", mqtt.FromClient, 0, nil, packet(0x10, start(5, 2), properties("\x16", text("m")), text("c")), mqtt.ProtocolError},
	{"a Will", mqtt.FromClient, 0, nil, will(0x28, properties("\x18\x00\x00\x00\x01", "\x01\x01", "\x08", text("r"), user("a", "")), "t", "p"), 0},
	{"an empty Will", mqtt.FromClient, 0, nil, will(0, properties(), "t", ""), 0},
	{"a Will of MQTT 3.1.1", mqtt.FromClient, 0, nil, packet(0x10, start(4, 6), text("c"), text("t"), text("\xff")), 0},
	{"a Will without a topic", mqtt.FromClient, 0, nil, will(0, properties(), "", "p"), mqtt.ProtocolError},
	{"a Will with a wildcard", mqtt.FromClient, 0, nil, will(0, properties(), "a/#", "p"), mqtt.InvalidTopic},
	{"a Will that is not the text it says", mqtt.FromClient, 0, nil, will(0, properties("\x01\x01"), "t", "\xff"), mqtt.InvalidPayloadFormat},
	{"a Will with a property of CONNECT", mqtt.FromClient, 0, nil, will(0, properties("\x17\x00"), "t", "p"), mqtt.Malformed},
	{"no payload of a Will", mqtt.FromClient, 0, nil, packet(0x10, start(5, 6), properties(), text("c"), properties(), text("t")), mqtt.Malformed},
	{"a first packet over the limit", mqtt.FromClient, 0, nil, packet(0x10, start(5, 2), properties(), text(strings.Repeat("c", 90))), mqtt.PacketTooLarge},
	{"the beginning of one", mqtt.FromClient, 0, nil, packet(0x10, start(5, 2), properties(), text(strings.Repeat("c", 90)))[:14], mqtt.PacketTooLarge},
	{"user properties of CONNECT and Will over the limit", mqtt.FromClient, 0, nil, packet(0x10, start(5, 6), properties(user("", ""), user("", "")), text("c"), properties(user("", ""), user("", "")), text("t"), text("p")), mqtt.QuotaExceeded},

	// PUBLISH.
	{"PUBLISH", mqtt.FromClient, 0, []string{connect5}, publish("a/b", properties(), "\xff"), 0},
	{"PUBLISH of MQTT 3.1.1", mqtt.FromClient, 0, []string{connect311}, publish("a/b", "", "\xff"), 0},
	{"PUBLISH without a payload of MQTT 3.1.1", mqtt.FromClient, 0, []string{connect311}, publish("a", "", ""), 0},
	{"a topic and no more", mqtt.FromClient, 0, []string{connect5}, publish("a", "", ""), mqtt.Malformed},
	{"QoS 1", mqtt.FromClient, 0, []string{connect5}, packet(0x3b, text("a"), "\x00\x01", properties()), 0},
	{"QoS 2", mqtt.FromClient, 0, []string{connect5}, packet(0x34, text("a"), "\x00\x01", properties()), 0},
	{"QoS 3 [MQTT-3.3.1-4]", mqtt.FromClient, 0, []string{connect5}, packet(0x36, text("a"), "\x00\x01", properties()), mqtt.Malformed},
	{"a duplicate with QoS 0 [MQTT-3.3.1-2]", mqtt.FromClient, 0, []string{connect5}, packet(0x38, text("a"), properties()), mqtt.ProtocolError},
	{"no packet identifier", mqtt.FromClient, 0, []string{connect5}, packet(0x32, text("a")), mqtt.Malformed},
	{"packet identifier 0 [MQTT-2.2.1-3]", mqtt.FromClient, 0, []string{connect5}, packet(0x32, text("a"), "\x00\x00", properties()), mqtt.ProtocolError},
	{"a topic name with + [MQTT-3.3.2-2]", mqtt.FromClient, 0, []string{connect5}, publish("a/+", properties(), ""), mqtt.InvalidTopic},
	{"a topic name with #", mqtt.FromClient, 0, []string{connect311}, publish("#", "", ""), mqtt.InvalidTopic},
	{"an empty topic name [MQTT-4.7.3-1]", mqtt.FromClient, 0, []string{connect5}, publish("", properties(), ""), mqtt.ProtocolError},
	{"U+0000 [MQTT-1.5.4-2]", mqtt.FromClient, 0, []string{connect5}, publish("a\x00", properties(), ""), mqtt.Malformed},
	{"a surrogate [MQTT-1.5.4-1]", mqtt.FromClient, 0, []string{connect5}, publish("\xed\xa0\x80", properties(), ""), mqtt.Malformed},
	{"an overlong encoding", mqtt.FromClient, 0, []string{connect5}, publish("\xc0\xaf", properties(), ""), mqtt.Malformed},
	{"U+FEFF [MQTT-1.5.4-3]", mqtt.FromClient, 0, []string{connect5}, publish("\ufeff", properties(), ""), 0},
	{"as many levels as there may be", mqtt.FromClient, 0, []string{connect5}, publish("a/b/c/d", properties(), ""), 0},
	{"a level more", mqtt.FromClient, 0, []string{connect5}, publish("a/b/c/d/", properties(), ""), mqtt.InvalidTopic},
	{"as long a topic as may be", mqtt.FromClient, 0, []string{connect5}, publish(strings.Repeat("a", 20), properties(), ""), 0},
	{"a longer one", mqtt.FromClient, 0, []string{connect5}, publish(strings.Repeat("a", 21), properties(), ""), mqtt.InvalidTopic},
	{"all properties of PUBLISH", mqtt.FromClient, 0, []string{connect5}, publish("a", properties("\x01\x01", "\x02\x00\x00\x00\x00", "\x03", text(""), "\x08", text("r"), "\x09", text("\xff"), user("a", "b"), user("a", "b")), "text"), 0},
	{"a payload format of 2", mqtt.FromClient, 0, []string{connect5}, publish("a", properties("\x01\x02"), ""), mqtt.ProtocolError},
	{"text that is none", mqtt.FromClient, 0, []string{connect5}, publish("a", properties("\x01\x01"), "\xff"), mqtt.InvalidPayloadFormat},
	{"a response topic with a wildcard [MQTT-3.3.2-14]", mqtt.FromClient, 0, []string{connect5}, publish("a", properties("\x08", text("r/+")), ""), mqtt.InvalidTopic},
	{"an empty response topic [MQTT-4.7.3-1]", mqtt.FromClient, 0, []string{connect5}, publish("a", properties("\x08", text("")), ""), mqtt.ProtocolError},
	{"a response topic over the limit", mqtt.FromClient, 0, []string{connect5}, publish("a", properties("\x08", text("a/b/c/d/e")), ""), mqtt.InvalidTopic},
	{"a topic alias [MQTT-3.3.2-9]", mqtt.FromClient, 0, []string{connect5}, publish("a", properties("\x23\x00\x01"), ""), mqtt.InvalidAlias},
	{"a topic alias for the topic", mqtt.FromServer, 0, []string{connack5}, publish("", properties("\x23\x00\x01"), ""), mqtt.InvalidAlias},
	{"a Subscription Identifier from a client [MQTT-3.3.4-6]", mqtt.FromClient, 0, []string{connect5}, publish("a", properties("\x0b\x01"), ""), mqtt.ProtocolError},
	{"Subscription Identifiers from a server", mqtt.FromServer, 0, []string{connack5}, publish("a", properties("\x0b\x01\x0b\xff\x7f"), ""), 0},
	{"Subscription Identifier 0", mqtt.FromServer, 0, []string{connack5}, publish("a", properties("\x0b\x00"), ""), mqtt.ProtocolError},
	{"a Subscription Identifier of five bytes", mqtt.FromServer, 0, []string{connack5}, publish("a", properties("\x0b\x80\x80\x80\x80\x01"), ""), mqtt.Malformed},
	{"a property length of five bytes, at which paho panics", mqtt.FromServer, 0, []string{connack5}, "\x30\x09\x00\x01a\x80\x80\x80\x80\x0fx", mqtt.Malformed},
	{"a property length that is not minimal [MQTT-1.5.5-1]", mqtt.FromServer, 0, []string{connack5}, packet(0x30, text("a"), "\x80\x00"), mqtt.Malformed},
	{"a property length beyond the packet", mqtt.FromServer, 0, []string{connack5}, packet(0x30, text("a"), "\x05\x01"), mqtt.Malformed},
	{"a property that ends beyond the properties", mqtt.FromServer, 0, []string{connack5}, packet(0x30, text("a"), "\x02\x02\x00", "\x00\x00\x00"), mqtt.Malformed},
	{"an unknown property [MQTT-2.2.2.2]", mqtt.FromServer, 0, []string{connack5}, publish("a", properties("\x04\x00"), ""), mqtt.Malformed},
	{"a property beyond all", mqtt.FromServer, 0, []string{connack5}, publish("a", properties("\xff\x00"), ""), mqtt.Malformed},
	{"a user property that is not UTF-8", mqtt.FromServer, 0, []string{connack5}, publish("a", properties(user("a", "\xff")), ""), mqtt.Malformed},
	{"half a user property", mqtt.FromServer, 0, []string{connack5}, publish("a", properties("\x26", text("a")), ""), mqtt.Malformed},
	{"as many user properties as may be", mqtt.FromClient, 0, []string{connect5}, publish("a", properties(user("a", ""), user("b", ""), user("c", "")), ""), 0},
	{"one more", mqtt.FromClient, 0, []string{connect5}, publish("a", properties(user("a", ""), user("b", ""), user("c", ""), user("d", "")), ""), mqtt.QuotaExceeded},
	{"as long user properties as may be", mqtt.FromClient, 0, []string{connect5}, publish("a", properties(user("0123456789", "0123456789")), ""), 0},
	{"longer ones", mqtt.FromClient, 0, []string{connect5}, publish("a", properties(user("0123456789", "0123456789"), user("", "x")), ""), mqtt.QuotaExceeded},

	// Acknowledgements.
	{"PUBACK", mqtt.FromClient, 0, []string{connect5}, packet(0x40, "\x00\x01"), 0},
	{"PUBACK with a code", mqtt.FromClient, 0, []string{connect5}, packet(0x40, "\x00\x01\x80"), 0},
	{"PUBACK with properties", mqtt.FromClient, 0, []string{connect5}, packet(0x40, "\x00\x01\x80", properties("\x1f", text("r"), user("", ""))), 0},
	{"PUBACK of MQTT 3.1.1", mqtt.FromClient, 0, []string{connect311}, packet(0x40, "\x00\x01"), 0},
	{"PUBACK of MQTT 3.1.1 with a code", mqtt.FromClient, 0, []string{connect311}, packet(0x40, "\x00\x01\x00"), mqtt.Malformed},
	{"PUBACK with half a packet identifier", mqtt.FromClient, 0, []string{connect5}, packet(0x40, "\x00"), mqtt.Malformed},
	{"PUBACK of packet identifier 0", mqtt.FromClient, 0, []string{connect5}, packet(0x40, "\x00\x00"), mqtt.ProtocolError},
	{"PUBACK with a code of SUBACK [MQTT-3.4.2-1]", mqtt.FromClient, 0, []string{connect5}, packet(0x40, "\x00\x01\x9e"), mqtt.ProtocolError},
	{"PUBACK with flags [MQTT-2.1.3-1]", mqtt.FromClient, 0, []string{connect5}, packet(0x42, "\x00\x01"), mqtt.Malformed},
	{"PUBACK with two reasons", mqtt.FromClient, 0, []string{connect5}, packet(0x40, "\x00\x01\x80", properties("\x1f", text("r"), "\x1f", text("r"))), mqtt.ProtocolError},
	{"PUBACK that goes on", mqtt.FromClient, 0, []string{connect5}, packet(0x40, "\x00\x01\x80", properties(), "x"), mqtt.Malformed},
	{"PUBACK with a code of mochi's", mqtt.FromServer, 0, []string{connack5}, packet(0x40, "\x00\x01\x01"), 0},
	{"PUBREC", mqtt.FromServer, 0, []string{connack5}, packet(0x50, "\x00\x01\x97"), 0},
	{"PUBREL", mqtt.FromServer, 0, []string{connack5}, packet(0x62, "\x00\x01\x92"), 0},
	{"PUBREL without its flags [MQTT-3.6.1-1]", mqtt.FromServer, 0, []string{connack5}, packet(0x60, "\x00\x01"), mqtt.Malformed},
	{"PUBCOMP with a code of PUBACK [MQTT-3.7.2-1]", mqtt.FromClient, 0, []string{connect5}, packet(0x70, "\x00\x01\x97"), mqtt.ProtocolError},

	// SUBSCRIBE and UNSUBSCRIBE.
	{"SUBSCRIBE", mqtt.FromClient, 0, []string{connect5}, packet(0x82, "\x00\x01", properties("\x0b\x01", user("", "")), text("+/a/#"), "\x2e", text("/"), "\x00"), 0},
	{"SUBSCRIBE of MQTT 3.1.1", mqtt.FromClient, 0, []string{connect311}, packet(0x82, "\x00\x01", text("a"), "\x02"), 0},
	{"SUBSCRIBE without options, at which mochi ends the process [MQTT-3.8.3-1]", mqtt.FromClient, 0, []string{connect5}, "\x82\x06\x00\x01\x00\x00\x01a", mqtt.Malformed},
	{"SUBSCRIBE without a filter [MQTT-3.8.3-2]", mqtt.FromClient, 0, []string{connect5}, subscribe(), mqtt.ProtocolError},
	{"SUBSCRIBE without its flags [MQTT-3.8.1-1]", mqtt.FromClient, 0, []string{connect5}, packet(0x80, "\x00\x01", properties(), text("a"), "\x00"), mqtt.Malformed},
	{"SUBSCRIBE with packet identifier 0", mqtt.FromClient, 0, []string{connect5}, packet(0x82, "\x00\x00", properties(), text("a"), "\x00"), mqtt.ProtocolError},
	{"two Subscription Identifiers", mqtt.FromClient, 0, []string{connect5}, packet(0x82, "\x00\x01", properties("\x0b\x01\x0b\x01"), text("a"), "\x00"), mqtt.ProtocolError},
	{"reserved options [MQTT-3.8.3-5]", mqtt.FromClient, 0, []string{connect5}, subscribe(text("a"), "\x40"), mqtt.Malformed},
	{"options of MQTT 5 in MQTT 3.1.1", mqtt.FromClient, 0, []string{connect311}, packet(0x82, "\x00\x01", text("a"), "\x04"), mqtt.Malformed},
	{"a filter of QoS 3", mqtt.FromClient, 0, []string{connect5}, subscribe(text("a"), "\x03"), mqtt.ProtocolError},
	{"a Retain Handling of 3", mqtt.FromClient, 0, []string{connect5}, subscribe(text("a"), "\x30"), mqtt.ProtocolError},
	{"No Local", mqtt.FromClient, 0, []string{connect5}, subscribe(text("a"), "\x04"), 0},
	{"No Local in a shared subscription [MQTT-3.8.3-4]", mqtt.FromClient, 0, []string{connect5}, subscribe(text("$share/g/a"), "\x04"), mqtt.ProtocolError},
	{"an empty filter [MQTT-4.7.3-1]", mqtt.FromClient, 0, []string{connect5}, subscribe(text(""), "\x00"), mqtt.InvalidFilter},
	{"# before other levels [MQTT-4.7.1-1]", mqtt.FromClient, 0, []string{connect5}, subscribe(text("#/a"), "\x00"), mqtt.InvalidFilter},
	{"# in a level", mqtt.FromClient, 0, []string{connect5}, subscribe(text("a#"), "\x00"), mqtt.InvalidFilter},
	{"+ in a level [MQTT-4.7.1-2]", mqtt.FromClient, 0, []string{connect5}, subscribe(text("a/+b"), "\x00"), mqtt.InvalidFilter},
	{"a shared subscription", mqtt.FromClient, 0, []string{connect5}, subscribe(text("$share/g/a/b/+/#"), "\x01"), 0},
	{"one without a name [MQTT-4.8.2-1]", mqtt.FromClient, 0, []string{connect5}, subscribe(text("$share//a"), "\x00"), mqtt.InvalidFilter},
	{"one with a wildcard in its name [MQTT-4.8.2-2]", mqtt.FromClient, 0, []string{connect5}, subscribe(text("$share/+/a"), "\x00"), mqtt.InvalidFilter},
	{"one without a filter", mqtt.FromClient, 0, []string{connect5}, subscribe(text("$share/g/"), "\x00"), mqtt.InvalidFilter},
	{"one that is no more than a name", mqtt.FromClient, 0, []string{connect5}, subscribe(text("$SHARE/g"), "\x00"), mqtt.InvalidFilter},
	{"one that is not even that", mqtt.FromClient, 0, []string{connect5}, subscribe(text("$share"), "\x00"), mqtt.InvalidFilter},
	{"one with a malformed filter", mqtt.FromClient, 0, []string{connect5}, subscribe(text("$share/g/#/a"), "\x00"), mqtt.InvalidFilter},
	{"another level that begins so", mqtt.FromClient, 0, []string{connect5}, subscribe(text("$shared"), "\x04"), 0},
	{"a filter with too many levels", mqtt.FromClient, 0, []string{connect5}, subscribe(text("a/b/c/d/e"), "\x00"), mqtt.InvalidFilter},
	{"a filter that is too long", mqtt.FromClient, 0, []string{connect5}, subscribe(text(strings.Repeat("a", 21)), "\x00"), mqtt.InvalidFilter},
	{"as many filters as may be", mqtt.FromClient, 0, []string{connect5}, subscribe(strings.Repeat(text("a")+"\x00", 3)), 0},
	{"a filter more", mqtt.FromClient, 0, []string{connect5}, subscribe(strings.Repeat(text("a")+"\x00", 4)), mqtt.QuotaExceeded},
	{"UNSUBSCRIBE", mqtt.FromClient, 0, []string{connect5}, packet(0xa2, "\x00\x01", properties(user("", "")), text("a"), text("$share/g/a")), 0},
	{"UNSUBSCRIBE of MQTT 3.1.1", mqtt.FromClient, 0, []string{connect311}, packet(0xa2, "\x00\x01", text("a")), 0},
	{"UNSUBSCRIBE without a filter [MQTT-3.10.3-2]", mqtt.FromClient, 0, []string{connect5}, packet(0xa2, "\x00\x01", properties()), mqtt.ProtocolError},
	{"UNSUBSCRIBE without its flags [MQTT-3.10.1-1]", mqtt.FromClient, 0, []string{connect5}, packet(0xa0, "\x00\x01", properties(), text("a")), mqtt.Malformed},
	{"UNSUBSCRIBE with a Subscription Identifier", mqtt.FromClient, 0, []string{connect5}, packet(0xa2, "\x00\x01", properties("\x0b\x01"), text("a")), mqtt.Malformed},
	{"UNSUBSCRIBE with half a filter", mqtt.FromClient, 0, []string{connect5}, packet(0xa2, "\x00\x01", properties(), "\x00\x02a"), mqtt.Malformed},
	{"UNSUBSCRIBE with too many filters", mqtt.FromClient, 0, []string{connect5}, packet(0xa2, "\x00\x01", properties(), strings.Repeat(text("a"), 4)), mqtt.QuotaExceeded},

	// DISCONNECT.
	{"DISCONNECT", mqtt.FromClient, 0, []string{connect5}, packet(0xe0), 0},
	{"DISCONNECT of MQTT 3.1.1", mqtt.FromClient, 0, []string{connect311}, packet(0xe0), 0},
	{"DISCONNECT of MQTT 3.1.1 with a code", mqtt.FromClient, 0, []string{connect311}, packet(0xe0, "\x00"), mqtt.Malformed},
	{"DISCONNECT with a code", mqtt.FromClient, 0, []string{connect5}, packet(0xe0, "\x04"), 0},
	{"DISCONNECT with properties", mqtt.FromClient, 0, []string{connect5}, packet(0xe0, "\x00", properties("\x11\x00\x00\x00\x01", "\x1f", text("r"))), 0},
	{"DISCONNECT with a code of a server [MQTT-3.14.2-1]", mqtt.FromClient, 0, []string{connect5}, packet(0xe0, "\x8b"), mqtt.ProtocolError},
	{"DISCONNECT with flags [MQTT-3.14.1-1]", mqtt.FromClient, 0, []string{connect5}, packet(0xe8), mqtt.Malformed},
	{"DISCONNECT that goes on", mqtt.FromClient, 0, []string{connect5}, packet(0xe0, "\x00", properties(), "x"), mqtt.Malformed},
	{"DISCONNECT that keeps a session that was not to be kept", mqtt.FromClient, 0, []string{packet(0x10, start(5, 2), properties(), text("c"))}, packet(0xe0, "\x00", properties("\x11\x00\x00\x00\x01")), mqtt.ProtocolError},
	{"DISCONNECT from a client to another server", mqtt.FromClient, 0, []string{connect5}, packet(0xe0, "\x00", properties("\x1c", text("s"))), mqtt.ProtocolError},
	{"DISCONNECT from a server", mqtt.FromServer, 0, []string{connack5}, packet(0xe0, "\x9d", properties("\x1c", text("s"))), 0},
	{"DISCONNECT from a server that has a Will", mqtt.FromServer, 0, []string{connack5}, packet(0xe0, "\x04"), 0},
	{"DISCONNECT from a server that ends a session [MQTT-3.14.2-2]", mqtt.FromServer, 0, []string{connack5}, packet(0xe0, "\x00", properties("\x11\x00\x00\x00\x00")), mqtt.ProtocolError},
	{"DISCONNECT from a server of MQTT 3.1.1", mqtt.FromServer, 4, []string{connack311}, packet(0xe0), mqtt.ProtocolError},
	{"a property length of five bytes in DISCONNECT", mqtt.FromServer, 0, []string{connack5}, packet(0xe0, "\x00\x80\x80\x80\x80\x0f"), mqtt.Malformed},

	// The answers of a server.
	{"CONNACK with all properties", mqtt.FromServer, 0, nil, packet(0x20, "\x01\x00", properties("\x11\x00\x00\x00\x00", "\x21\x00\x01", "\x24\x01", "\x25\x00", "\x27\x00\x00\x00\x01", "\x12", text("c"), "\x22\x00\x00", "\x1f", text("r"), user("", ""), "\x28\x00", "\x29\x00", "\x2a\x00", "\x13\x00\x00", "\x1a", text("i"), "\x1c", text("s"), "\x15", text("m"), "\x16", text("d"))), 0},
	{"CONNACK of MQTT 3.1.1", mqtt.FromServer, 4, nil, packet(0x20, "\x00\x05"), 0},
	{"CONNACK of MQTT 3.1.1 with another code", mqtt.FromServer, 4, nil, packet(0x20, "\x00\x06"), 0},
	{"CONNACK of MQTT 3.1.1 in place of MQTT 5", mqtt.FromServer, 0, nil, packet(0x20, "\x00\x01"), mqtt.UnsupportedVersion},
	{"half a CONNACK", mqtt.FromServer, 0, nil, packet(0x20, "\x00"), mqtt.Malformed},
	{"CONNACK with flags [MQTT-3.2.2-1]", mqtt.FromServer, 0, nil, packet(0x20, "\x02\x00", properties()), mqtt.Malformed},
	{"CONNACK that refuses a session [MQTT-3.2.2-6]", mqtt.FromServer, 0, nil, packet(0x20, "\x01\x87", properties()), mqtt.ProtocolError},
	{"CONNACK with a code of DISCONNECT [MQTT-3.2.2-8]", mqtt.FromServer, 0, nil, packet(0x20, "\x00\x8b", properties()), 0},
	{"CONNACK with a Maximum QoS of 2", mqtt.FromServer, 0, nil, packet(0x20, "\x00\x00", properties("\x24\x02")), mqtt.ProtocolError},
	{"CONNACK with a Receive Maximum of 0", mqtt.FromServer, 0, nil, packet(0x20, "\x00\x00", properties("\x21\x00\x00")), mqtt.ProtocolError},
	{"CONNACK that goes on", mqtt.FromServer, 0, nil, packet(0x20, "\x00\x00", properties(), "x"), mqtt.Malformed},
	{"a property length of five bytes in CONNACK", mqtt.FromServer, 0, nil, packet(0x20, "\x00\x00\x80\x80\x80\x80\x0f"), mqtt.Malformed},
	{"SUBACK", mqtt.FromServer, 0, []string{connack5}, packet(0x90, "\x00\x01", properties("\x1f", text("r")), "\x00\x01\x02\x80"), 0},
	{"SUBACK of MQTT 3.1.1", mqtt.FromServer, 4, []string{connack311}, packet(0x90, "\x00\x01", "\x80"), 0},
	{"SUBACK without a code [MQTT-3.9.3-1]", mqtt.FromServer, 0, []string{connack5}, packet(0x90, "\x00\x01", properties()), mqtt.Malformed},
	{"SUBACK with a code of UNSUBACK [MQTT-3.9.3-2]", mqtt.FromServer, 0, []string{connack5}, packet(0x90, "\x00\x01", properties(), "\x11"), 0},
	{"SUBACK with packet identifier 0", mqtt.FromServer, 0, []string{connack5}, packet(0x90, "\x00\x00", properties(), "\x00"), mqtt.ProtocolError},
	{"UNSUBACK", mqtt.FromServer, 0, []string{connack5}, packet(0xb0, "\x00\x01", properties(), "\x11"), 0},
	{"UNSUBACK of MQTT 3.1.1", mqtt.FromServer, 4, []string{connack311}, packet(0xb0, "\x00\x01"), 0},
	{"UNSUBACK of MQTT 3.1.1 with a code", mqtt.FromServer, 4, []string{connack311}, packet(0xb0, "\x00\x01\x00"), mqtt.Malformed},
	{"UNSUBACK with a code of SUBACK [MQTT-3.11.3-2]", mqtt.FromServer, 0, []string{connack5}, packet(0xb0, "\x00\x01", properties(), "\x01"), 0},
	{"PINGRESP", mqtt.FromServer, 0, []string{connack5}, packet(0xd0), 0},
	{"AUTH", mqtt.FromServer, 0, []string{connack5}, packet(0xf0), 0},
	{"AUTH with a code of a client [MQTT-3.15.2-1]", mqtt.FromServer, 0, []string{connack5}, packet(0xf0, "\x19", properties()), 0},
	{"AUTH with flags [MQTT-3.15.1-1]", mqtt.FromServer, 0, []string{connack5}, packet(0xf1), mqtt.Malformed},
}

// open returns a gate after these packets.
func open(t testing.TB, side mqtt.Side, version byte, limits mqtt.Limits, before ...string) *mqtt.Gate {
	t.Helper()
	g := mqtt.NewGate(side, limits)
	if version != 0 {
		g.SetVersion(version)
	}
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
			g := open(t, test.side, test.version, limits, test.before...)
			err := g.Check([]byte(test.packet))
			var refusal *mqtt.Refusal
			switch isRefusal := errors.As(err, &refusal); {
			case test.code == 0 && err != nil:
				t.Errorf("it is refused: %v", err)
			case test.code != 0 && (!isRefusal || refusal.Code != test.code):
				t.Errorf("%v; want the reason code %#x", err, test.code)
			case test.code != 0 && g.Check([]byte(packet(0xc0))) != err:
				t.Error("another packet is let through afterwards")
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
		for cut := range test.packet {
			if err := open(t, test.side, test.version, limits, test.before...).Check([]byte(test.packet[:cut])); err == nil {
				t.Errorf("%s: %d of %d bytes are let through", test.name, cut, len(test.packet))
			}
		}
	}
}

func TestWithoutLimitsThereAreNone(t *testing.T) {
	long := strings.Repeat("a/", 30_000)
	for _, packet := range []string{
		publish(long, properties(strings.Repeat(user("name", "value"), 5000)), ""),
		subscribe(strings.Repeat(text("a")+"\x00", 10_000), text(long), "\x00"),
	} {
		if err := open(t, mqtt.FromClient, 0, mqtt.Limits{}, connect5).Check([]byte(packet)); err != nil {
			t.Error(err)
		}
		if err := open(t, mqtt.FromClient, 0, mqtt.DefaultLimits(), connect5).Check([]byte(packet)); err == nil {
			t.Error("it is let through by the default limits")
		}
	}
}

func TestAFarewellSaysWhyInThePeersVersion(t *testing.T) {
	small := packet(0x10, start(5, 2), properties("\x27\x00\x00\x00\x14"), text("c"))
	for _, test := range []struct {
		name   string
		side   mqtt.Side
		before []string
		packet string
		want   string
	}{
		{"before CONNACK", mqtt.FromClient, nil, packet(0x10, start(5, 3), properties(), text("c")),
			packet(0x20, "\x00\x81", properties("\x1f", text("CONNECT: its reserved flag is set")))},
		{"a version that is not known", mqtt.FromClient, nil, packet(0x10, start(6, 2)),
			packet(0x20, "\x00\x84", properties("\x1f", text("CONNECT: only MQTT 3.1, 3.1.1 and 5 are supported")))},
		{"an old version", mqtt.FromClient, nil, packet(0x10, start(2, 2)), "\x20\x02\x00\x01"},
		{"a client id of MQTT 3.1.1", mqtt.FromClient, nil, packet(0x10, start(4, 0), text("")), "\x20\x02\x00\x02"},
		{"a malformed CONNECT of MQTT 3.1.1", mqtt.FromClient, nil, packet(0x10, start(4, 1), text("")), ""},
		{"no MQTT at all", mqtt.FromClient, nil, packet(0x10, text("HTTP"), "\x01"), ""},
		{"after CONNECT", mqtt.FromClient, []string{connect5}, packet(0xc1),
			packet(0xe0, "\x81", properties("\x1f", text("PINGREQ: its flags are reserved")))},
		{"to a client that takes small packets only", mqtt.FromClient, []string{small}, packet(0xc1), "\xe0\x02\x81\x00"},
		{"MQTT 3.1.1", mqtt.FromClient, []string{connect311}, packet(0xc1), ""},
		{"to a server", mqtt.FromServer, nil, packet(0xd0),
			packet(0xe0, "\x82", properties("\x1f", text("PINGRESP: the first packet must be CONNACK")))},
	} {
		t.Run(test.name, func(t *testing.T) {
			g := open(t, test.side, 0, limits, test.before...)
			farewell, refused := g.AppendRefusal([]byte("before"), g.Check([]byte(test.packet)))
			if !refused || string(farewell) != "before"+test.want {
				t.Errorf("%q, %t\nwant %q", farewell, refused, "before"+test.want)
			}
		})
	}
	g := open(t, mqtt.FromClient, 0, limits, connect5)
	for want, err := range map[byte]error{0x95: &mqtt.TooLargeError{Size: 9, Limit: 8}, 0x81: mqtt.ErrHeader} {
		if farewell, refused := g.AppendRefusal(nil, err); !refused || len(farewell) < 3 || farewell[2] != want {
			t.Errorf("%v: %x, %t", err, farewell, refused)
		}
	}
	if farewell, refused := g.AppendRefusal(nil, errors.New("the connection was cut")); refused || len(farewell) > 0 {
		t.Errorf("to no refusal: %x, %t", farewell, refused)
	}
}

func TestAReferralFitsThePeer(t *testing.T) {
	const reference, reason = "b:1883", "because"
	sized := func(size string) string {
		return packet(0x10, start(5, 2), properties("\x27\x00\x00\x00"+size), text("c"))
	}
	whole := packet(0x20, "\x00\x9c", properties("\x1f", text(reason), "\x1c", text(reference)))
	short := packet(0x20, "\x00\x9c", properties("\x1c", text(reference)))
	for _, test := range []struct{ name, connect, want string }{
		{"MQTT 5", connect5, whole},
		{"MQTT 3.1.1", connect311, "\x20\x02\x00\x03"},
		{"room for all of it", sized(string(rune(len(whole)))), whole},
		{"room for the reference", sized(string(rune(len(whole) - 1))), short},
		{"room for nothing", sized(string(rune(len(short) - 1))), "\x20\x03\x00\x9c\x00"},
	} {
		t.Run(test.name, func(t *testing.T) {
			g := open(t, mqtt.FromClient, 0, limits, test.connect)
			if got := g.AppendReferral([]byte("before"), reference, reason); string(got) != "before"+test.want {
				t.Errorf("%q\nwant %q", got, "before"+test.want)
			}
		})
	}
	if got, want := open(t, mqtt.FromClient, 0, limits, connect5).AppendReferral(nil, "", ""), "\x20\x03\x00\x9c\x00"; string(got) != want {
		t.Errorf("without texts %q, want %q", got, want)
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
	g := open(t, mqtt.FromClient, 0, mqtt.DefaultLimits(), connect5)
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

func BenchmarkCheckOfARequest(b *testing.B) {
	g := open(b, mqtt.FromClient, 0, mqtt.DefaultLimits(), connect5)
	packet := request()
	b.SetBytes(int64(len(packet)))
	b.ReportAllocs()
	for b.Loop() {
		if err := g.Check(packet); err != nil {
			b.Fatal(err)
		}
	}
}

func TestWhatWasLetThroughIsTakenApartAlready(t *testing.T) {
	g := mqtt.NewGate(mqtt.FromServer, mqtt.Limits{})
	connack := []byte{0x20, 3, 0, 0, 0}
	publish := []byte{0x30, 7, 0, 3, 'a', '/', 'b', 0, 'x'}
	for _, packet := range [][]byte{connack, publish} {
		if err := g.Check(packet); err != nil {
			t.Fatal(err)
		}
	}
	if p := g.Publish(); string(p.Topic) != "a/b" || string(p.Payload) != "x" || p.QoS != 0 {
		t.Errorf("%+v", p)
	}
}
