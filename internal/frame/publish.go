package frame

import (
	"encoding/binary"
	"errors"
	"unicode/utf8"

	"github.com/tenurelock/tenure/internal/wire"
)

const (
	flagRetain    = 0x01
	flagDuplicate = 0x08
	qosShift      = 1
	qosMask       = 0x03

	// maxString is the largest length of a string or binary data [MQTT-1.5.4, MQTT-1.5.6].
	maxString = 1<<16 - 1
	// maxRemaining is the largest length of a packet after its fixed header [MQTT-1.5.5].
	maxRemaining = 1<<28 - 1
)

// Type returns the type of a packet, such as wire.Publish. The packet must not be empty.
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
	// Identified says that it has at least one subscription identifier.
	Identified bool

	properties []byte // known to be well-formed
}

// publishProperties are the properties that a PUBLISH can have [MQTT-3.3.2.3].
var publishProperties = wire.SetOf(wire.PayloadFormat, wire.MessageExpiry, wire.ContentType, wire.ResponseTopic,
	wire.CorrelationData, wire.SubscriptionIdentifier, wire.TopicAlias, wire.UserProperty)

// publishMany are the properties that it can have more than once.
var publishMany = wire.SetOf(wire.SubscriptionIdentifier, wire.UserProperty)

// ParsePublish decodes a complete PUBLISH packet of MQTT 5. It reports false for one that
// Decode refuses, and for one with a subscription identifier, which requests and replies do
// not have.
func ParsePublish(packet []byte) (Publish, bool) {
	var p Publish
	ok := p.Decode(packet, wire.Version5, &noLimits) == nil && !p.Identified
	return p, ok
}

var noLimits wire.Limits

// Decode decodes a complete PUBLISH packet of any version of MQTT. It returns what is wrong
// with the packet, or nil. It refuses any topic alias: neither client nor server allows one.
func (p *Publish) Decode(packet []byte, version byte, limits *wire.Limits) *wire.Refusal {
	*p = Publish{}
	in, refusal := body(packet, wire.Publish)
	if refusal != nil {
		return refusal
	}
	p.QoS = packet[0] >> qosShift & qosMask
	p.Duplicate = packet[0]&flagDuplicate != 0
	p.Retain = packet[0]&flagRetain != 0
	if p.QoS > 2 {
		return wire.Refuse(wire.Malformed, "its QoS is 3") // [MQTT-3.3.1-4]
	}
	if p.QoS == 0 && p.Duplicate {
		return wire.Refuse(wire.ProtocolError, "it is a duplicate with QoS 0") // [MQTT-3.3.1-2]
	}
	var ok bool
	if p.Topic, ok = in.Text(); !ok {
		return wire.Refuse(wire.Malformed, "its topic name is malformed") // [MQTT-3.3.2-1]
	}
	if p.QoS > 0 {
		if p.PacketID, refusal = packetID(&in); refusal != nil {
			return refusal
		}
	}
	text := false
	if version >= wire.Version5 {
		if text, refusal = p.readProperties(&in, limits); refusal != nil {
			return refusal
		}
	}
	// After the properties: a topic name may be empty where an alias stands for it.
	if refusal := wire.CheckTopic(p.Topic, limits); refusal != nil {
		return refusal
	}
	p.Payload = in
	if text && !utf8.Valid(p.Payload) {
		return wire.Refuse(wire.InvalidPayloadFormat, "its payload is marked as UTF-8, and is not") // [MQTT-3.3.2.3.2]
	}
	return nil
}

// readProperties checks the properties and stores those that can occur only once. It reports
// whether the payload is marked as UTF-8.
func (p *Publish) readProperties(in *wire.Reader, limits *wire.Limits) (text bool, refusal *wire.Refusal) {
	var properties wire.Properties
	if refusal := properties.Begin(in, publishProperties, publishMany, limits); refusal != nil {
		return false, refusal
	}
	p.properties = properties.All()
	for {
		var property wire.Property
		if more, refusal := properties.Next(&property); !more {
			return text, refusal
		}
		switch property.Identifier {
		case wire.PayloadFormat:
			text = property.Number == 1
		case wire.MessageExpiry:
			p.MessageExpiry = property.Number
		case wire.ContentType:
			p.ContentType = property.Value
		case wire.ResponseTopic:
			p.ResponseTopic = property.Value
			if refusal := wire.CheckTopic(property.Value, limits); refusal != nil { // [MQTT-3.3.2-14]
				refusal.Reason = "as its response topic, " + refusal.Reason
				return false, refusal
			}
		case wire.CorrelationData:
			p.CorrelationData = property.Value
		case wire.SubscriptionIdentifier:
			p.Identified = true
		case wire.TopicAlias:
			return false, wire.Refuse(wire.InvalidAlias, "it has a topic alias, and no maximum of those was announced") // [MQTT-3.2.2-17, MQTT-3.1.2-27]
		}
	}
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
	for rest := p.properties; len(rest) > 0; rest = rest[wire.PropertyLength(rest):] {
		if rest[0] == wire.UserProperty {
			in := wire.Reader(rest[1:])
			name, _ := in.Binary()
			value, _ := in.Binary()
			if !yield(name, value) {
				return
			}
		}
	}
}

// forwarded are the properties that a broker passes on as they are [MQTT-3.3.2-4,
// MQTT-3.3.2-15, MQTT-3.3.2-16, MQTT-3.3.2-17, MQTT-3.3.2-20].
var forwarded = wire.SetOf(wire.PayloadFormat, wire.ContentType, wire.ResponseTopic, wire.CorrelationData, wire.UserProperty)

