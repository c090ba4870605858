// Package rawmqtt writes MQTT 5 packets that may be wrong, and reads whole packets from a
// socket. The raw client of the tests and the fuzzer of servers speak with it: a real MQTT
// client refuses to send what they send.
//
// A [Body] grows by one field after the other, and [Packet] puts a fixed header before it:
//
//	var b rawmqtt.Body
//	b = b.Uint16(1).Properties(nil).Text("a/b").Byte(0)
//	packet := rawmqtt.Packet(packets.SUBSCRIBE, 2, b)
//
// Nothing is checked: a field that lies about its length is a slice of bytes like any other.
// References in brackets are statements of the MQTT 5.0 standard.
package rawmqtt

import (
	"bufio"
	"encoding/binary"
	"fmt"
	"io"

	"github.com/eclipse/paho.golang/packets"
)

// Body is what follows the fixed header of a packet, or a list of properties. Each method
// returns the body with a field more, as append does.
type Body []byte

// Byte appends one byte.
func (b Body) Byte(value byte) Body { return append(b, value) }

// Uint16 appends two bytes, the greater first.
func (b Body) Uint16(value uint16) Body { return binary.BigEndian.AppendUint16(b, value) }

// Uint32 appends four bytes, the greatest first.
func (b Body) Uint32(value uint32) Body { return binary.BigEndian.AppendUint32(b, value) }

// Variable appends a variable byte integer [MQTT-1.5.5]. A value that four bytes cannot
// hold gets a fifth, which no packet may have.
func (b Body) Variable(value int) Body {
	return binary.AppendUvarint(b, uint64(value))
}

// Text appends a string, or binary data, after its length in two bytes. Of a text of more
// than 65,535 bytes the length is wrong.
func (b Body) Text(text string) Body { return append(b.Uint16(uint16(len(text))), text...) }

// Properties appends a list of properties after its length.
func (b Body) Properties(list Body) Body { return append(b.Variable(len(list)), list...) }

func (b Body) propertiesUnless(old bool, list Body) Body {
	if old {
		return b
	}
	return b.Properties(list)
}

// User appends a user property.
func (b Body) User(name, value string) Body { return b.Byte(packets.PropUser).Text(name).Text(value) }

// Packet returns a packet of a type (0 to 15) with flags (0 to 15), the length of its body,
// and its body.
func Packet(kind, flags byte, body Body) []byte {
	return append(Body{kind<<4 | flags&15}.Variable(len(body)), body...)
}

// Login is a CONNECT packet.
type Login struct {
	// ID may be empty: the server then assigns one.
	ID string
	// User and Password are left out where they are empty.
	User, Password string
	// KeepAlive is in seconds; 0 asks for none.
	KeepAlive uint16
	// Resume asks for the session that is kept, if there is one: Clean Start is 0.
	Resume bool
	// Expiry is the Session Expiry Interval, in seconds.
	Expiry uint32
	// Properties follow those that the fields above make.
	Properties Body
	// Will is nil for none.
	Will *Message
	// Old leaves out all properties, as MQTT 3.1.1 does.
	Old bool
}

// Packet returns the CONNECT packet.
func (l Login) Packet() []byte {
	version, flags := byte(5), byte(0)
	if l.Old {
		version = 4
	}
	if !l.Resume {
		flags |= 0x02
	}
	if l.Will != nil {
		flags |= 0x04 | l.Will.QoS<<3 | retainFlag(l.Will.Retain)<<5
	}
	if l.User != "" {
		flags |= 0x80
	}
	if l.Password != "" {
		flags |= 0x40
	}
	var properties Body
	if l.Expiry > 0 {
		properties = properties.Byte(packets.PropSessionExpiryInterval).Uint32(l.Expiry)
	}
	properties = append(properties, l.Properties...)
	body := Body(nil).Text("MQTT").Byte(version).Byte(flags).Uint16(l.KeepAlive).
		propertiesUnless(l.Old, properties).Text(l.ID)
	if w := l.Will; w != nil {
		body = body.propertiesUnless(l.Old, w.Properties).Text(w.Topic).Text(string(w.Payload))
	}
	if l.User != "" {
		body = body.Text(l.User)
	}
	if l.Password != "" {
		body = body.Text(l.Password)
	}
	return Packet(packets.CONNECT, 0, body)
}

// SubscribeTo returns a SUBSCRIBE packet for filters, all with the same options.
func SubscribeTo(id uint16, options byte, filters ...string) []byte {
	body := Body(nil).Uint16(id).Properties(nil)
	for _, filter := range filters {
		body = body.Text(filter).Byte(options)
	}
	return Packet(packets.SUBSCRIBE, 2, body)
}

// Message is a PUBLISH packet.
type Message struct {
	Topic      string
	QoS        byte
	ID         uint16 // of the packet; left out where QoS is 0
	Retain     bool
	Properties Body
	Payload    []byte
	Old        bool // leave out the properties, as MQTT 3.1.1 does
}

// Packet returns the PUBLISH packet.
func (m Message) Packet() []byte {
	body := make(Body, 0, len(m.Topic)+len(m.Properties)+len(m.Payload)+12).Text(m.Topic)
	if m.QoS > 0 {
		body = body.Uint16(m.ID)
	}
	body = append(body.propertiesUnless(m.Old, m.Properties), m.Payload...)
	return Packet(packets.PUBLISH, m.QoS<<1|retainFlag(m.Retain), body)
}

func retainFlag(retain bool) byte {
	if retain {
		return 1
	}
	return 0
}

// Read reads one packet, whose body may have limit bytes at most, and returns its first
// byte and its body.
func Read(from *bufio.Reader, limit uint64) (first byte, body []byte, err error) {
	first, err = from.ReadByte()
	if err != nil {
		return 0, nil, err
	}
	length, err := binary.ReadUvarint(from)
	if err != nil {
		return 0, nil, err
	}
	if length > limit {
		return first, nil, fmt.Errorf("a packet of %d bytes, and %d at most are read", length, limit)
	}
	body = make([]byte, length)
	_, err = io.ReadFull(from, body)
	return first, body, err
}
