package mqtt

import "github.com/eclipse/paho.golang/packets"

// Subscribe is a decoded SUBSCRIBE packet. Its strings are copies.
type Subscribe struct {
	PacketID uint16
	// Identifier is the subscription identifier for all of its filters; 0: none.
	Identifier int
	// Filters are in the order of the packet. There is at least one.
	Filters []Subscription
}

// Subscription is one topic filter of a SUBSCRIBE, with its options. Versions of MQTT before 5
// have the QoS only.
type Subscription struct {
	Topic             string // the topic filter
	QoS               byte   // the highest QoS of delivered messages: 0, 1 or 2
	NoLocal           bool   // no messages from the same client
	RetainAsPublished bool
	// RetainHandling says when retained messages are delivered: 0 always, 1 if the
	// subscription is a new one, 2 never.
	RetainHandling byte
}

// Options of a subscription, as SUBSCRIBE holds them [MQTT-3.8.3.1].
const (
	noLocal             = 0x04
	retainAsPublished   = 0x08
	retainHandlingShift = 4
	retainHandlingMask  = 0x03
	reservedOptions     = 0xc0
	reserved311         = 0xfc
)

var (
	subscribeProperties = SetOf(packets.PropSubscriptionIdentifier, packets.PropUser)
	userProperties      = SetOf(packets.PropUser)
)

// Decode decodes a complete SUBSCRIBE packet of any version of MQTT. It returns what is wrong
// with the packet, or nil. It allocates for no more filters than limits allow.
func (s *Subscribe) Decode(packet []byte, version byte, limits *Limits) *Refusal {
	*s = Subscribe{}
	in, refusal := s.decodeHeader(packet, packets.SUBSCRIBE, version, subscribeProperties, limits)
	if refusal != nil {
		return refusal
	}
	for len(in) > 0 {
		filter, refusal := topicFilter(&in, len(s.Filters), limits)
		if refusal != nil {
			return refusal
		}
		options, ok := in.Byte()
		if !ok {
			return Refuse(Malformed, "a topic filter has no options") // [MQTT-3.8.3-1]
		}
		if refusal := checkOptions(filter, options, version); refusal != nil {
			return refusal
		}
		s.Filters = append(s.Filters, Subscription{
			Topic:             string(filter),
			QoS:               options & qosMask,
			NoLocal:           options&noLocal != 0,
			RetainAsPublished: options&retainAsPublished != 0,
			RetainHandling:    options >> retainHandlingShift & retainHandlingMask,
		})
	}
	return nil
}

// checkOptions returns what is wrong with the options of a topic filter, or nil.
func checkOptions(filter []byte, options, version byte) *Refusal {
	reserved := byte(reservedOptions)
	if version < Version5 {
		reserved = reserved311
	}
	switch {
	case options&reserved != 0:
		return Refuse(Malformed, "the options of a topic filter have reserved bits") // [MQTT-3.8.3-5]
	case options&qosMask > 2:
		return Refuse(ProtocolError, "the QoS of a topic filter is 3")
	case options>>retainHandlingShift&retainHandlingMask > 2:
		return Refuse(ProtocolError, "the Retain Handling of a topic filter is 3")
	}
	if _, _, shared := Share(filter); shared && options&noLocal != 0 {
		return Refuse(ProtocolError, "a shared subscription has No Local") // [MQTT-3.8.3-4]
	}
	return nil
}

// Unsubscribe is a decoded UNSUBSCRIBE packet. Its strings are copies.
type Unsubscribe struct {
	PacketID uint16
	// Filters are in the order of the packet. There is at least one.
	Filters []string
}

// Decode decodes a complete UNSUBSCRIBE packet of any version of MQTT. It returns what is
// wrong with the packet, or nil. It allocates for no more filters than limits allow.
func (u *Unsubscribe) Decode(packet []byte, version byte, limits *Limits) *Refusal {
	*u = Unsubscribe{}
	var s Subscribe
	in, refusal := s.decodeHeader(packet, packets.UNSUBSCRIBE, version, userProperties, limits)
	if refusal != nil {
		return refusal
	}
	u.PacketID = s.PacketID
	for len(in) > 0 {
		filter, refusal := topicFilter(&in, len(u.Filters), limits)
		if refusal != nil {
			return refusal
		}
		u.Filters = append(u.Filters, string(filter))
	}
	return nil
}

// decodeHeader decodes a SUBSCRIBE or UNSUBSCRIBE up to its topic filters, and returns these.
func (s *Subscribe) decodeHeader(packet []byte, kind, version byte, allowed PropertySet, limits *Limits) (in Reader, refusal *Refusal) {
	if in, refusal = body(packet, kind); refusal != nil {
		return nil, refusal
	}
	if packet[0]&0x0f != 2 {
		return nil, Refuse(Malformed, "its flags are reserved") // [MQTT-3.8.1-1, MQTT-3.10.1-1]
	}
	if s.PacketID, refusal = packetID(&in); refusal != nil {
		return nil, refusal
	}
	if version >= Version5 {
		var properties Properties
		refusal = properties.Each(&in, allowed, userProperties, limits, func(property Property) *Refusal {
			if property.Identifier == packets.PropSubscriptionIdentifier {
				s.Identifier = int(property.Number)
			}
			return nil
		})
	}
	if refusal == nil && len(in) == 0 {
		return nil, Refuse(ProtocolError, "it has no topic filter") // [MQTT-3.8.3-2, MQTT-3.10.3-2]
	}
	return in, refusal
}

// topicFilter reads a topic filter of a packet. others is how many came before it.
func topicFilter(in *Reader, others int, limits *Limits) ([]byte, *Refusal) {
	if limits.Filters > 0 && others >= limits.Filters {
		return nil, Refuse(QuotaExceeded, "it has more than %d topic filters", limits.Filters)
	}
	filter, ok := in.Text()
	if !ok {
		return nil, Refuse(Malformed, "a topic filter is malformed") // [MQTT-3.8.3-1, MQTT-3.10.3-1]
	}
	return filter, CheckFilter(filter, limits)
}
