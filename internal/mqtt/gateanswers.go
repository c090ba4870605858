package mqtt

import (
	"strings"

	"github.com/eclipse/paho.golang/packets"
)

var (
	connackProperties = SetOf(packets.PropSessionExpiryInterval, packets.PropReceiveMaximum, packets.PropMaximumQOS, packets.PropRetainAvailable,
		packets.PropMaximumPacketSize, packets.PropAssignedClientID, packets.PropTopicAliasMaximum, packets.PropReasonString, packets.PropUser,
		packets.PropWildcardSubAvailable, packets.PropSubIDAvailable, packets.PropSharedSubAvailable, packets.PropServerKeepAlive,
		packets.PropResponseInfo, packets.PropServerReference, packets.PropAuthMethod, packets.PropAuthData) // [MQTT-3.2.2.3]
	authProperties       = SetOf(packets.PropAuthMethod, packets.PropAuthData, packets.PropReasonString, packets.PropUser)                   // [MQTT-3.15.2.2]
	codesProperties      = SetOf(packets.PropReasonString, packets.PropUser)                                                                 // [MQTT-3.9.2.1, MQTT-3.11.2.1]
	disconnectProperties = SetOf(packets.PropSessionExpiryInterval, packets.PropReasonString, packets.PropUser, packets.PropServerReference) // [MQTT-3.14.2.2]
)

// clientsLeaving are the reason codes for a DISCONNECT from a client [MQTT-3.14.2-1].
const clientsLeaving = "\x00\x04\x80\x81\x82\x83\x90\x93\x94\x95\x96\x97\x98\x99"

// ackCodes are the reason codes of each acknowledgement from a client [MQTT-3.4.2-1,
// MQTT-3.5.2-1, MQTT-3.6.2-1, MQTT-3.7.2-1].
var ackCodes = [...]string{
	packets.PUBACK:  "\x00\x10\x80\x83\x87\x90\x91\x97\x99",
	packets.PUBREC:  "\x00\x10\x80\x83\x87\x90\x91\x97\x99",
	packets.PUBREL:  "\x00\x92",
	packets.PUBCOMP: "\x00\x92",
}

// checkCode returns what is wrong with a reason code, or nil. It accepts any code from a
// server.
func (g *Gate) checkCode(code byte, codes string) *Refusal {
	if g.side == FromServer || strings.IndexByte(codes, code) >= 0 {
		return nil
	}
	return Refuse(ProtocolError, "it cannot have the reason code 0x%02X", code)
}

func (g *Gate) checkConnack(in *Reader) *Refusal {
	flags, _ := in.Byte()
	code, ok := in.Byte()
	switch {
	case !ok:
		return errShort()
	case flags > 1:
		return Refuse(Malformed, "its flags are reserved") // [MQTT-3.2.2-1]
	case flags == 1 && code != 0:
		return Refuse(ProtocolError, "it refuses the connection, and has a session") // [MQTT-3.2.2-6]
	}
	g.begun = true
	if g.version < Version5 {
		return nil
	}
	if len(*in) == 0 && code > 0 && code <= 5 { // the return codes of MQTT 3.1.1
		return Refuse(UnsupportedVersion, "the server answers as MQTT 3.1.1 does: it does not know MQTT 5")
	}
	return g.checkProperties(in, connackProperties, nil)
}

// checkCodes checks a SUBACK or UNSUBACK.
func (g *Gate) checkCodes(kind byte, in *Reader) *Refusal {
	id, ok := in.Uint16()
	switch {
	case !ok:
		return errShort()
	case id == 0:
		return Refuse(ProtocolError, "its packet identifier is 0") // [MQTT-2.2.1-3]
	}
	if g.version >= Version5 {
		if refusal := g.checkProperties(in, codesProperties, nil); refusal != nil {
			return refusal
		}
	} else if kind == packets.UNSUBACK {
		return nil
	}
	if len(*in) == 0 {
		return Refuse(Malformed, "it has no reason code") // [MQTT-3.9.3-1, MQTT-3.11.3-1]
	}
	*in = nil // any reason codes
	return nil
}

// checkAuth checks the form of an AUTH from a server. The client checks the content, because
// it knows the authentication method.
func (g *Gate) checkAuth(in *Reader) *Refusal {
	_, _ = in.Byte() // the reason code
	if len(*in) == 0 {
		return nil
	}
	return g.checkProperties(in, authProperties, nil)
}

func (g *Gate) checkDisconnect(in *Reader) *Refusal {
	g.over = true
	if len(*in) == 0 || g.version < Version5 {
		return nil
	}
	code, _ := in.Byte()
	if refusal := g.checkCode(code, clientsLeaving); refusal != nil || len(*in) == 0 {
		return refusal
	}
	return g.checkProperties(in, disconnectProperties, func(property Property) *Refusal {
		switch {
		case property.Identifier == packets.PropSessionExpiryInterval && g.side == FromServer:
			return Refuse(ProtocolError, "a server does not send a Session Expiry Interval") // [MQTT-3.14.2-2]
		case property.Identifier == packets.PropSessionExpiryInterval && property.Number > 0 && !g.expiry:
			return Refuse(ProtocolError, "a session that ends with its connection cannot be kept") // [MQTT-3.14.2.2.2]
		case property.Identifier == packets.PropServerReference && g.side == FromClient:
			return Refuse(ProtocolError, "a client does not send a Server Reference") // [MQTT-3.14.2.2.5]
		}
		return nil
	})
}
