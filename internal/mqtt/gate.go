package mqtt

import (
	"bytes"
	"errors"

	"github.com/eclipse/paho.golang/packets"
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

// Side is the end of a connection that sends the packets.
type Side int

const (
	// FromClient: the Gate is on a server. It learns the version of MQTT from CONNECT.
	FromClient Side = iota
	// FromServer: the Gate is on a client, which connects with MQTT 5.
	FromServer
)

// Gate checks the packets from one side of one connection, in order. It is not safe for
// concurrent use.
type Gate struct {
	side    Side
	limits  Limits
	version byte // of MQTT; 0: not known yet
	begun   bool // the first packet was let through
	over    bool // a DISCONNECT was let through

	// From the CONNECT.
	expiry  bool   // the session outlives the connection
	maximum uint32 // bytes of a packet that the client takes; 0: any number

	publish Publish // the latest
	refused *Refusal
}

// New returns a Gate for a new connection.
func NewGate(side Side, limits Limits) *Gate {
	g := &Gate{side: side, limits: limits}
	if side == FromServer {
		g.version = Version5
	}
	return g
}

// Version returns the version of MQTT, as in CONNECT: 5 for MQTT 5, 4 for MQTT 3.1.1, 3 for
// MQTT 3.1. Before CONNECT it is 0. After a refused CONNECT it may be any number.
func (g *Gate) Version() byte { return g.version }

// Publish returns the decoded form of the latest PUBLISH that Check let through, so that
// callers need not decode it again. Its slices are parts of that packet. It is valid until
// the next call of Check.
func (g *Gate) Publish() *Publish { return &g.publish }

// Check checks the next packet, which must be complete. It keeps only what Publish returns.
// The error is nil or a [*Refusal]; after a Refusal, every packet is refused with the same
// error.
//
// The first packet from a client may be incomplete if it is larger than Limits.FirstPacket,
// for which it is refused.
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
	size, header, ok := Size(packet)
	if !ok {
		return Refuse(Malformed, "the length of the packet is malformed") // [MQTT-1.5.5-1]
	}
	kind := packet[0] >> 4
	if refusal := g.checkTurn(kind); refusal != nil {
		if !g.begun && g.side == FromClient && beginsHTTP(packet) {
			refusal.Reason += ": the client speaks HTTP"
		}
		return refusal
	}
	if kind == packets.CONNECT {
		return g.checkConnect(packet, size, header)
	}
	if size != len(packet) {
		return errLength()
	}
	switch kind {
	case packets.PUBLISH:
		return g.checkPublish(packet)
	case packets.PUBACK, packets.PUBREC, packets.PUBREL, packets.PUBCOMP:
		var ack Puback
		if refusal := ack.Decode(packet, g.version, &g.limits); refusal != nil {
			return refusal
		}
		return g.checkCode(ack.ReasonCode, ackCodes[kind])
	case packets.SUBSCRIBE:
		var subscribe Subscribe
		return subscribe.Decode(packet, g.version, &g.limits)
	case packets.UNSUBSCRIBE:
		var unsubscribe Unsubscribe
		return unsubscribe.Decode(packet, g.version, &g.limits)
	}
	if packet[0]&0x0f != 0 {
		return errFlags() // [MQTT-2.1.3-1]
	}
	in := Reader(packet[header:])
	var refusal *Refusal
	switch kind {
	case packets.CONNACK:
		refusal = g.checkConnack(&in)
	case packets.SUBACK, packets.UNSUBACK:
		refusal = g.checkCodes(kind, &in)
	case packets.DISCONNECT:
		refusal = g.checkDisconnect(&in)
	case packets.AUTH:
		refusal = g.checkAuth(&in)
	}
	if refusal == nil && len(in) > 0 {
		return Refuse(Malformed, "something comes after its end")
	}
	return refusal
}

// beginsHTTP reports whether packet begins as requests of browsers, of Prometheus and of WebSockets do:
// someone gave them the address of the broker.
func beginsHTTP(packet []byte) bool {
	return bytes.HasPrefix(packet, []byte("GET ")) || bytes.HasPrefix(packet, []byte("HEAD ")) || bytes.HasPrefix(packet, []byte("POST "))
}

func errLength() *Refusal {
	return Refuse(Malformed, "it is not as long as its header says")
}

func errFlags() *Refusal { return Refuse(Malformed, "its flags are reserved") }

