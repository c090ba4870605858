package mqtt

import (
	"bytes"
	"errors"
	"fmt"

	"github.com/eclipse/paho.golang/packets"
)

// Gate checks the packets from one side of one connection, in order. It is not safe for
// concurrent use.
type Gate struct {
	// First is the type of the first packet of this side, and Types are those that it sends [MQTT-2.1.2].
	First byte
	Types Set
	// Own checks the content of a packet that is no PUBLISH and no PUBACK, and moves in behind it.
	Own func(packet []byte, in *Reader) *Refusal
	// Limits bounds what a packet may contain.
	Limits Limits
	// Begun says that the first packet was let through.
	Begun bool

	publish Publish // the latest
	ack     Puback  // likewise
}

// fromBroker are the types of packets of a broker. No client of ours uses QoS 2.
var fromBroker = SetOf(packets.CONNACK, packets.PUBLISH, packets.PUBACK, packets.SUBACK, packets.UNSUBACK,
	packets.PINGRESP, packets.DISCONNECT, packets.AUTH)

// NewGate returns a Gate for a new connection to a broker.
func NewGate() *Gate { return &Gate{First: packets.CONNACK, Types: fromBroker, Own: checkFromBroker} }

// Publish returns the decoded form of the latest PUBLISH that Check let through, so that
// callers need not decode it again. Its slices are parts of that packet. It is valid until
// the next call of Check.
func (g *Gate) Publish() *Publish { return &g.publish }

// Puback is Publish for a PUBACK.
func (g *Gate) Puback() *Puback { return &g.ack }

// Check checks the next packet, which must be complete and not empty. It keeps only what Publish and Puback
// return. The error is nil or a [*Refusal]. Nothing is to be read after a Refusal or a DISCONNECT [MQTT-3.14.4-1].
func (g *Gate) Check(packet []byte) error {
	refusal := g.check(packet)
	if refusal == nil {
		return nil
	}
	refusal.Reason = nameOf(Type(packet)) + ": " + refusal.Reason
	return refusal
}

func nameOf(kind byte) string {
	if kind == 0 {
		return "a packet of type 0"
	}
	return (&packets.ControlPacket{FixedHeader: packets.FixedHeader{Type: kind}}).PacketType()
}

func (g *Gate) check(packet []byte) *Refusal {
	kind := Type(packet)
	if refusal := g.checkTurn(packet, kind); refusal != nil {
		return refusal
	}
	switch kind {
	case packets.PUBLISH:
		return g.publish.Decode(packet, &g.Limits)
	case packets.PUBACK:
		return g.ack.Decode(packet, &g.Limits)
	}
	in, refusal := Body(packet, kind, kind)
	if refusal != nil {
		return refusal
	}
	if refusal := g.Own(packet, &in); refusal != nil {
		return refusal
	}
	if len(in) > 0 {
		return Refuse(Malformed, "something comes after its end")
	}
	g.Begun = g.Begun || kind == g.First
	return nil
}

func (g *Gate) fromClient() bool { return g.First == packets.CONNECT }

// checkTurn returns why a packet of this type cannot come from this side now, or nil.
func (g *Gate) checkTurn(packet []byte, kind byte) *Refusal {
	switch {
	case !g.Begun && g.fromClient() && beginsHTTP(packet):
		return Refuse(ProtocolError, "the first packet must be CONNECT: the client speaks HTTP")
	case !g.Begun && g.fromClient() && packet[0] == tlsHandshake:
		return Refuse(Malformed, "its flags are reserved: the client speaks TLS to an address that has none")
	case !g.Types.Has(kind):
		return Refuse(ProtocolError, "it does not come from this side of a connection") // [MQTT-2.1.2]
	case !g.Begun && kind != g.First && kind != packets.AUTH: // [MQTT-4.12.0-2]
		return Refuse(ProtocolError, "the first packet must be %s", nameOf(g.First)) // [MQTT-3.1.0-1, MQTT-3.2.0-1]
	case g.Begun && kind == g.First:
		return Refuse(ProtocolError, "there was one already") // [MQTT-3.1.0-2, MQTT-3.2.0-2]
	}
	return nil
}

