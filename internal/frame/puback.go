package frame

import (
	"encoding/binary"

	"github.com/tenurelock/tenure/internal/wire"
)

// Puback is a decoded PUBACK packet. Like [Publish], it shares the memory of the packet.
type Puback struct {
	PacketID uint16
	// ReasonCode is 0 for success [MQTT-3.4.2.1].
	ReasonCode byte
	// ReasonString is the peer's text, or empty.
	ReasonString []byte
}

// ParsePuback decodes a complete PUBACK packet of any version of MQTT: before MQTT 5 it has
// the short form of MQTT 5. It reports false for one that Decode refuses.
func ParsePuback(packet []byte) (Puback, bool) {
	var ack Puback
	ok := len(packet) > 0 && Type(packet) == wire.Puback && ack.Decode(packet, wire.Version5, &noLimits) == nil
	return ack, ok
}

// ackProperties are the properties that an acknowledgement can have [MQTT-3.4.2.2].
var ackProperties = wire.SetOf(wire.ReasonString, wire.UserProperty)

// Decode decodes a complete acknowledgement of any version of MQTT: a PUBACK, or a PUBREC,
// PUBREL or PUBCOMP, which have the same form. It returns what is wrong with the packet, or
// nil. It accepts any reason code.
func (ack *Puback) Decode(packet []byte, version byte, limits *wire.Limits) *wire.Refusal {
	*ack = Puback{}
	if len(packet) == 0 || Type(packet) < wire.Puback || Type(packet) > wire.Pubcomp {
		return wire.Refuse(wire.ProtocolError, "it is not an acknowledgement")
	}
	in, refusal := body(packet, Type(packet))
	if refusal != nil {
		return refusal
	}
	flags := byte(0)
	if Type(packet) == wire.Pubrel {
		flags = 2 // [MQTT-3.6.1-1]
	}
	if packet[0]&0x0f != flags {
		return wire.Refuse(wire.Malformed, "its flags are reserved") // [MQTT-2.1.3-1]
	}
	if ack.PacketID, refusal = packetID(&in); refusal != nil || len(in) == 0 {
		return refusal
	}
	if version < wire.Version5 {
		return wire.Refuse(wire.Malformed, "it is longer than its packet identifier")
	}
	ack.ReasonCode, _ = in.Byte()
	if len(in) == 0 {
		return nil
	}
	var properties wire.Properties
	refusal = properties.Each(&in, ackProperties, userProperties, limits, func(property wire.Property) *wire.Refusal {
		if property.Identifier == wire.ReasonString {
			ack.ReasonString = property.Value
		}
		return nil
	})
	if refusal == nil && len(in) > 0 {
		return wire.Refuse(wire.Malformed, "it is longer than its properties")
	}
	return refusal
}

// AppendPuback appends a PUBACK that says success, in its short form [MQTT-3.4.2.1].
func AppendPuback(dst []byte, packetID uint16) []byte {
	return binary.BigEndian.AppendUint16(append(dst, wire.Puback<<4, 2), packetID)
}
