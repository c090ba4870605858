package mqtt

import (
	"bytes"
	"encoding/binary"
	"errors"
	"unicode/utf8"

	"github.com/eclipse/paho.golang/packets"
)

// Flags of a PUBLISH [MQTT-3.3.1].
const (
	FlagRetain    = 0x01
	FlagDuplicate = 0x08
	QoSShift      = 1

	qosMask = 0x03
)

const (
	// MaxString is the largest length of a string or binary data [MQTT-1.5.4, MQTT-1.5.6].
	MaxString = 1<<16 - 1
	// MaxRemaining is the largest length of a packet after its fixed header [MQTT-1.5.5].
	MaxRemaining = 1<<28 - 1
)

// Type returns the type of a packet, such as packets.PUBLISH. The packet must not be empty.
func Type(packet []byte) byte { return packet[0] >> 4 }

// Publish is a decoded PUBLISH packet. Its slices are parts of the buffer that held the
// packet, and valid until the buffer is overwritten.
type Publish struct {
	QoS             byte
	Duplicate       bool
	Retain          bool
	Topic           []byte
	PacketID        uint16 // 0 with QoS 0
	MessageExpiry   uint32 // seconds; 0: none
	ContentType     []byte
	ResponseTopic   []byte
	CorrelationData []byte
	Payload         []byte
	// WillDelay is the Will Delay Interval in seconds, of a Will, which has the form of a message.
	WillDelay uint32

	properties []byte // known to be well-formed
}

// publishProperties are the properties that a PUBLISH can have [MQTT-3.3.2.3]. No client has one with a Subscription
// Identifier [MQTT-3.3.4-6], nor does ours ask for any.
var publishProperties = SetOf(packets.PropPayloadFormat, packets.PropMessageExpiry, packets.PropContentType,
	packets.PropResponseTopic, packets.PropCorrelationData, packets.PropTopicAlias, packets.PropUser)

var noLimits Limits

// Decode decodes a complete PUBLISH packet. It returns what is wrong
// with the packet, or nil. It refuses any topic alias: neither client nor server allows one.
func (p *Publish) Decode(packet []byte, limits *Limits) *Refusal {
	*p = Publish{}
	in, refusal := Body(packet, packets.PUBLISH, packets.PUBLISH)
	if refusal != nil {
		return refusal
	}
	p.QoS = packet[0] >> QoSShift & qosMask
	p.Duplicate = packet[0]&FlagDuplicate != 0
	p.Retain = packet[0]&FlagRetain != 0
	if p.QoS > 2 {
		return Refuse(Malformed, "its QoS is 3") // [MQTT-3.3.1-4]
	}
	if p.QoS == 0 && p.Duplicate {
		return Refuse(ProtocolError, "it is a duplicate with QoS 0") // [MQTT-3.3.1-2]
	}
	var ok bool
	if p.Topic, ok = in.Text(); !ok {
		return Refuse(Malformed, "its topic name is malformed") // [MQTT-3.3.2-1]
	}
	if p.QoS > 0 {
		if p.PacketID, refusal = PacketID(&in); refusal != nil {
			return refusal
		}
	}
	text, refusal := p.ReadProperties(&in, new(Properties), publishProperties, limits)
	if refusal != nil {
		return refusal
	}
	// After the properties: a topic name may be empty where an alias stands for it.
	if refusal := CheckTopic(p.Topic, limits); refusal != nil {
		return refusal
	}
	p.Payload = in
	if text && !utf8.Valid(p.Payload) {
		return Refuse(InvalidPayloadFormat, "its payload is marked as UTF-8, and is not") // [MQTT-3.3.2.3.2]
	}
	return nil
}

// ReadProperties reads the allowed properties of a message with read, and stores those that can occur only
// once. It reports whether the payload has to be UTF-8.
func (p *Publish) ReadProperties(
	in *Reader, read *Properties, allowed Set, limits *Limits,
) (text bool, refusal *Refusal) {
	refusal = read.Each(in, allowed, limits, func(property Property) *Refusal {
		switch property.Identifier {
		case packets.PropPayloadFormat:
			text = property.Number == 1
		case packets.PropMessageExpiry:
			p.MessageExpiry = property.Number
		case packets.PropContentType:
			p.ContentType = property.Value
		case packets.PropResponseTopic:
			p.ResponseTopic = property.Value
			if refusal := CheckTopic(property.Value, limits); refusal != nil { // [MQTT-3.3.2-14]
				refusal.Reason = "as its response topic, " + refusal.Reason
				return refusal
			}
		case packets.PropCorrelationData:
			p.CorrelationData = property.Value
		case packets.PropWillDelayInterval:
			p.WillDelay = property.Number
		case packets.PropTopicAlias:
			// [MQTT-3.2.2-17, MQTT-3.1.2-27]
			return Refuse(InvalidAlias, "it has a topic alias, and no maximum of those was announced")
		}
		return nil
	})
	p.properties = read.Raw
	return text, refusal
}

// User returns the value of the first user property of a name.
func (p *Publish) User(name string) (value []byte, ok bool) {
	for key, value := range p.Users {
		if string(key) == name {
			return value, true
		}
	}
	return nil, false
}