// tlsHandshake is the first byte of a TLS connection [RFC 8446, 5.1]. As MQTT it begins a
// CONNECT with reserved flags.
const tlsHandshake = 0x16

// beginsHTTP reports whether packet begins as requests of browsers, of Prometheus and of WebSockets do:
// someone gave them the address of the broker.
func beginsHTTP(packet []byte) bool {
	return bytes.HasPrefix(packet, []byte("GET ")) || bytes.HasPrefix(packet, []byte("HEAD ")) ||
		bytes.HasPrefix(packet, []byte("POST "))
}

var (
	connackProperties = SetOf(packets.PropSessionExpiryInterval, packets.PropReceiveMaximum, packets.PropMaximumQOS,
		packets.PropRetainAvailable, packets.PropMaximumPacketSize, packets.PropAssignedClientID,
		packets.PropTopicAliasMaximum, packets.PropReasonString, packets.PropUser, packets.PropWildcardSubAvailable,
		packets.PropSubIDAvailable, packets.PropSharedSubAvailable, packets.PropServerKeepAlive, packets.PropResponseInfo,
		packets.PropServerReference, packets.PropAuthMethod, packets.PropAuthData) // [MQTT-3.2.2.3]
	// [MQTT-3.15.2.2]
	authProperties = SetOf(packets.PropAuthMethod, packets.PropAuthData, packets.PropReasonString, packets.PropUser)
	// [MQTT-3.14.2.2, MQTT-3.14.2-2]
	disconnectProperties = SetOf(packets.PropReasonString, packets.PropUser, packets.PropServerReference)
	// [MQTT-3.4.2.2, MQTT-3.9.2.1, MQTT-3.11.2.1]
	ackProperties = SetOf(packets.PropReasonString, packets.PropUser)
)

// checkFromBroker checks a CONNACK, SUBACK, UNSUBACK, PINGRESP, DISCONNECT or AUTH. Of an AUTH it checks the form:
// the client checks the content, because it knows the authentication method. It accepts any reason code: brokers send
// some that the standard does not list, and they harm no client.
func checkFromBroker(packet []byte, in *Reader) *Refusal {
	var properties Properties
	switch Type(packet) {
	case packets.CONNACK:
		return checkConnack(in)
	case packets.SUBACK, packets.UNSUBACK:
		if _, refusal := PacketID(in); refusal != nil {
			return refusal
		}
		if refusal := properties.Each(in, ackProperties, &noLimits, nil); refusal != nil {
			return refusal
		}
		if len(*in) == 0 {
			return Refuse(Malformed, "it has no reason code") // [MQTT-3.9.3-1, MQTT-3.11.3-1]
		}
		*in = nil // any reason codes
	case packets.AUTH:
		return properties.afterCode(in, authProperties)
	case packets.DISCONNECT:
		return properties.afterCode(in, disconnectProperties)
	}
	return nil
}

// afterCode reads a reason code and properties, or less.
func (p *Properties) afterCode(in *Reader, allowed Set) *Refusal {
	if _, ok := in.Byte(); !ok || len(*in) == 0 {
		return nil
	}
	return p.Each(in, allowed, &noLimits, nil)
}

func checkConnack(in *Reader) *Refusal {
	flags, _ := in.Byte()
	code, ok := in.Byte()
	switch {
	case !ok:
		return Refuse(Malformed, "it is too short")
	case flags > 1:
		return Refuse(Malformed, "its flags are reserved") // [MQTT-3.2.2-1]
	case flags == 1 && code != 0:
		return Refuse(ProtocolError, "it refuses the connection, and has a session") // [MQTT-3.2.2-6]
	}
	return new(Properties).Each(in, connackProperties, &noLimits, nil)
}