// checkTurn returns why a packet of this type cannot come from this side now, or nil.
func (g *Gate) checkTurn(kind byte) *Refusal {
	first, sent := byte(packets.CONNECT), fromClient
	if g.side == FromServer {
		first, sent = packets.CONNACK, fromServer
	}
	switch {
	case sent&(1<<kind) == 0:
		return Refuse(ProtocolError, "it does not come from this side of a connection") // [MQTT-2.1.2]
	case !g.begun && kind != first && !(kind == packets.AUTH && g.side == FromServer): // [MQTT-4.12.0-2]
		return Refuse(ProtocolError, "the first packet must be %s", names[first]) // [MQTT-3.1.0-1, MQTT-3.2.0-1]
	case g.begun && kind == first:
		return Refuse(ProtocolError, "there was one already") // [MQTT-3.1.0-2, MQTT-3.2.0-2]
	case g.over:
		return Refuse(ProtocolError, "it comes after DISCONNECT") // [MQTT-3.14.4-1]
	case g.side == FromServer && g.version < Version5 && (kind == packets.DISCONNECT || kind == packets.AUTH):
		return Refuse(ProtocolError, "a server has none before MQTT 5")
	}
	return nil
}

// Packet types, as bits. AUTH belongs to authentication methods: a server here has none
// [MQTT-4.12.0-6], but a client may connect with one.
const (
	both       = 1<<packets.PUBLISH | 1<<packets.PUBACK | 1<<packets.PUBREC | 1<<packets.PUBREL | 1<<packets.PUBCOMP | 1<<packets.DISCONNECT
	fromClient = both | 1<<packets.CONNECT | 1<<packets.SUBSCRIBE | 1<<packets.UNSUBSCRIBE | 1<<packets.PINGREQ
	fromServer = both | 1<<packets.CONNACK | 1<<packets.SUBACK | 1<<packets.UNSUBACK | 1<<packets.PINGRESP | 1<<packets.AUTH
)

func (g *Gate) checkPublish(packet []byte) *Refusal {
	refusal := g.publish.Decode(packet, g.version, &g.limits)
	if refusal == nil && g.publish.Identified && g.side == FromClient {
		return Refuse(ProtocolError, "a client does not send a Subscription Identifier") // [MQTT-3.3.4-6]
	}
	return refusal
}

var onlyUser = SetOf(packets.PropUser)

// checkProperties checks the properties of a packet, which must be all that is left of it. do
// may be nil.
func (g *Gate) checkProperties(in *Reader, allowed PropertySet, do func(Property) *Refusal) *Refusal {
	var properties Properties
	return properties.Each(in, allowed, onlyUser, &g.limits, do)
}

// AppendRefusal appends the packet that tells the peer why its connection ends: a
// DISCONNECT, or a CONNACK if none was sent yet. err is the error of Check or of a
// [Filter]. It appends nothing if the peer's version of MQTT has no such packet. It
// reports false, and appends nothing, if err is not about a packet.
func (g *Gate) AppendRefusal(dst []byte, err error) (packet []byte, refused bool) {
	refusal := refusalIn(err)
	if refusal == nil {
		return dst, false
	}
	write := func(reason string) []byte {
		switch {
		case g.side == FromClient && !g.begun && g.version > 0:
			return AppendConnack(dst, g.version, refusal.Code, reason)
		case (g.side == FromServer || g.begun) && g.version >= Version5:
			return AppendDisconnect(dst, refusal.Code, reason)
		}
		return dst
	}
	packet = write(refusal.Reason)
	if !g.fits(len(packet) - len(dst)) { // [MQTT-3.14.2-3, MQTT-3.2.2-19]
		packet = write("")
	}
	return packet, true
}

// AppendReferral appends the CONNACK that sends the client to another server, after Check let its
// CONNECT through. reference is the Server Reference, or empty if none is known. What does not fit
// into the packets that the client takes is left out: first the reason in words.
func (g *Gate) AppendReferral(dst []byte, reference, reason string) []byte {
	for _, texts := range [][2]string{{reference, reason}, {reference, ""}} {
		packet := AppendReferral(dst, g.version, texts[0], texts[1])
		if g.fits(len(packet) - len(dst)) { // [MQTT-3.2.2-19]
			return packet
		}
	}
	return AppendReferral(dst, g.version, "", "")
}

// fits reports whether the peer takes a packet of some bytes.
func (g *Gate) fits(size int) bool { return g.maximum == 0 || size <= int(min(g.maximum, 1<<30)) }

// refusalIn returns the refusal for an error, or nil if the error is not about a packet.
func refusalIn(err error) *Refusal {
	var refusal *Refusal
	var tooLarge *TooLargeError
	switch {
	case errors.As(err, &refusal):
		return refusal
	case errors.As(err, &tooLarge):
		return &Refusal{Code: PacketTooLarge, Reason: tooLarge.Error()}
	case errors.Is(err, ErrHeader):
		return &Refusal{Code: Malformed, Reason: err.Error()}
	}
	return nil
}
