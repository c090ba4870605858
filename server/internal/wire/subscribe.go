package wire

import (
	"bytes"
	"encoding/binary"

	"github.com/eclipse/paho.golang/packets"

	"github.com/tenurelock/tenure/internal/mqtt"
)

// Subscribe is a decoded SUBSCRIBE or UNSUBSCRIBE packet. Its strings are copies.
type Subscribe struct {
	PacketID uint16
	// Filters are in the order of the packet. There is at least one.
	Filters []Subscription
}

// Subscription is one topic filter, and of a SUBSCRIBE its options.
type Subscription struct {
	Topic   string // the topic filter
	QoS     byte   // the highest QoS of delivered messages: 0, 1 or 2
	NoLocal bool   // no messages from the same client
}

// Options of a subscription, as SUBSCRIBE holds them [MQTT-3.8.3.1].
const (
	qosMask             = 0x03
	noLocal             = 0x04
	retainHandlingShift = 4
	retainHandlingMask  = 0x03
	reservedOptions     = 0xc0
)

var subscribeProperties = mqtt.SetOf(packets.PropSubscriptionIdentifier, packets.PropUser)

// Decode decodes a complete SUBSCRIBE or UNSUBSCRIBE packet. It returns what is wrong with the packet, or
// nil. It allocates for no more filters than there may be.
func (s *Subscribe) Decode(packet []byte) (refusal *mqtt.Refusal) {
	*s = Subscribe{}
	in, refusal := mqtt.Body(packet, packets.SUBSCRIBE, packets.UNSUBSCRIBE)
	if refusal != nil {
		return refusal
	}
	if s.PacketID, refusal = mqtt.PacketID(&in); refusal != nil {
		return refusal
	}
	if refusal := new(mqtt.Properties).Each(&in, subscribeProperties, &limits, refuseIdentifier); refusal != nil {
		return refusal
	}
	if len(in) == 0 {
		return mqtt.Refuse(mqtt.ProtocolError, "it has no topic filter") // [MQTT-3.8.3-2, MQTT-3.10.3-2]
	}
	for len(in) > 0 {
		if len(s.Filters) == maxFilters {
			return mqtt.Refuse(mqtt.QuotaExceeded, "it has more than %d topic filters", maxFilters)
		}
		filter, ok := in.Text()
		if !ok {
			return mqtt.Refuse(mqtt.Malformed, "a topic filter is malformed") // [MQTT-3.8.3-1, MQTT-3.10.3-1]
		}
		if refusal := checkFilter(filter); refusal != nil {
			return refusal
		}
		subscription := Subscription{Topic: string(filter)}
		if mqtt.Type(packet) == packets.SUBSCRIBE {
			if refusal := subscription.readOptions(&in); refusal != nil {
				return refusal
			}
		}
		s.Filters = append(s.Filters, subscription)
	}
	return nil
}

const identifiersNotSupported = 0xa1 // reason code [MQTT-3.14.2.1]

func refuseIdentifier(property mqtt.Property) *mqtt.Refusal {
	if property.Identifier == packets.PropSubscriptionIdentifier {
		return mqtt.Refuse(identifiersNotSupported, "this server has no Subscription Identifiers") // as CONNACK has announced
	}
	return nil
}

// readOptions reads the options that follow a topic filter in a SUBSCRIBE.
func (s *Subscription) readOptions(in *mqtt.Reader) *mqtt.Refusal {
	options, ok := in.Byte()
	s.QoS, s.NoLocal = options&qosMask, options&noLocal != 0
	switch {
	case !ok:
		return mqtt.Refuse(mqtt.Malformed, "a topic filter has no options") // [MQTT-3.8.3-1]
	case options&reservedOptions != 0:
		return mqtt.Refuse(mqtt.Malformed, "the options of a topic filter have reserved bits") // [MQTT-3.8.3-5]
	case s.QoS > 2 || options>>retainHandlingShift&retainHandlingMask > 2:
		return mqtt.Refuse(mqtt.ProtocolError, "the QoS or the Retain Handling of a topic filter is 3")
	}
	return nil
}

// checkFilter returns what is wrong with a topic filter, or nil.
func checkFilter(filter []byte) *mqtt.Refusal {
	switch hash := bytes.IndexByte(filter, '#'); {
	case len(filter) == 0:
		return mqtt.Refuse(mqtt.InvalidFilter, "a topic filter is empty") // [MQTT-4.7.3-1]
	case len(filter) > limits.TopicLength:
		return mqtt.Refuse(mqtt.InvalidFilter, "a topic filter has %d bytes, and at most %d are accepted",
			len(filter), limits.TopicLength)
	case bytes.Count(filter, []byte("/")) >= limits.TopicLevels:
		return mqtt.Refuse(mqtt.InvalidFilter, "a topic filter has more than %d levels", limits.TopicLevels)
	case hash >= 0 && hash < len(filter)-1:
		return mqtt.Refuse(mqtt.InvalidFilter, "# is not the end of a topic filter") // [MQTT-4.7.1-1]
	}
	for level := range bytes.SplitSeq(filter, []byte("/")) {
		if len(level) > 1 && bytes.ContainsAny(level, "+#") {
			// [MQTT-4.7.1-1, MQTT-4.7.1-2]
			return mqtt.Refuse(mqtt.InvalidFilter, "a wildcard in a topic filter is not a whole level")
		}
	}
	return nil
}

// AppendGranted appends the SUBACK or UNSUBACK, by its type, with a reason code for each topic filter.
func AppendGranted(dst []byte, kind byte, packetID uint16, codes []byte) []byte {
	dst = mqtt.AppendVariable(append(dst, kind<<4), 3+len(codes))
	dst = append(binary.BigEndian.AppendUint16(dst, packetID), 0) // no properties
	return append(dst, codes...)
}

// AppendPubackReason appends a PUBACK with a reason code, and with a reason in words unless that is empty.
func AppendPubackReason(dst []byte, packetID uint16, code byte, reason string) []byte {
	refusal := mqtt.Refusal{Code: code, Reason: reason}
	return append(dst, mqtt.Encode(&packets.Puback{PacketID: packetID, ReasonCode: code,
		Properties: &packets.Properties{ReasonString: refusal.Short()}})...)
}
