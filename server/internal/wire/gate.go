// Package wire has the MQTT packets that only a server reads or writes: CONNECT, SUBSCRIBE and
// UNSUBSCRIBE, their answers, and messages that are passed on. It supports MQTT 5, 3.1.1 and 3.1. Package
// mqtt has what servers and clients have in common.
//
// References in brackets, such as [MQTT-1.5.5], are statements of the MQTT 5.0 standard.
package wire

import (
	"github.com/eclipse/paho.golang/packets"

	"github.com/tenurelock/tenure/internal/mqtt"
)

// Limits bounds what a packet of a client may contain, below what the standard allows. 0 is no limit. See
// [DefaultLimits].
type Limits struct {
	mqtt.Limits // the properties of a Will count with the properties of its CONNECT
	// Filters bounds the topic filters in one SUBSCRIBE or UNSUBSCRIBE. More are refused
	// with 0x97.
	Filters int
	// FirstPacket bounds the CONNECT, in bytes. A larger one is refused with 0x95.
	FirstPacket int
}

// DefaultLimits returns the limits of a server for its clients.
func DefaultLimits() Limits {
	return Limits{
		Limits: mqtt.Limits{
			TopicLevels:       64,
			TopicLength:       1 << 10,
			UserProperties:    64,
			UserPropertyBytes: 16 << 10,
		},
		Filters:     100,
		FirstPacket: 8 << 10,
	}
}

// Reason codes of acknowledgements from a client [MQTT-3.4.2-1, MQTT-3.5.2-1, MQTT-3.6.2-1, MQTT-3.7.2-1],
// and of its DISCONNECT [MQTT-3.14.2-1].
const (
	receivedCodes = "\x00\x10\x80\x83\x87\x90\x91\x97\x99"
	releaseCodes  = "\x00\x92"
	leavingCodes  = "\x00\x04\x80\x81\x82\x83\x90\x93\x94\x95\x96\x97\x98\x99"
)

// codes has no AUTH: it belongs to authentication methods, which this server does not have [MQTT-4.12.0-6].
var codes = [16]string{
	packets.CONNECT: mqtt.AnyCode, packets.PUBLISH: mqtt.AnyCode, packets.PUBACK: receivedCodes, packets.PUBREC: receivedCodes,
	packets.PUBREL: releaseCodes, packets.PUBCOMP: releaseCodes, packets.SUBSCRIBE: mqtt.AnyCode, packets.UNSUBSCRIBE: mqtt.AnyCode,
	packets.PINGREQ: mqtt.AnyCode, packets.DISCONNECT: leavingCodes,
}

// Gate checks the packets of a client, in order. It is not safe for concurrent use.
type Gate struct {
	*mqtt.Gate
	// Connect is the decoded CONNECT, once Check has let it through. Its reader may set it to nil.
	Connect *Connect
	// Subscribe is likewise the latest SUBSCRIBE or UNSUBSCRIBE.
	Subscribe *Subscribe
	// Maximum is how many bytes of a packet the client takes; 0: any number. It does not change after the CONNECT.
	Maximum uint32

	limits Limits
}

// NewGate returns a Gate for a new connection of a client. It learns the version of MQTT from CONNECT;
// after a refused CONNECT its Version may be any number.
func NewGate(limits Limits) *Gate {
	g := &Gate{limits: limits}
	g.Gate = mqtt.NewGateFor(mqtt.Side{
		First: packets.CONNECT,
		Codes: &codes,
		Check: g.check,
	}, limits.Limits)
	return g
}

func (g *Gate) check(packet []byte, in *mqtt.Reader) *mqtt.Refusal {
	switch mqtt.Type(packet) {
	case packets.CONNECT:
		return g.checkConnect(packet, in)
	case packets.SUBSCRIBE, packets.UNSUBSCRIBE:
		*in = nil
		g.Subscribe = new(Subscribe)
		return g.Subscribe.Decode(packet, g.Version, &g.limits)
	}
	return nil
}

