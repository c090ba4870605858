// Package gate checks the MQTT packets of a connection, each of them completely, before
// any other part of the program sees them.
//
// The libraries behind it, mochi on a server and paho in a client, were written for peers
// that mean well: there are short packets at which they read beyond a buffer, allocate
// gigabytes or end the process. Nothing of that can happen with what a [Gate] has let
// through: packets that are, byte for byte, what the standard says, in an order that it
// allows, and within [Limits]. A Gate stands in the stream where [frame.Filter] reads.
//
// A Gate does not decide what a client may do, nor whether the server supports it: QoS 2,
// retained messages and rights are for the parts behind.
//
// The reason codes that a server sends are not judged: there are brokers, such as mochi
// v2.7.9 with 0x01 in a PUBACK, that say what the standard does not list, and no client
// takes harm from it.
//
// # What ends a connection
//
// Whatever is refused ends the connection, also where the standard would allow to answer
// with a reason code in a PUBACK or SUBACK and to go on: a peer whose packets are wrong, or
// beyond all reason, has a fault that will not go away. The reason codes are those of the
// standard where it names one. Otherwise:
//
//	0x81 malformed packet     lengths, strings, flags, properties that the packet cannot have
//	0x82 protocol error       values and packets that are well-formed, and not allowed
//	0x84 unsupported version  another protocol than MQTT 3.1, 3.1.1 or 5
//	0x85 client identifier    none, where MQTT 3.1.1 needs one
//	0x8C authentication       a CONNECT that asks for an authentication method: there is none
//	0x8F filter invalid       wildcards in the wrong place, $share without a name; over a limit
//	0x90 topic name invalid   a topic name with wildcards; over a limit
//	0x94 topic alias          any: no end of ours allows one
//	0x95 packet too large     a first packet over its limit
//	0x97 quota exceeded       too many filters or user properties in a packet
//	0x99 payload format       a payload or Will that is said to be UTF-8, and is not
//
// References in brackets, such as [MQTT-1.5.5], are statements of the MQTT 5.0 standard.
package gate

import (
	"errors"

	"github.com/tenurelock/tenure/internal/frame"
	"github.com/tenurelock/tenure/internal/wire"
)

type (
	// Limits bounds what a packet may hold that the standard allows. See [DefaultLimits].
	Limits = wire.Limits
	// Refusal is the error for a packet that a Gate does not let through.
	Refusal = wire.Refusal
)

// DefaultLimits returns the limits of a server for its clients.
func DefaultLimits() Limits {
	return Limits{
		TopicLevels:       64,
		TopicLength:       1 << 10,
		Filters:           100,
		UserProperties:    64,
		UserPropertyBytes: 16 << 10,
		FirstPacket:       8 << 10,
	}
}

// Side is the end of a connection from which packets come.
type Side int

const (
	// FromClient: the Gate is on a server. It learns the version of MQTT from CONNECT.
	FromClient Side = iota
	// FromServer: the Gate is on a client, which connects with MQTT 5.
	FromServer
)

// Gate checks the packets that come from one side of one connection, in order. It serves
// one goroutine.
type Gate struct {
	side    Side
	limits  Limits
	version byte // of MQTT; 0: not known yet
	begun   bool // the first packet was let through
	over    bool // DISCONNECT was

	// Of the CONNECT.
	expiry  bool   // the session outlives the connection
	maximum uint32 // bytes of a packet that the client takes; 0: any number

	publish frame.Publish // the latest
	refused *Refusal
}

// New returns a Gate for a new connection.
func New(side Side, limits Limits) *Gate {
	g := &Gate{side: side, limits: limits}
	if side == FromServer {
		g.version = wire.Version5
	}
	return g
}

// Version returns the version of MQTT, as CONNECT names it: 5 for MQTT 5, 4 for MQTT
// 3.1.1, 3 for MQTT 3.1. Before CONNECT it is 0, and afterwards it may be any where the
// CONNECT was refused.
func (g *Gate) Version() byte { return g.version }

