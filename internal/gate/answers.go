package gate

import (
	"strings"

	"github.com/tenurelock/tenure/internal/wire"
)

var (
	connackProperties = wire.SetOf(wire.SessionExpiry, wire.ReceiveMaximum, wire.MaximumQoS, wire.RetainAvailable,
		wire.MaximumPacketSize, wire.AssignedClientID, wire.TopicAliasMaximum, wire.ReasonString, wire.UserProperty,
		wire.WildcardsAvailable, wire.SubscriptionIDsAvailable, wire.SharedSubscriptionAvailable, wire.ServerKeepAlive,
		wire.ResponseInformation, wire.ServerReference, wire.AuthenticationMethod, wire.AuthenticationData) // [MQTT-3.2.2.3]
	authProperties       = wire.SetOf(wire.AuthenticationMethod, wire.AuthenticationData, wire.ReasonString, wire.UserProperty) // [MQTT-3.15.2.2]
	codesProperties      = wire.SetOf(wire.ReasonString, wire.UserProperty)                                                     // [MQTT-3.9.2.1, MQTT-3.11.2.1]
	disconnectProperties = wire.SetOf(wire.SessionExpiry, wire.ReasonString, wire.UserProperty, wire.ServerReference)           // [MQTT-3.14.2.2]
)

// Reason codes, each a byte [MQTT-2.4].
const (
	connackCodes    = "\x00\x80\x81\x82\x83\x84\x85\x86\x87\x88\x89\x8a\x8c\x90\x95\x97\x99\x9a\x9b\x9c\x9d\x9f" // [MQTT-3.2.2-8]
	connackCodes311 = "\x00\x01\x02\x03\x04\x05"
	subackCodes     = "\x00\x01\x02\x80\x83\x87\x8f\x91\x97\x9e\xa1\xa2" // [MQTT-3.9.3-2]
	subackCodes311  = "\x00\x01\x02\x80"
	unsubackCodes   = "\x00\x11\x80\x83\x87\x8f\x91" // [MQTT-3.11.3-2]

	authCodes = "\x00\x18" // from a server [MQTT-3.15.2-1]

	// Of DISCONNECT [MQTT-3.14.2-1]. The standard has no 0x00 for a server, but there are
	// servers that say it at the end; it harms nothing.
	leaveCodes     = "\x00\x80\x81\x82\x83\x90\x93\x94\x95\x96\x97\x98\x99"
	clientsLeaving = leaveCodes + "\x04"
	serversLeaving = leaveCodes + "\x87\x89\x8b\x8d\x8e\x8f\x9a\x9b\x9c\x9d\x9e\x9f\xa0\xa1\xa2"
)

func errCode(code byte) *Refusal {
	return wire.Refuse(wire.ProtocolError, "it cannot have the reason code 0x%02X", code)
}

func (g *Gate) checkConnack(in wire.Reader) *Refusal {
	flags, _ := in.Byte()
	code, ok := in.Byte()
	switch {
	case !ok:
		return errShort()
	case flags > 1:
		return wire.Refuse(wire.Malformed, "its flags are reserved") // [MQTT-3.2.2-1]
	case flags == 1 && code != 0:
		return wire.Refuse(wire.ProtocolError, "it refuses the connection, and has a session") // [MQTT-3.2.2-6]
	}
	if g.version < wire.Version5 {
		if strings.IndexByte(connackCodes311, code) < 0 {
			return errCode(code)
		}
	} else {
		if len(in) == 0 && code != 0 && strings.IndexByte(connackCodes311, code) >= 0 {
			return wire.Refuse(wire.UnsupportedVersion, "the server answers as MQTT 3.1.1 does: it does not know MQTT 5")
		}
		if strings.IndexByte(connackCodes, code) < 0 {
			return errCode(code)
		}
		var properties wire.Properties
		if refusal := g.readProperties(&properties, &in, connackProperties, accept); refusal != nil {
			return refusal
		}
	}
	if len(in) > 0 {
		return errLong()
	}
	g.begun = true
	return nil
}

func errLong() *Refusal { return wire.Refuse(wire.Malformed, "something comes after its end") }

// checkCodes checks a SUBACK or UNSUBACK.
func (g *Gate) checkCodes(kind byte, in wire.Reader) *Refusal {
	id, ok := in.Uint16()
	switch {
	case !ok:
		return errShort()
	case id == 0:
		return wire.Refuse(wire.ProtocolError, "its packet identifier is 0") // [MQTT-2.2.1-3]
	}
	codes := unsubackCodes
	switch {
	case g.version >= wire.Version5:
		var properties wire.Properties
		if refusal := g.readProperties(&properties, &in, codesProperties, accept); refusal != nil {
			return refusal
		}
		if kind == wire.Suback {
			codes = subackCodes
		}
	case kind == wire.Suback:
		codes = subackCodes311
	case len(in) > 0:
		return errLong()
	default:
		return nil
	}
	if len(in) == 0 {
		return wire.Refuse(wire.Malformed, "it has no reason code") // [MQTT-3.9.3-1, MQTT-3.11.3-1]
	}
	for _, code := range in {
		if strings.IndexByte(codes, code) < 0 {
			return errCode(code)
		}
	}
	return nil
}

// checkAuth checks an AUTH from a server. What it says is for the client to judge, which
// knows the method that it asked for.
func (g *Gate) checkAuth(in wire.Reader) *Refusal {
	if len(in) == 0 {
		return nil
	}
	if code, _ := in.Byte(); strings.IndexByte(authCodes, code) < 0 {
		return errCode(code)
	}
	if len(in) > 0 {
		var properties wire.Properties
		if refusal := g.readProperties(&properties, &in, authProperties, accept); refusal != nil {
			return refusal
		}
	}
	if len(in) > 0 {
		return errLong()
	}
	return nil
}

func (g *Gate) checkDisconnect(in wire.Reader) *Refusal {
	if len(in) == 0 {
		g.over = true
		return nil
	}
	if g.version < wire.Version5 {
		return errLong()
	}
	codes := clientsLeaving
	if g.side == FromServer {
		codes = serversLeaving
	}
	code, _ := in.Byte()
	if strings.IndexByte(codes, code) < 0 {
		return errCode(code)
	}
	if len(in) > 0 {
		if refusal := g.checkDisconnectProperties(&in); refusal != nil {
			return refusal
		}
	}
	if len(in) > 0 {
		return errLong()
	}
	g.over = true
	return nil
}

func (g *Gate) checkDisconnectProperties(in *wire.Reader) *Refusal {
	var properties wire.Properties
	return g.readProperties(&properties, in, disconnectProperties, func(property *wire.Property) *Refusal {
		switch {
		case property.Identifier == wire.SessionExpiry && g.side == FromServer:
			return wire.Refuse(wire.ProtocolError, "a server does not send a Session Expiry Interval") // [MQTT-3.14.2-2]
		case property.Identifier == wire.SessionExpiry && property.Number > 0 && !g.expiry:
			return wire.Refuse(wire.ProtocolError, "a session that ends with its connection cannot be kept") // [MQTT-3.14.2.2.2]
		case property.Identifier == wire.ServerReference && g.side == FromClient:
			return wire.Refuse(wire.ProtocolError, "a client does not send a Server Reference") // [MQTT-3.14.2.2.5]
		}
		return nil
	})
}
