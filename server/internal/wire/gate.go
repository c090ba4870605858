// Package wire has the MQTT packets that only a server reads or writes: CONNECT, SUBSCRIBE and
// UNSUBSCRIBE, their answers, and messages that are passed on. It supports MQTT 5 only. Package
// mqtt has what servers and clients have in common.
//
// References in brackets, such as [MQTT-1.5.5], are statements of the MQTT 5.0 standard.
package wire

import (
	"strings"

	"github.com/eclipse/paho.golang/packets"

	"github.com/tenurelock/tenure/internal/mqtt"
)

// FirstPacket bounds the CONNECT, in bytes. The reader refuses a larger one with 0x95.
const FirstPacket = 8 << 10

// maxFilters bounds the topic filters in one SUBSCRIBE or UNSUBSCRIBE. More are refused with 0x97.
const maxFilters = 100

// limits bounds what else a packet of a client may contain, below what the standard allows. The properties of
// a Will count with the properties of its CONNECT.
var limits = mqtt.Limits{TopicLevels: 64, TopicLength: 1 << 10, UserProperties: 64, UserPropertyBytes: 16 << 10}

// types has no AUTH: it belongs to authentication methods, which this server does not have [MQTT-4.12.0-6]. Nor
// has it the packets of QoS 2.
var types = mqtt.SetOf(packets.CONNECT, packets.PUBLISH, packets.PUBACK, packets.SUBSCRIBE, packets.UNSUBSCRIBE,
	packets.PINGREQ, packets.DISCONNECT)

// Gate checks the packets of a client, in order. It is not safe for concurrent use.
type Gate struct {
	*mqtt.Gate
	// Version is the version of MQTT, as in the CONNECT; 0: it has not come.
	Version byte
	// SessionExpiry is for how many seconds the session outlives the connection, as the CONNECT says, or
	// the DISCONNECT.
	SessionExpiry uint32
	// Left is the reason code of the DISCONNECT.
	Left byte
	// Connect is the decoded CONNECT, once Check has let it through. Its reader may set it to nil.
	Connect *Connect
	// Subscribe is likewise the latest SUBSCRIBE or UNSUBSCRIBE.
	Subscribe *Subscribe
	// Maximum is how many bytes of a packet the client takes. It does not change after the CONNECT.
	Maximum uint32
}

// NewGate returns a Gate for a new connection of a client.
func NewGate() *Gate {
	g := &Gate{Maximum: 1 + 4 + mqtt.MaxRemaining}
	g.Gate = &mqtt.Gate{First: packets.CONNECT, Types: types, Own: g.read, Limits: limits}
	return g
}

func (g *Gate) read(packet []byte, in *mqtt.Reader) *mqtt.Refusal {
	switch mqtt.Type(packet) {
	case packets.CONNECT:
		return g.readConnect(in)
	case packets.SUBSCRIBE, packets.UNSUBSCRIBE:
		*in = nil
		g.Subscribe = new(Subscribe)
		return g.Subscribe.Decode(packet)
	case packets.DISCONNECT:
		return g.readDisconnect(in)
	}
	return nil
}

// [MQTT-3.14.2.2, MQTT-3.14.2.2.5]
var disconnectProperties = mqtt.SetOf(packets.PropSessionExpiryInterval, packets.PropReasonString, packets.PropUser)

func (g *Gate) readDisconnect(in *mqtt.Reader) *mqtt.Refusal {
	const leavingCodes = "\x00\x04\x80\x81\x82\x83\x90\x93\x94\x95\x96\x97\x98\x99" // [MQTT-3.14.2-1]
	g.Left, _ = in.Byte()
	if strings.IndexByte(leavingCodes, g.Left) < 0 {
		return mqtt.Refuse(mqtt.ProtocolError, "it cannot have the reason code 0x%02X", g.Left)
	}
	if len(*in) == 0 {
		return nil
	}
	return new(mqtt.Properties).Each(in, disconnectProperties, &limits, func(property mqtt.Property) *mqtt.Refusal {
		if property.Identifier == packets.PropSessionExpiryInterval {
			if property.Number > 0 && g.SessionExpiry == 0 {
				// [MQTT-3.14.2.2.2]
				return mqtt.Refuse(mqtt.ProtocolError, "a session that ends with its connection cannot be kept")
			}
			g.SessionExpiry = property.Number
		}
		return nil
	})
}

// AppendDisconnect appends the DISCONNECT with which a server ends a connection [MQTT-3.14]. After the CONNECT, any
// goroutine may call it.
func (g *Gate) AppendDisconnect(dst []byte, why *mqtt.Refusal) []byte {
	disconnect := packets.Disconnect{ReasonCode: why.Code, Properties: &packets.Properties{ReasonString: why.Short()}}
	answer := mqtt.Encode(&disconnect)
	if g.TooLarge(len(answer)) { // [MQTT-3.14.2-3]
		disconnect.Properties = nil
		answer = mqtt.Encode(&disconnect)
	}
	return append(dst, answer...)
}

// AppendAccepted appends the CONNACK that accepts the connection [MQTT-3.2]. present says that the client
// has a session from before. It reports false if the client does not take so much.
func (g *Gate) AppendAccepted(dst []byte, present bool, announced *packets.Properties) (answer []byte, ok bool) {
	answer = mqtt.Encode(&packets.Connack{SessionPresent: present, Properties: announced})
	return append(dst, answer...), !g.TooLarge(len(answer))
}

// AppendRefused appends the CONNACK that refuses the connection. For a version of MQTT before 5 it says that
// this version is not supported; if no version is known, it is empty, but for a CONNECT that was too large to be
// read: most of these are of MQTT 5.
//
// reference is the Server Reference, or empty if none is known. The client gets it and the reason in words
// as far as it takes them: first the words are left out [MQTT-3.2.2-19].
func (g *Gate) AppendRefused(dst []byte, why *mqtt.Refusal, reference string) []byte {
	switch {
	case g.Version == 0 && why.Code != mqtt.PacketTooLarge:
		return dst
	case g.Version > 0 && g.Version < mqtt.Version:
		return append(dst, packets.CONNACK<<4, 2, 0, 1) // unacceptable protocol version
	}
	var answer []byte
	for _, properties := range []packets.Properties{{ServerReference: reference, ReasonString: why.Reason},
		{ServerReference: reference}, {}} {
		answer = mqtt.Encode(&packets.Connack{ReasonCode: why.Code, Properties: &properties})
		if !g.TooLarge(len(answer)) {
			break
		}
	}
	return append(dst, answer...)
}

// TooLarge reports whether the client does not take a packet of some bytes [MQTT-3.1.2-24].
func (g *Gate) TooLarge(bytes int) bool { return uint64(bytes) > uint64(g.Maximum) }
