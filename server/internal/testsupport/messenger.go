package testsupport

import (
	"bufio"
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/tenurelock/tenure/internal/wire"
	"github.com/tenurelock/tenure/server/internal/rawmqtt"
)

// ShrinkReadBuffer makes the socket buffer of the client small, so that it holds few unread
// bytes.
func (c *Messenger) ShrinkReadBuffer() *Messenger {
	_ = c.Conn.(*net.TCPConn).SetReadBuffer(4 << 10) // more time is needed if it fails
	return c
}

// ConnectPacket is a CONNECT packet of MQTT 5 or MQTT 3.1.1.
type ConnectPacket struct {
	ID, User   string
	Old        bool   // MQTT 3.1.1
	Resume     bool   // Clean Start, or Clean Session, is 0
	Expiry     uint32 // of the session, in seconds
	KeepAlive  uint16 // default 600
	Properties rawmqtt.Body
	Will       *rawmqtt.Message
}

// Packet encodes the packet.
func (h ConnectPacket) Packet() []byte {
	version, flags := byte(5), byte(0)
	if h.Old {
		version = 4
	}
	if !h.Resume {
		flags |= 0x02
	}
	if h.User != "" {
		flags |= 0xc0
	}
	if w := h.Will; w != nil {
		flags |= 0x04 | w.QoS<<3
		if w.Retain {
			flags |= 0x20
		}
	}
	body := rawmqtt.Body(nil).Text("MQTT").Byte(version).Byte(flags).Uint16(cmp.Or(h.KeepAlive, 600))
	if !h.Old {
		body = body.Properties(append(rawmqtt.Body{wire.SessionExpiry}.Uint32(h.Expiry), h.Properties...))
	}
	body = body.Text(h.ID)
	if h.Will != nil {
		if !h.Old {
			body = body.Properties(h.Will.Properties)
		}
		body = body.Text(h.Will.Topic).Text(string(h.Will.Payload))
	}
	if h.User != "" {
		body = body.Text(h.User).Text("secret")
	}
	return rawmqtt.Packet(wire.Connect, 0, body)
}

// Messenger is a RawClient of either version that publishes and subscribes.
type Messenger struct {
	*RawClient
	old     bool
	Present bool // the CONNACK said: session present
}

// TryConnect connects and returns the CONNACK, or nil if the connection ended without one.
func (h ConnectPacket) TryConnect(t testing.TB, address string) (c *Messenger, connack []byte) {
	t.Helper()
	conn := DialTCP(t, address)
	c = &Messenger{RawClient: &RawClient{T: t, ID: h.ID, Conn: conn, Input: bufio.NewReader(conn), Stamp: InAMinute()}, old: h.Old}
	c.Write(h.Packet())
	connack, err := c.TryRead()
	if err != nil {
		return c, nil
	}
	return c, connack
}

// Connect is TryConnect for a client that must be accepted.
func (h ConnectPacket) Connect(t testing.TB, address string) *Messenger {
	t.Helper()
	c, connack := h.TryConnect(t, address)
	if connack == nil || connack[0] != 0x20 || connack[3] != 0 {
		t.Fatalf("%s: CONNACK %x", h.ID, connack)
	}
	c.Present = connack[2] == 1
	return c
}

// Options of a subscription.
const (
	NoLocal           = 0x04
	RetainAsPublished = 0x08
	RetainIfNew       = 0x10
	RetainNever       = 0x20
)

// Filter subscribes to filters and returns the reason codes. Identifier 0 stands for none.
func (c *Messenger) Filter(options byte, identifier int, filters ...string) (codes []byte) {
	c.T.Helper()
	body := rawmqtt.Body(nil).Uint16(9)
	if !c.old {
		var properties rawmqtt.Body
		if identifier > 0 {
			properties = properties.Byte(wire.SubscriptionIdentifier).Variable(identifier)
		}
		body = body.Properties(properties)
	}
	for _, filter := range filters {
		body = body.Text(filter).Byte(options)
	}
	c.Write(rawmqtt.Packet(wire.Subscribe, 2, body))
	ack := c.Read()
	if ack[0] != 0x90 || len(ack) < len(filters) {
		c.T.Fatalf("%s: got %x, want a SUBACK", c.ID, ack)
	}
	return ack[len(ack)-len(filters):]
}

// SubscribeAll subscribes to filters with QoS 1, which must be granted.
func (c *Messenger) SubscribeAll(filters ...string) {
	c.T.Helper()
	if codes := c.Filter(1, 0, filters...); slices.Max(codes) > 1 {
		c.T.Fatalf("%s: SUBACK %x for %q", c.ID, codes, filters)
	}
}

// Send writes a PUBLISH packet.
func (c *Messenger) Send(m rawmqtt.Message) {
	c.T.Helper()
	if m.QoS > 0 && m.ID == 0 {
		if c.Sent++; c.Sent == 0 {
			c.Sent = 1
		}
		m.ID = c.Sent
	}
	if !c.old {
		c.Write(m.Packet())
		return
	}
	body := rawmqtt.Body(nil).Text(m.Topic)
	if m.QoS > 0 {
		body = body.Uint16(m.ID)
	}
	flags := m.QoS << 1
	if m.Retain {
		flags |= 1
	}
	c.Write(rawmqtt.Packet(wire.Publish, flags, append(body, m.Payload...)))
}

