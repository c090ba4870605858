package frame

import (
	"encoding/binary"

	"github.com/tenurelock/tenure/internal/wire"
)

// Forward is a PUBLISH packet that a server passes on: what the publisher wrote, and what
// the subscriber asked for. It keeps the properties as they came, without reading them.
type Forward struct {
	// MQTT5 chooses the form of the packet: MQTT 5, or 3.1.1, which has no properties.
	MQTT5     bool
	Topic     string
	QoS       byte
	PacketID  uint16 // must not be 0 where QoS is not
	Duplicate bool   // must not be set where QoS is 0
	Retain    bool
	// Expires says that MessageExpiry, in seconds, is sent, 0 included.
	Expires       bool
	MessageExpiry uint32
	// Identifiers are those of the subscriptions that the message matched, each from 1 to
	// 268,435,455.
	Identifiers []int
	// Properties are further properties as they lie on the wire, without their length. A
	// Message Expiry Interval and Subscription Identifiers must not be among them.
	Properties []byte
	Payload    []byte
}

// Size returns how many bytes Append would add. It is right also for a packet that is
// too long.
func (f *Forward) Size() int {
	_, remaining := f.lengths()
	return 1 + variableLength(remaining) + remaining
}

// lengths returns how many bytes the properties have, and how many follow the fixed
// header.
func (f *Forward) lengths() (properties, remaining int) {
	remaining = 2 + len(f.Topic) + len(f.Payload)
	if f.QoS > 0 {
		remaining += 2
	}
	if !f.MQTT5 {
		return 0, remaining
	}
	properties = len(f.Properties)
	if f.Expires {
		properties += 1 + 4
	}
	for _, identifier := range f.Identifiers {
		properties += 1 + variableLength(identifier)
	}
	return properties, remaining + variableLength(properties) + properties
}

// Append appends the packet to dst. On error, which is ErrTooLong, dst is returned as it
// was.
func (f *Forward) Append(dst []byte) ([]byte, error) {
	properties, remaining := f.lengths()
	if remaining > maxRemaining || len(f.Topic) > maxString {
		return dst, ErrTooLong
	}
	first := byte(wire.Publish<<4) | f.QoS<<qosShift
	if f.Retain {
		first |= flagRetain
	}
	if f.Duplicate {
		first |= flagDuplicate
	}
	dst = wire.AppendVariable(append(dst, first), remaining)
	dst = appendString(dst, f.Topic)
	if f.QoS > 0 {
		dst = binary.BigEndian.AppendUint16(dst, f.PacketID)
	}
	if f.MQTT5 {
		dst = wire.AppendVariable(dst, properties)
		if f.Expires {
			dst = binary.BigEndian.AppendUint32(append(dst, wire.MessageExpiry), f.MessageExpiry)
		}
		for _, identifier := range f.Identifiers {
			dst = wire.AppendVariable(append(dst, wire.SubscriptionIdentifier), identifier)
		}
		dst = append(dst, f.Properties...)
	}
	return append(dst, f.Payload...), nil
}
