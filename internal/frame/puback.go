package frame

import "encoding/binary"

const propertyReasonString = 0x1f

// Puback is a PUBACK packet as it lies in a buffer, like [Publish].
type Puback struct {
	PacketID uint16
	// ReasonCode is 0 for success [MQTT-3.4.2.1].
	ReasonCode byte
	// ReasonString is the peer's own text, if it sent one.
	ReasonString []byte
}

// ParsePuback takes a complete PUBACK packet apart. It reports false for one that is
// malformed.
func ParsePuback(packet []byte) (Puback, bool) {
	size, header, ok := Size(packet)
	if !ok || size != len(packet) || packet[0] != TypePuback<<4 {
		return Puback{}, false
	}
	var ack Puback
	in := input(packet[header:])
	if ack.PacketID, ok = in.uint16(); !ok || ack.PacketID == 0 {
		return Puback{}, false
	}
	if len(in) == 0 {
		return ack, true
	}
	ack.ReasonCode, _ = in.byte()
	if len(in) == 0 {
		return ack, true
	}
	length, ok := in.variable()
	if !ok || length != len(in) {
		return Puback{}, false
	}
	return ack, ack.readProperties(in)
}

func (ack *Puback) readProperties(in input) bool {
	for len(in) > 0 {
		identifier, _ := in.byte()
		var ok bool
		switch {
		case identifier == propertyReasonString && ack.ReasonString == nil:
			ack.ReasonString, ok = in.text()
		case identifier == propertyUser:
			if _, ok = in.text(); ok {
				_, ok = in.text()
			}
		}
		if !ok {
			return false
		}
	}
	return true
}

// AppendPuback appends a PUBACK that says success, in its short form [MQTT-3.4.2.1].
func AppendPuback(dst []byte, packetID uint16) []byte {
	return binary.BigEndian.AppendUint16(append(dst, TypePuback<<4, 2), packetID)
}