// Publish sends a message with QoS 1, and returns the reason code of its PUBACK, which must
// be the next packet.
func (c *Messenger) Publish(m rawmqtt.Message) (code byte) {
	c.T.Helper()
	m.QoS = 1
	c.Send(m)
	ack := c.Read()
	if ack[0] != 0x40 {
		c.T.Fatalf("%s: got %x, want a PUBACK", c.ID, ack)
	}
	if len(ack) > 4 {
		code = ack[4]
	}
	return code
}

// MustPublish publishes payloads with QoS 1, which must be accepted.
func (c *Messenger) MustPublish(topic string, payloads ...string) {
	c.T.Helper()
	for _, payload := range payloads {
		if code := c.Publish(rawmqtt.Message{Topic: topic, Payload: []byte(payload)}); code >= 0x80 {
			c.T.Fatalf("%s: PUBACK %#x for %q", c.ID, code, payload)
		}
	}
}

// Message is a received message.
type Message struct {
	Topic, Payload string
	QoS            byte
	Dup, Retain    bool
	ID             uint16
	Identifiers    []int
	Expiry         uint32
	Properties     string // all other properties, encoded
}

// Next returns the next message, which must be the next packet.
func (c *Messenger) Next() Message {
	c.T.Helper()
	packet := c.Read()
	if packet[0]>>4 != wire.Publish {
		c.T.Fatalf("%s: got %x, want a message", c.ID, packet)
	}
	h := Message{QoS: packet[0] >> 1 & 3, Dup: packet[0]&8 != 0, Retain: packet[0]&1 != 0}
	_, n := binary.Uvarint(packet[1:]) // MQTT's length
	in := packet[1+n:]
	cut := func(n int) (part []byte) { part, in = in[:n], in[n:]; return part }
	number := func() int {
		value, n := binary.Uvarint(in)
		cut(n)
		return int(value)
	}
	text := func() string { return string(cut(int(binary.BigEndian.Uint16(cut(2))))) }
	h.Topic = text()
	if h.QoS > 0 {
		h.ID = binary.BigEndian.Uint16(cut(2))
	}
	if !c.old {
		length := number()
		for end := len(in) - length; len(in) > end; {
			before := in
			switch cut(1)[0] {
			case wire.PayloadFormat:
				cut(1)
			case wire.MessageExpiry:
				h.Expiry = binary.BigEndian.Uint32(cut(4))
				continue
			case wire.SubscriptionIdentifier:
				h.Identifiers = append(h.Identifiers, number())
				continue
			case wire.UserProperty:
				text()
				text()
			default:
				text()
			}
			h.Properties += string(before[:len(before)-len(in)])
		}
	}
	h.Payload = string(in)
	return h
}

// Ack sends the PUBACK of a message.
func (c *Messenger) Ack(h Message) {
	c.T.Helper()
	c.Write(rawmqtt.Packet(wire.Puback, 0, rawmqtt.Body(nil).Uint16(h.ID)))
}

// MustReceive reads messages, which must have these payloads, acknowledges and returns them.
func (c *Messenger) MustReceive(payloads ...string) (all []Message) {
	c.T.Helper()
	for _, want := range payloads {
		h := c.Next()
		if h.Payload != want {
			c.T.Fatalf("%s: received %.80q, want %.80q", c.ID, h.Payload, want)
		}
		if h.QoS > 0 {
			c.Ack(h)
		}
		all = append(all, h)
	}
	return all
}

// MustBeClosed reads until the connection ends, and returns the reason code of the DISCONNECT, or
// -1 if there was none.
func (c *Messenger) MustBeClosed() (code int) {
	c.T.Helper()
	_ = c.Conn.SetReadDeadline(time.Now().Add(Patience))
	for code = -1; ; {
		packet, err := c.TryRead()
		if err != nil {
			if errors.Is(err, os.ErrDeadlineExceeded) {
				c.T.Errorf("%s: still connected", c.ID)
			}
			return code
		}
		if packet[0] == 0xe0 {
			code = 0
			if len(packet) > 2 {
				code = int(packet[2])
			}
		}
	}
}

// Disconnect sends DISCONNECT and waits until the server closes the connection.
func (c *Messenger) Disconnect() {
	c.T.Helper()
	c.Write([]byte{0xe0, 0})
	c.MustBeClosed()
}

// Numbered returns n payloads: "00000", "00001", …
func Numbered(n int) (payloads []string) {
	for i := range n {
		payloads = append(payloads, fmt.Sprintf("%05d", i))
	}
	return payloads
}

// OrdinaryWill returns a Will that is no request. delay is in seconds; properties are encoded.
func OrdinaryWill(topic string, delay uint32, properties ...byte) *rawmqtt.Message {
	list := append(rawmqtt.Body{wire.WillDelay}.Uint32(delay), properties...)
	return &rawmqtt.Message{Topic: topic, QoS: 1, Payload: []byte("gone"), Properties: list}
}
