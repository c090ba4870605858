package frame

import (
	"bytes"
	"encoding/binary"
	"errors"
	"unicode/utf8"
)

// Packet types, as the first four bits of a packet hold them [MQTT-2.1.2].
const (
	TypePublish = 3
	TypePuback  = 4
)

// Identifiers of the properties that a PUBLISH may have here [MQTT-2.2.2.2].
const (
	propertyPayloadFormat   = 0x01
	propertyMessageExpiry   = 0x02
	propertyContentType     = 0x03
	propertyResponseTopic   = 0x08
	propertyCorrelationData = 0x09
	propertyUser            = 0x26
)

const (
	flagRetain    = 0x01
	flagDuplicate = 0x08
	qosShift      = 1
	qosMask       = 0x03

	// maxString is how long a string or binary data can be [MQTT-1.5.4, MQTT-1.5.6].
	maxString = 1<<16 - 1
	// maxRemaining is how much can follow the fixed header [MQTT-1.5.5].
	maxRemaining = 1<<28 - 1
)

// Type returns the type of a packet, which must not be empty.
func Type(packet []byte) byte { return packet[0] >> 4 }

// Publish is a PUBLISH packet as it lies in a buffer: its slices are parts of that, and
// good for as long as that is not overwritten.
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

	properties []byte // known to be well-formed
}

// ParsePublish takes a complete PUBLISH packet apart. It reports false for one that is
// malformed, and for one that holds what requests and replies have no use for: a topic
// alias or a subscription identifier. Either is for a full implementation to judge.
func ParsePublish(packet []byte) (Publish, bool) {
	size, header, ok := Size(packet)
	if !ok || size != len(packet) || Type(packet) != TypePublish {
		return Publish{}, false
	}
	p := Publish{
		QoS:       packet[0] >> qosShift & qosMask,
		Duplicate: packet[0]&flagDuplicate != 0,
		Retain:    packet[0]&flagRetain != 0,
	}
	if p.QoS > 2 || p.QoS == 0 && p.Duplicate {
		return Publish{}, false
	}
	in := input(packet[header:])
	if p.Topic, ok = in.text(); !ok || len(p.Topic) == 0 || bytes.ContainsAny(p.Topic, "+#") {
		return Publish{}, false
	}
	if p.QoS > 0 {
		if p.PacketID, ok = in.uint16(); !ok || p.PacketID == 0 {
			return Publish{}, false
		}
	}
	length, ok := in.variable()
	if !ok || length > len(in) {
		return Publish{}, false
	}
	p.properties, p.Payload = in[:length], in[length:]
	if !p.readProperties() {
		return Publish{}, false
	}
	return p, true
}