// Users calls yield with the name and the value of each user property, in their order, until yield
// returns false. It is an [iter.Seq2], for a reader of several properties.
func (p *Publish) Users(yield func(name, value []byte) bool) {
	for rest := Reader(p.properties); len(rest) > 0; {
		property, _ := rest.Property()
		if property.Identifier == packets.PropUser && !yield(property.Name, property.Value) {
			return
		}
	}
}

// Clone returns a copy that shares no memory with the buffer.
func (p *Publish) Clone() *Publish {
	c := *p
	for _, part := range []*[]byte{&c.Topic, &c.ContentType, &c.ResponseTopic, &c.CorrelationData, &c.Payload,
		&c.properties} {
		*part = bytes.Clone(*part)
	}
	return &c
}

// Raw returns the properties in their encoded form, without their length.
func (p *Publish) Raw() []byte { return p.properties }

// Message is a PUBLISH packet to be written. Append leaves empty properties out.
type Message struct {
	Topic           string
	QoS             byte
	Retain          bool
	PacketID        uint16 // must not be 0 where QoS is not
	MessageExpiry   uint32 // seconds
	ContentType     string
	ResponseTopic   string
	CorrelationData []byte
	User            []UserProperty
	Payload         []byte
}

// UserProperty is a name with a value.
type UserProperty struct {
	Name, Value string
}

// ErrTooLong is the error for a string of more than 65,535 bytes, or a packet of more
// than 268,435,455: MQTT cannot encode it.
var ErrTooLong = errors.New("too long for an MQTT packet")

// Append appends the packet to dst. The error is ErrTooLong; dst is then returned unchanged.
func (m *Message) Append(dst []byte) ([]byte, error) {
	longest := max(len(m.Topic), len(m.ContentType), len(m.ResponseTopic), len(m.CorrelationData))
	for i := range m.User {
		longest = max(longest, len(m.User[i].Name), len(m.User[i].Value))
	}
	var usual [512]byte
	properties := usual[:0]
	if m.MessageExpiry > 0 {
		properties = binary.BigEndian.AppendUint32(append(properties, packets.PropMessageExpiry), m.MessageExpiry)
	}
	properties = AppendProperty(properties, packets.PropContentType, m.ContentType)
	properties = AppendProperty(properties, packets.PropResponseTopic, m.ResponseTopic)
	properties = AppendProperty(properties, packets.PropCorrelationData, m.CorrelationData)
	for i := range m.User {
		properties = AppendUserProperty(properties, m.User[i].Name, m.User[i].Value)
	}
	remaining := 2 + len(m.Topic) + VariableLength(len(properties)) + len(properties) + len(m.Payload)
	if m.QoS > 0 {
		remaining += 2
	}
	if longest > MaxString || remaining > MaxRemaining {
		return dst, ErrTooLong
	}
	first := packets.PUBLISH<<4 | m.QoS<<QoSShift
	if m.Retain {
		first |= FlagRetain
	}
	dst = AppendVariable(append(dst, first), remaining)
	dst = AppendString(dst, m.Topic)
	if m.QoS > 0 {
		dst = binary.BigEndian.AppendUint16(dst, m.PacketID)
	}
	dst = AppendVariable(dst, len(properties))
	return append(append(dst, properties...), m.Payload...), nil
}

// AppendProperty appends a property with a string or binary data of at most [MaxString] bytes, unless it is
// empty.
func AppendProperty[T string | []byte](dst []byte, identifier byte, value T) []byte {
	if len(value) == 0 {
		return dst
	}
	return AppendString(append(dst, identifier), value)
}

// AppendUserProperty appends a user property. Name and value have at most [MaxString] bytes.
func AppendUserProperty[T string | []byte](dst []byte, name string, value T) []byte {
	return AppendString(AppendString(append(dst, packets.PropUser), name), value)
}

// Puback is a decoded PUBACK packet. Like [Publish], it shares the memory of the packet.
type Puback struct {
	PacketID uint16
	// ReasonCode is 0 for success [MQTT-3.4.2.1].
	ReasonCode byte
	// ReasonString is the peer's text, or empty.
	ReasonString []byte
}

// Decode decodes a complete PUBACK. It returns what is wrong with the packet, or nil. It accepts any reason code.
func (ack *Puback) Decode(packet []byte, limits *Limits) *Refusal {
	*ack = Puback{}
	in, refusal := Body(packet, packets.PUBACK, packets.PUBACK)
	if refusal != nil {
		return refusal
	}
	if ack.PacketID, refusal = PacketID(&in); refusal != nil || len(in) == 0 {
		return refusal
	}
	ack.ReasonCode, _ = in.Byte()
	if len(in) == 0 {
		return nil
	}
	var properties Properties
	refusal = properties.Each(&in, ackProperties, limits, func(property Property) *Refusal {
		if property.Identifier == packets.PropReasonString {
			ack.ReasonString = property.Value
		}
		return nil
	})
	if refusal == nil && len(in) > 0 {
		return Refuse(Malformed, "it is longer than its properties")
	}
	return refusal
}

// AppendPuback appends a PUBACK that says success, in its short form [MQTT-3.4.2.1].
func AppendPuback(dst []byte, packetID uint16) []byte {
	return binary.BigEndian.AppendUint16(append(dst, packets.PUBACK<<4, 2), packetID)
}