// AppendRefusal appends the packet that tells the client why its connection ends: a
// DISCONNECT, or a CONNACK if none was sent yet. err is the error of Check or of an
// [mqtt.Filter]. It appends nothing if the client's version of MQTT has no such packet. It
// reports false, and appends nothing, if err is not about a packet.
func (g *Gate) AppendRefusal(dst []byte, err error) (packet []byte, refused bool) {
	refusal := mqtt.RefusalIn(err)
	switch {
	case refusal == nil:
		return dst, false
	case !g.Begun && g.Version > 0:
		return g.AppendRefused(dst, &mqtt.Refusal{Code: refusal.Code, Reason: refusal.Short()}, ""), true
	case !g.Begun:
		return dst, true
	}
	return g.AppendDisconnect(dst, refusal), true
}

// AppendDisconnect appends the DISCONNECT with which a server ends a connection [MQTT-3.14]. It appends
// nothing for earlier versions of MQTT, in which a server sends none. After the CONNECT, any goroutine may
// call it.
func (g *Gate) AppendDisconnect(dst []byte, why *mqtt.Refusal) []byte {
	if g.Version < mqtt.Version5 {
		return dst
	}
	disconnect := packets.Disconnect{ReasonCode: why.Code, Properties: &packets.Properties{ReasonString: why.Short()}}
	answer := mqtt.Encode(&disconnect)
	if g.TooLarge(len(answer)) { // [MQTT-3.14.2-3]
		disconnect.Properties = nil
		answer = mqtt.Encode(&disconnect)
	}
	return append(dst, answer...)
}

// AppendAccepted appends the CONNACK that accepts the connection [MQTT-3.2]. present says that the client
// has a session from before. announced is for MQTT 5. It reports false if the client does not take so much.
func (g *Gate) AppendAccepted(dst []byte, present bool, announced *packets.Properties) (answer []byte, ok bool) {
	if g.Version >= mqtt.Version5 {
		answer = mqtt.Encode(&packets.Connack{SessionPresent: present, Properties: announced})
		return append(dst, answer...), !g.TooLarge(len(answer))
	}
	if present {
		return append(dst, packets.CONNACK<<4, 2, 1, 0), true
	}
	return append(dst, packets.CONNACK<<4, 2, 0, 0), true
}

// AppendRefused appends the CONNACK that refuses the connection, after Check let its CONNECT through. It is
// empty for a reason code that an earlier version of MQTT does not have: the server then only closes the
// connection [MQTT 3.1.1, 4.8].
//
// reference is the Server Reference, or empty if none is known. Only MQTT 5 gets it and the reason in words,
// as far as the client takes them: first the words are left out [MQTT-3.2.2-19].
func (g *Gate) AppendRefused(dst []byte, why *mqtt.Refusal, reference string) []byte {
	if g.Version < mqtt.Version5 {
		if old := oldCode(why.Code); old > 0 {
			dst = append(dst, packets.CONNACK<<4, 2, 0, old)
		}
		return dst
	}
	var answer []byte
	for _, properties := range []packets.Properties{{ServerReference: reference, ReasonString: why.Reason}, {ServerReference: reference}, {}} {
		answer = mqtt.Encode(&packets.Connack{ReasonCode: why.Code, Properties: &properties})
		if !g.TooLarge(len(answer)) {
			break
		}
	}
	return append(dst, answer...)
}

// oldCode returns the nearest return code of a CONNACK before MQTT 5; 0: there is none.
func oldCode(code byte) byte {
	switch code {
	case mqtt.UnsupportedVersion:
		return 1
	case mqtt.InvalidClientID:
		return 2
	case mqtt.ServerBusy, mqtt.QuotaExceeded, mqtt.UseAnotherServer:
		return 3
	case mqtt.BadCredentials, mqtt.NotAuthorized, mqtt.ImplementationError, mqtt.RetainNotSupported, mqtt.QoSNotSupported:
		return 5
	}
	return 0
}

// TooLarge reports whether the client does not take a packet of some bytes [MQTT-3.1.2-24].
func (g *Gate) TooLarge(bytes int) bool { return g.Maximum > 0 && uint64(bytes) > uint64(g.Maximum) }