// readProperties judges the properties, and notes those that exist once.
func (p *Publish) readProperties() bool {
	var seen [propertyUser + 1]bool
	in := input(p.properties)
	for len(in) > 0 {
		identifier := in[0]
		in = in[1:]
		if identifier > propertyUser || seen[identifier] && identifier != propertyUser {
			return false
		}
		seen[identifier] = true
		var ok bool
		switch identifier {
		case propertyPayloadFormat:
			var format byte
			format, ok = in.byte()
			ok = ok && format <= 1
		case propertyMessageExpiry:
			p.MessageExpiry, ok = in.uint32()
		case propertyContentType:
			p.ContentType, ok = in.text()
		case propertyResponseTopic:
			p.ResponseTopic, ok = in.text()
		case propertyCorrelationData:
			p.CorrelationData, ok = in.binary()
		case propertyUser:
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

// User returns the value of the first user property of a name.
func (p *Publish) User(name string) (value []byte, ok bool) {
	in := input(p.properties)
	for len(in) > 0 {
		identifier := in[0]
		in = in[1:]
		switch identifier {
		case propertyPayloadFormat:
			in = in[1:]
		case propertyMessageExpiry:
			in = in[4:]
		case propertyUser:
			key, _ := in.binary()
			value, _ := in.binary()
			if string(key) == name {
				return value, true
			}
		default:
			_, _ = in.binary()
		}
	}
	return nil, false
}

// Message is a PUBLISH packet to be written. What is empty is left out.
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

// ErrTooLong is the error for a string of more than 65,535 bytes, or a packet of more
// than 268,435,455: MQTT cannot express it.
var ErrTooLong = errors.New("too long for an MQTT packet")

// Size returns how many bytes Append would add. It is right also for a message that is
// too long.
func (m *Message) Size() int {
	_, remaining := m.lengths()
	return 1 + variableLength(remaining) + remaining
}

// lengths returns how many bytes the properties have, and how many follow the fixed
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

// Append appends the packet to dst. On error, which is ErrTooLong, dst is returned as
// it was.
func (m *Message) Append(dst []byte) ([]byte, error) {
	properties, remaining := m.lengths()
	if remaining > maxRemaining || m.tooLong() {
		return dst, ErrTooLong
	}
	dst = append(dst, TypePublish<<4|m.QoS<<qosShift)
	dst = appendVariable(dst, remaining)
	dst = appendString(dst, m.Topic)
	if m.QoS > 0 {
		dst = binary.BigEndian.AppendUint16(dst, m.PacketID)
	}
	dst = appendVariable(dst, properties)
	if m.MessageExpiry > 0 {
		dst = append(dst, propertyMessageExpiry)
		dst = binary.BigEndian.AppendUint32(dst, m.MessageExpiry)
	}
	if m.ContentType != "" {
		dst = appendString(append(dst, propertyContentType), m.ContentType)
	}
	if m.ResponseTopic != "" {
		dst = appendString(append(dst, propertyResponseTopic), m.ResponseTopic)
	}
	if len(m.CorrelationData) > 0 {
		dst = appendString(append(dst, propertyCorrelationData), m.CorrelationData)
	}
	for i := range m.User {
		dst = appendString(append(dst, propertyUser), m.User[i].Name)
		dst = appendString(dst, m.User[i].Value)
	}
	return append(dst, m.Payload...), nil
}

func appendString[T string | []byte](dst []byte, text T) []byte {
	dst = binary.BigEndian.AppendUint16(dst, uint16(len(text)))
	return append(dst, text...)
}

// appendVariable appends a variable byte integer [MQTT-1.5.5].
func appendVariable(dst []byte, value int) []byte {
	for ; value > 0x7f; value >>= 7 {
		dst = append(dst, byte(value)|0x80)
	}
	return append(dst, byte(value))
}

func variableLength(value int) int {
	length := 1
	for ; value > 0x7f; value >>= 7 {
		length++
	}
	return length
}

// Size returns how long the packet is that b begins with, and how much of that is its
// fixed header. It reports false while too little of it is there to tell, and for ever
// if b cannot be the beginning of a packet: the header is five bytes long at most.
func Size(b []byte) (size, header int, ok bool) {
	if len(b) == 0 {
		return 0, 0, false
	}
	rest := input(b[1:])
	remaining, ok := rest.variable()
	if !ok {
		return 0, 0, false
	}
	header = len(b) - len(rest)
	return header + remaining, header, true
}

// maxHeader is the length of the longest fixed header.
const maxHeader = 5

// input is what is left to be read.
type input []byte

func (in *input) byte() (byte, bool) {
	if len(*in) < 1 {
		return 0, false
	}
	value := (*in)[0]
	*in = (*in)[1:]
	return value, true
}

func (in *input) uint16() (uint16, bool) {
	if len(*in) < 2 {
		return 0, false
	}
	value := binary.BigEndian.Uint16(*in)
	*in = (*in)[2:]
	return value, true
}

func (in *input) uint32() (uint32, bool) {
	if len(*in) < 4 {
		return 0, false
	}
	value := binary.BigEndian.Uint32(*in)
	*in = (*in)[4:]
	return value, true
}

// variable reads a variable byte integer of at most four bytes [MQTT-1.5.5].
func (in *input) variable() (int, bool) {
	value := 0
	for i := range min(len(*in), 4) {
		value |= int((*in)[i]&0x7f) << (7 * i)
		if (*in)[i] < 0x80 {
			*in = (*in)[i+1:]
			return value, true
		}
	}
	return 0, false
}

func (in *input) binary() ([]byte, bool) {
	length, ok := in.uint16()
	if !ok || int(length) > len(*in) {
		return nil, false
	}
	value := (*in)[:length:length]
	*in = (*in)[length:]
	return value, true
}

// text reads a string as it must be: UTF-8 without U+0000 [MQTT-1.5.4].
func (in *input) text() ([]byte, bool) {
	value, ok := in.binary()
	if !ok || bytes.IndexByte(value, 0) >= 0 || !utf8.Valid(value) {
		return nil, false
	}
	return value, true
}