// Publish returns the PUBLISH that Check let through last, taken apart, so that this need not
// be done twice. It is part of that packet, and good until the next call of Check.
func (g *Gate) Publish() *frame.Publish { return &g.publish }

// Check checks the next packet, which must be complete. Of that it keeps what Publish
// returns, and nothing else. Its error is nil or a [*Refusal]; after that every packet is
// refused, with the same error.
//
// The first packet from a client may be incomplete if it is over Limits.FirstPacket, which
// is the error then.
func (g *Gate) Check(packet []byte) error {
	if g.refused == nil {
		if g.refused = g.check(packet); g.refused == nil {
			return nil
		}
		if len(packet) > 0 {
			g.refused.Reason = names[packet[0]>>4] + ": " + g.refused.Reason
		}
	}
	return g.refused
}

var names = [16]string{"a packet of type 0", "CONNECT", "CONNACK", "PUBLISH", "PUBACK", "PUBREC", "PUBREL", "PUBCOMP",
	"SUBSCRIBE", "SUBACK", "UNSUBSCRIBE", "UNSUBACK", "PINGREQ", "PINGRESP", "DISCONNECT", "AUTH"}

func (g *Gate) check(packet []byte) *Refusal {
	size, header, ok := wire.Size(packet)
	if !ok {
		return wire.Refuse(wire.Malformed, "the length of the packet is malformed") // [MQTT-1.5.5-1]
	}
	kind := packet[0] >> 4
	if refusal := g.checkTurn(kind); refusal != nil {
		return refusal
	}
	if kind == wire.Connect {
		return g.checkConnect(packet, size, header)
	}
	if size != len(packet) {
		return errLength()
	}
	switch kind {
	case wire.Publish:
		return g.checkPublish(packet)
	case wire.Puback, wire.Pubrec, wire.Pubrel, wire.Pubcomp:
		var ack frame.Puback
		if refusal := ack.Decode(packet, g.version, &g.limits); refusal != nil {
			return refusal
		}
		return g.checkCode(ack.ReasonCode, ackCodes[kind])
	case wire.Subscribe:
		var subscribe frame.Subscribe
		return subscribe.Decode(packet, g.version, &g.limits)
	case wire.Unsubscribe:
		var unsubscribe frame.Unsubscribe
		return unsubscribe.Decode(packet, g.version, &g.limits)
	}
	if packet[0]&0x0f != 0 {
		return errFlags() // [MQTT-2.1.3-1]
	}
	in := wire.Reader(packet[header:])
	switch kind {
	case wire.Connack:
		return g.checkConnack(in)
	case wire.Suback, wire.Unsuback:
		return g.checkCodes(kind, in)
	case wire.Disconnect:
		return g.checkDisconnect(in)
	case wire.Auth:
		return g.checkAuth(in)
	}
	if len(in) > 0 { // PINGREQ or PINGRESP
		return wire.Refuse(wire.Malformed, "it is longer than its header")
	}
	return nil
}

func errLength() *Refusal {
	return wire.Refuse(wire.Malformed, "it is not as long as its header says")
}

func errFlags() *Refusal { return wire.Refuse(wire.Malformed, "its flags are reserved") }

// checkTurn returns why a packet of this type cannot come from this side now, or nil.
func (g *Gate) checkTurn(kind byte) *Refusal {
	first, sent := byte(wire.Connect), fromClient
	if g.side == FromServer {
		first, sent = wire.Connack, fromServer
	}
	switch {
	case sent&(1<<kind) == 0:
		return wire.Refuse(wire.ProtocolError, "it does not come from this side of a connection") // [MQTT-2.1.2]
	case !g.begun && kind != first && !(kind == wire.Auth && g.side == FromServer): // [MQTT-4.12.0-2]
		return wire.Refuse(wire.ProtocolError, "the first packet is to be %s", names[first]) // [MQTT-3.1.0-1, MQTT-3.2.0-1]
	case g.begun && kind == first:
		return wire.Refuse(wire.ProtocolError, "there was one") // [MQTT-3.1.0-2, MQTT-3.2.0-2]
	case g.over:
		return wire.Refuse(wire.ProtocolError, "it comes after DISCONNECT") // [MQTT-3.14.4-1]
	case g.side == FromServer && g.version < wire.Version5 && (kind == wire.Disconnect || kind == wire.Auth):
		return wire.Refuse(wire.ProtocolError, "a server has none before MQTT 5")
	}
	return nil
}

