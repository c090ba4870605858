package wire

import (
	"encoding/binary"

	"github.com/eclipse/paho.golang/packets"

	"github.com/tenurelock/tenure/internal/mqtt"
)

// Forward is a PUBLISH packet that a server forwards to a subscriber. It contains the
// publisher's properties, which it does not decode.
type Forward struct {
	// MQTT5 chooses the version of the packet: MQTT 5, or 3.1.1, which has no properties.
	MQTT5 bool
	// Topic is the topic. If it is empty, TopicBytes is the topic: that may be memory that is used
	// again for the next packet.
	Topic      string
	TopicBytes []byte
	QoS        byte
	PacketID   uint16 // must not be 0 where QoS is not
	Duplicate  bool   // must not be set where QoS is 0
	// Expires says that the packet has MessageExpiry, in seconds, even if that is 0.
	Expires       bool
	MessageExpiry uint32
	// Identifiers belong to the subscriptions that the message matched, each from 1 to
	// 268,435,455.
	Identifiers []int
	// Properties are the other properties in their encoded form, without their length. They
	// must not contain a Message Expiry Interval or Subscription Identifiers.
	Properties []byte
	Payload    []byte
}

// Size returns how many bytes Append would add, even if the packet is too long.
func (f *Forward) Size() int {
	_, remaining := f.lengths()
	return 1 + mqtt.VariableLength(remaining) + remaining
}

// lengths returns the length of the properties, and the length of the packet after its fixed
// header.
func (f *Forward) lengths() (properties, remaining int) {
	remaining = 2 + len(f.Topic) + len(f.Payload)
	if f.Topic == "" {
		remaining += len(f.TopicBytes)
	}
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
		properties += 1 + mqtt.VariableLength(identifier)
	}
	return properties, remaining + mqtt.VariableLength(properties) + properties
}

// Append appends the packet to dst. The error is mqtt.ErrTooLong; dst is then returned unchanged.
func (f *Forward) Append(dst []byte) ([]byte, error) {
	properties, remaining := f.lengths()
	if remaining > mqtt.MaxRemaining || max(len(f.Topic), len(f.TopicBytes)) > mqtt.MaxString {
		return dst, mqtt.ErrTooLong
	}
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
	if f.MQTT5 {
		dst = mqtt.AppendVariable(dst, properties)
		if f.Expires {
			dst = binary.BigEndian.AppendUint32(append(dst, packets.PropMessageExpiry), f.MessageExpiry)
		}
		for _, identifier := range f.Identifiers {
			dst = mqtt.AppendVariable(append(dst, packets.PropSubscriptionIdentifier), identifier)
		}
		dst = append(dst, f.Properties...)
	}
	return append(dst, f.Payload...), nil
}

// forwarded are the properties that a broker passes on as they are [MQTT-3.3.2-4,
// MQTT-3.3.2-15, MQTT-3.3.2-16, MQTT-3.3.2-17, MQTT-3.3.2-20].
var forwarded = mqtt.SetOf(packets.PropPayloadFormat, packets.PropContentType, packets.PropResponseTopic, packets.PropCorrelationData, packets.PropUser)

// AppendForwarded appends the properties that a broker passes on, as they are and in their
// order, for [Forward.Properties]. The Message Expiry Interval, topic aliases and
// subscription identifiers are not among them: the broker writes its own.
func AppendForwarded(dst []byte, p *mqtt.Publish) []byte {
	for rest := mqtt.Reader(p.Raw()); len(rest) > 0; {
		before := rest
		if property, _ := rest.Property(); forwarded.Has(property.Identifier) {
			dst = append(dst, before[:len(before)-len(rest)]...)
		}
	}
	return dst
}
