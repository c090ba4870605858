package wire

import (
	"encoding/binary"

	"github.com/eclipse/paho.golang/packets"

	"github.com/tenurelock/tenure/internal/mqtt"
)

// Forward is a PUBLISH packet that a server forwards to a subscriber. It contains the
// publisher's properties, which it does not decode.
type Forward struct {
	// Topic is the topic. If it is empty, TopicBytes is the topic: that may be memory that is used
	// again for the next packet.
	Topic         string
	TopicBytes    []byte
	QoS           byte
	PacketID      uint16 // must not be 0 where QoS is not
	Duplicate     bool   // must not be set where QoS is 0
	MessageExpiry uint32 // seconds; 0: none
	// Properties are the other properties in their encoded form, without their length. They
	// must not contain a Message Expiry Interval.
	Properties []byte
	Payload    []byte
}

// Size returns how many bytes Append would add.
func (f *Forward) Size() int {
	_, remaining := f.lengths()
	return 1 + mqtt.VariableLength(remaining) + remaining
}

// lengths returns the length of the properties, and the length of the packet after its fixed
// header.
func (f *Forward) lengths() (properties, remaining int) {
	properties = len(f.Properties)
	if f.MessageExpiry > 0 {
		properties += 1 + 4
	}
	remaining = 2 + max(len(f.Topic), len(f.TopicBytes)) + mqtt.VariableLength(properties) + properties + len(f.Payload)
	if f.QoS > 0 {
		remaining += 2
	}
	return properties, remaining
}

// Append appends the packet to dst. It must not be larger than its client takes, see [Gate.TooLarge].
func (f *Forward) Append(dst []byte) []byte {
	properties, remaining := f.lengths()
	first := packets.PUBLISH<<4 | f.QoS<<mqtt.QoSShift
	if f.Duplicate {
		first |= mqtt.FlagDuplicate
	}
	dst = mqtt.AppendVariable(append(dst, first), remaining)
	if f.Topic != "" {
		dst = mqtt.AppendString(dst, f.Topic)
	} else {
		dst = mqtt.AppendString(dst, f.TopicBytes)
	}
	if f.QoS > 0 {
		dst = binary.BigEndian.AppendUint16(dst, f.PacketID)
	}
	dst = mqtt.AppendVariable(dst, properties)
	if f.MessageExpiry > 0 {
		dst = binary.BigEndian.AppendUint32(append(dst, packets.PropMessageExpiry), f.MessageExpiry)
	}
	return append(append(dst, f.Properties...), f.Payload...)
}

// forwarded are the properties that a broker passes on as they are [MQTT-3.3.2-4,
// MQTT-3.3.2-15, MQTT-3.3.2-16, MQTT-3.3.2-17, MQTT-3.3.2-20].
var forwarded = mqtt.SetOf(packets.PropPayloadFormat, packets.PropContentType, packets.PropResponseTopic,
	packets.PropCorrelationData, packets.PropUser)

// AppendForwarded appends the properties that a broker passes on, as they are and in their
// order, for [Forward.Properties].
func AppendForwarded(dst []byte, p *mqtt.Publish) []byte {
	for rest := mqtt.Reader(p.Raw()); len(rest) > 0; {
		before := rest
		if property, _ := rest.Property(); forwarded.Has(property.Identifier) {
			dst = append(dst, before[:len(before)-len(rest)]...)
		}
	}
	return dst
}