// Packet types, as bits. AUTH belongs to authentication methods: a server here has none
// [MQTT-4.12.0-6], but a client may connect with one.
const (
	both       = 1<<wire.Publish | 1<<wire.Puback | 1<<wire.Pubrec | 1<<wire.Pubrel | 1<<wire.Pubcomp | 1<<wire.Disconnect
	fromClient = both | 1<<wire.Connect | 1<<wire.Subscribe | 1<<wire.Unsubscribe | 1<<wire.Pingreq
	fromServer = both | 1<<wire.Connack | 1<<wire.Suback | 1<<wire.Unsuback | 1<<wire.Pingresp | 1<<wire.Auth
)

func (g *Gate) checkPublish(packet []byte) *Refusal {
	refusal := g.publish.Decode(packet, g.version, &g.limits)
	if refusal == nil && g.publish.Identified && g.side == FromClient {
		return wire.Refuse(wire.ProtocolError, "a client does not send a Subscription Identifier") // [MQTT-3.3.4-6]
	}
	return refusal
}

var onlyUser = wire.SetOf(wire.UserProperty)

// readProperties reads and checks the properties at the beginning of in, and calls each for
// every one.
func (g *Gate) readProperties(properties *wire.Properties, in *wire.Reader, allowed wire.PropertySet, each func(*wire.Property) *Refusal) *Refusal {
	if refusal := properties.Begin(in, allowed, onlyUser, &g.limits); refusal != nil {
		return refusal
	}
	for {
		var property wire.Property
		if more, refusal := properties.Next(&property); !more {
			return refusal
		}
		if refusal := each(&property); refusal != nil {
			return refusal
		}
	}
}

// accept is for properties of which nothing is to be noted.
func accept(*wire.Property) *Refusal { return nil }

// AppendFarewell appends the packet that tells the peer why its connection ends: a
// DISCONNECT, or a CONNACK where none was sent yet. err is what Check returned, or what a
// [frame.Filter] did. It appends nothing if the peer's version of MQTT has no such packet.
// It reports false, and appends nothing, if err is not about a packet.
func (g *Gate) AppendFarewell(dst []byte, err error) (packet []byte, refused bool) {
	refusal := refusalIn(err)
	if refusal == nil {
		return dst, false
	}
	write := func(reason string) []byte {
		switch {
		case g.side == FromClient && !g.begun && g.version > 0:
			return frame.AppendConnack(dst, g.version, refusal.Code, reason)
		case (g.side == FromServer || g.begun) && g.version >= wire.Version5:
			return frame.AppendDisconnect(dst, refusal.Code, reason)
		}
		return dst
	}
	packet = write(refusal.Reason)
	if g.maximum > 0 && len(packet)-len(dst) > int(min(g.maximum, 1<<30)) { // [MQTT-3.14.2-3, MQTT-3.2.2-19]
		packet = write("")
	}
	return packet, true
}

// refusalIn returns the refusal that ends a connection with this error, or nil.
func refusalIn(err error) *Refusal {
	var refusal *Refusal
	var tooLarge *frame.TooLargeError
	switch {
	case errors.As(err, &refusal):
		return refusal
	case errors.As(err, &tooLarge):
		return &Refusal{Code: wire.PacketTooLarge, Reason: tooLarge.Error()}
	case errors.Is(err, frame.ErrHeader):
		return &Refusal{Code: wire.Malformed, Reason: err.Error()}
	}
	return nil
}