// Reason codes of CONNACK, PUBACK, SUBACK, UNSUBACK and DISCONNECT [MQTT-2.4].
const (
	Success               = 0x00
	NoMatchingSubscribers = 0x10
	NoSubscription        = 0x11
	Failure               = 0x80 // without a better reason; all below mean success
	Malformed             = 0x81 // the packet cannot be parsed
	ProtocolError         = 0x82 // it can be parsed, and is not allowed
	ImplementationError   = 0x83 // this receiver does not accept it
	UnsupportedVersion    = 0x84
	InvalidClientID       = 0x85
	BadCredentials        = 0x86
	NotAuthorized         = 0x87
	ServerBusy            = 0x89
	ShuttingDown          = 0x8b
	BadAuthentication     = 0x8c // bad authentication method
	TakenOver             = 0x8e
	InvalidFilter         = 0x8f
	InvalidTopic          = 0x90
	InvalidAlias          = 0x94
	PacketTooLarge        = 0x95
	QuotaExceeded         = 0x97
	InvalidPayloadFormat  = 0x99
	RetainNotSupported    = 0x9a
	QoSNotSupported       = 0x9b
	UseAnotherServer      = 0x9c
	SharedNotSupported    = 0x9e
)

// Refusal is the error for a packet that breaks a rule of MQTT or a limit of the receiver.
// The receiver ends the connection.
type Refusal struct {
	// Code is the MQTT 5 reason code, for a DISCONNECT or a CONNACK.
	Code byte
	// Reason says in words what is wrong. It contains no text from the packet, only numbers.
	Reason string
}

// Error returns the reason and the code.
func (r *Refusal) Error() string {
	return fmt.Sprintf("%s (MQTT reason code 0x%02X)", r.Reason, r.Code)
}

// Short returns the reason, cut to what fits into a small packet.
func (r *Refusal) Short() string { return r.Reason[:min(len(r.Reason), maxReason)] }

// maxReason is the largest length in bytes of a reason that is sent.
const maxReason = 256

// Refuse returns a Refusal with a reason that it formats like fmt.Sprintf.
func Refuse(code byte, format string, values ...any) *Refusal {
	return &Refusal{Code: code, Reason: fmt.Sprintf(format, values...)}
}

// RefusalIn returns the refusal for an error of a [Gate] or a [Filter], or nil if the error is not about
// a packet.
func RefusalIn(err error) *Refusal {
	var refusal *Refusal
	var tooLarge *TooLargeError
	switch {
	case errors.As(err, &refusal):
		return refusal
	case errors.As(err, &tooLarge):
		return &Refusal{Code: PacketTooLarge, Reason: tooLarge.Error()}
	}
	return nil
}

// Limits bounds what a packet may contain, below what the standard allows. 0 is no limit.
type Limits struct {
	// TopicLevels and TopicLength bound each topic name and topic filter; the length is in
	// bytes. A name over a limit is refused with 0x90, a filter with 0x8F.
	TopicLevels, TopicLength int
	// UserProperties bounds the user properties of one packet by number, and
	// UserPropertyBytes their names and values together. More are refused with 0x97. The
	// properties of a Will count with the properties of its CONNECT.
	UserProperties, UserPropertyBytes int
}

// Over reports whether a value is over a limit; 0: there is none.
func Over(value, limit int) bool { return limit > 0 && value > limit }

// CheckTopic returns what is wrong with a topic name, or nil: it is empty, has wildcards
// or is over a limit.
func CheckTopic(topic []byte, limits *Limits) *Refusal {
	switch {
	case len(topic) == 0:
		return Refuse(ProtocolError, "a topic name is empty") // [MQTT-4.7.3-1]
	case bytes.IndexByte(topic, '+') >= 0 || bytes.IndexByte(topic, '#') >= 0:
		return Refuse(InvalidTopic, "a topic name has a wildcard") // [MQTT-3.3.2-2]
	case Over(len(topic), limits.TopicLength):
		return Refuse(InvalidTopic, "a topic name has %d bytes, and at most %d are accepted", len(topic), limits.TopicLength)
	case limits.TopicLevels > 0 && bytes.Count(topic, []byte{'/'}) >= limits.TopicLevels:
		return Refuse(InvalidTopic, "a topic name has more than %d levels", limits.TopicLevels)
	}
	return nil
}