// AppendForwarded appends the properties that a broker passes on, as they are and in their
// order, without a length before them. The Message Expiry Interval, topic aliases and
// subscription identifiers are not among them: the broker writes its own.
func (p *Publish) AppendForwarded(dst []byte) []byte {
	for rest := p.properties; len(rest) > 0; {
		n := wire.PropertyLength(rest)
		if forwarded.Has(rest[0]) {
			dst = append(dst, rest[:n]...)
		}
		rest = rest[n:]
	}
	return dst
}

// body returns what follows the fixed header of a complete packet of this type.
func body(packet []byte, kind byte) (wire.Reader, *wire.Refusal) {
	size, header, ok := wire.Size(packet)
	switch {
	case !ok || size != len(packet):
		return nil, wire.Refuse(wire.Malformed, "it is not as long as its header says")
	case Type(packet) != kind:
		return nil, wire.Refuse(wire.ProtocolError, "it has the type %d, not %d", Type(packet), kind)
	}
	return packet[header:], nil
}

// packetID reads a packet identifier, which cannot be 0 [MQTT-2.2.1-3].
func packetID(in *wire.Reader) (uint16, *wire.Refusal) {
	id, ok := in.Uint16()
	switch {
	case !ok:
		return 0, wire.Refuse(wire.Malformed, "it ends before its packet identifier")
	case id == 0:
		return 0, wire.Refuse(wire.ProtocolError, "its packet identifier is 0")
	}
	return id, nil
}

// Message is a PUBLISH packet to be written. Append leaves empty properties out.
type Message struct {
	Topic           string
	QoS             byte
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

// AppendCorrelationData appends the property Correlation Data of at most 65,535 bytes, for
// [Forward.Properties].
func AppendCorrelationData(dst, data []byte) []byte {
	return appendString(append(dst, wire.CorrelationData), data)
}

// AppendUserProperty appends a user property, for [Forward.Properties]. Name and value have at most
// 65,535 bytes.
func AppendUserProperty[T string | []byte](dst []byte, name string, value T) []byte {
	return appendString(appendString(append(dst, wire.UserProperty), name), value)
}

// ErrTooLong is the error for a string of more than 65,535 bytes, or a packet of more
// than 268,435,455: MQTT cannot encode it.
var ErrTooLong = errors.New("too long for an MQTT packet")

// Size returns how many bytes Append would add, even if the message is too long.
func (m *Message) Size() int {
	_, remaining := m.lengths()
	return 1 + variableLength(remaining) + remaining
}

// lengths returns the length of the properties, and the length of the packet after its fixed
// header.
func (m *Message) lengths() (properties, remaining int) {
	properties = optional(len(m.ContentType)) + optional(len(m.ResponseTopic)) + optional(len(m.CorrelationData))
	if m.MessageExpiry > 0 {
		properties += 1 + 4
	}
	for i := range m.User {
		properties += 1 + 2 + len(m.User[i].Name) + 2 + len(m.User[i].Value)
	}
	remaining = 2 + len(m.Topic) + variableLength(properties) + properties + len(m.Payload)
	if m.QoS > 0 {
		remaining += 2
	}
	return properties, remaining
}

// optional returns the length of a property with a string or binary data; an empty one
// is left out.
func optional(length int) int {
	if length == 0 {
		return 0
	}
	return 1 + 2 + length
}

func (m *Message) tooLong() bool {
	for i := range m.User {
		if len(m.User[i].Name) > maxString || len(m.User[i].Value) > maxString {
			return true
		}
	}
	return len(m.Topic) > maxString || len(m.ContentType) > maxString ||
		len(m.ResponseTopic) > maxString || len(m.CorrelationData) > maxString
}

// Append appends the packet to dst. The error is ErrTooLong; dst is then returned unchanged.
func (m *Message) Append(dst []byte) ([]byte, error) {
	properties, remaining := m.lengths()
	if remaining > maxRemaining || m.tooLong() {
		return dst, ErrTooLong
	}
	dst = append(dst, wire.Publish<<4|m.QoS<<qosShift)
	dst = wire.AppendVariable(dst, remaining)
	dst = appendString(dst, m.Topic)
	if m.QoS > 0 {
		dst = binary.BigEndian.AppendUint16(dst, m.PacketID)
	}
	dst = wire.AppendVariable(dst, properties)
	if m.MessageExpiry > 0 {
		dst = append(dst, wire.MessageExpiry)
		dst = binary.BigEndian.AppendUint32(dst, m.MessageExpiry)
	}
	if m.ContentType != "" {
		dst = appendString(append(dst, wire.ContentType), m.ContentType)
	}
	if m.ResponseTopic != "" {
		dst = appendString(append(dst, wire.ResponseTopic), m.ResponseTopic)
	}
	if len(m.CorrelationData) > 0 {
		dst = appendString(append(dst, wire.CorrelationData), m.CorrelationData)
	}
	for i := range m.User {
		dst = appendString(append(dst, wire.UserProperty), m.User[i].Name)
		dst = appendString(dst, m.User[i].Value)
	}
	return append(dst, m.Payload...), nil
}

func appendString[T string | []byte](dst []byte, text T) []byte {
	dst = binary.BigEndian.AppendUint16(dst, uint16(len(text)))
	return append(dst, text...)
}

func variableLength(value int) int {
	length := 1
	for ; value > 0x7f; value >>= 7 {
		length++
	}
	return length
}
