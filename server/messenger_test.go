package server_test

import (
	"bufio"
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/tenurelock/tenure/internal/wire"
	"github.com/tenurelock/tenure/server/internal/rawmqtt"
)

// hello is a CONNECT packet.
type hello struct {
	id, user   string
	old        bool   // MQTT 3.1.1
	resume     bool   // Clean Start, or Clean Session, is 0
	expiry     uint32 // of the session, in seconds
	keepAlive  uint16 // default 600
	properties rawmqtt.Body
	will       *rawmqtt.Message
}

func (h hello) packet() []byte {
	version, flags := byte(5), byte(0)
	if h.old {
		version = 4
	}
	if !h.resume {
		flags |= 0x02
	}
	if h.user != "" {
		flags |= 0xc0
	}
	if w := h.will; w != nil {
		flags |= 0x04 | w.QoS<<3
		if w.Retain {
			flags |= 0x20
		}
	}
	body := rawmqtt.Body(nil).Text("MQTT").Byte(version).Byte(flags).Uint16(cmp.Or(h.keepAlive, 600))
	if !h.old {
		body = body.Properties(append(rawmqtt.Body{wire.SessionExpiry}.Uint32(h.expiry), h.properties...))
	}
	body = body.Text(h.id)
	if h.will != nil {
		if !h.old {
			body = body.Properties(h.will.Properties)
		}
		body = body.Text(h.will.Topic).Text(string(h.will.Payload))
	}
	if h.user != "" {
		body = body.Text(h.user).Text("secret")
	}
	return rawmqtt.Packet(wire.Connect, 0, body)
}

// messenger is a raw client of either version that publishes and is published to.
type messenger struct {
	*raw
	old     bool
	present bool // a session was
}

// try connects, and returns the CONNACK, or nil if the connection ended without one.
func (h hello) try(t testing.TB, address string) (c *messenger, connack []byte) {
	t.Helper()
	conn := socketTo(t, address)
	c = &messenger{raw: &raw{t: t, id: h.id, conn: conn, input: bufio.NewReader(conn), stamp: inAMinute()}, old: h.old}
	c.write(h.packet())
	connack, err := c.tryRead()
	if err != nil {
		return c, nil
	}
	return c, connack
}

// join is try for a client that must be accepted.
func (h hello) join(t testing.TB, address string) *messenger {
	t.Helper()
	c, connack := h.try(t, address)
	if connack == nil || connack[0] != 0x20 || connack[3] != 0 {
		t.Fatalf("%s: CONNACK %x", h.id, connack)
	}
	c.present = connack[2] == 1
	return c
}

// options of a subscription.
const (
	noLocal           = 0x04
	retainAsPublished = 0x08
	retainIfNew       = 0x10
	retainNever       = 0x20
)

// follow subscribes to filters, and returns the reason codes. An identifier of 0 is none.
func (c *messenger) follow(options byte, identifier int, filters ...string) (codes []byte) {
	c.t.Helper()
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
	c.write(rawmqtt.Packet(wire.Subscribe, 2, body))
	ack := c.read()
	if ack[0] != 0x90 || len(ack) < len(filters) {
		c.t.Fatalf("%s: got %x, want a SUBACK", c.id, ack)
	}
	return ack[len(ack)-len(filters):]
}

// hears subscribes to filters, which must be granted, with QoS 1.
func (c *messenger) hears(filters ...string) {
	c.t.Helper()
	if codes := c.follow(1, 0, filters...); slices.Max(codes) > 1 {
		c.t.Fatalf("%s: SUBACK %x for %q", c.id, codes, filters)
	}
}

// send writes a PUBLISH.
func (c *messenger) send(m rawmqtt.Message) {
	c.t.Helper()
	if m.QoS > 0 && m.ID == 0 {
		if c.sent++; c.sent == 0 {
			c.sent = 1
		}
		m.ID = c.sent
	}
	if !c.old {
		c.write(m.Packet())
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
	c.write(rawmqtt.Packet(wire.Publish, flags, append(body, m.Payload...)))
}

// publish sends a message with QoS 1, and returns the reason code of its PUBACK, which must
// be the next packet.
func (c *messenger) publish(m rawmqtt.Message) (code byte) {
	c.t.Helper()
	m.QoS = 1
	c.send(m)
	ack := c.read()
	if ack[0] != 0x40 {
		c.t.Fatalf("%s: got %x, want a PUBACK", c.id, ack)
	}
	if len(ack) > 4 {
		code = ack[4]
	}
	return code
}

// tells publishes payloads, which must be accepted.
func (c *messenger) tells(topic string, payloads ...string) {
	c.t.Helper()
	for _, payload := range payloads {
		if code := c.publish(rawmqtt.Message{Topic: topic, Payload: []byte(payload)}); code >= 0x80 {
			c.t.Fatalf("%s: PUBACK %#x for %q", c.id, code, payload)
		}
	}
}

// heard is a message that arrived.
type heard struct {
	topic, payload string
	qos            byte
	dup, retain    bool
	id             uint16
	identifiers    []int
	expiry         uint32
	properties     string // the others, as they lie on the wire
}

// next returns the next message, which must be the next packet.
func (c *messenger) next() heard {
	c.t.Helper()
	packet := c.read()
	if packet[0]>>4 != wire.Publish {
		c.t.Fatalf("%s: got %x, want a message", c.id, packet)
	}
	h := heard{qos: packet[0] >> 1 & 3, dup: packet[0]&8 != 0, retain: packet[0]&1 != 0}
	_, n := binary.Uvarint(packet[1:]) // MQTT's length
	in := packet[1+n:]
	cut := func(n int) (part []byte) { part, in = in[:n], in[n:]; return part }
	number := func() int {
		value, n := binary.Uvarint(in)
		cut(n)
		return int(value)
	}
	text := func() string { return string(cut(int(binary.BigEndian.Uint16(cut(2))))) }
	h.topic = text()
	if h.qos > 0 {
		h.id = binary.BigEndian.Uint16(cut(2))
	}
	if !c.old {
		length := number()
		for end := len(in) - length; len(in) > end; {
			before := in
			switch cut(1)[0] {
			case wire.PayloadFormat:
				cut(1)
			case wire.MessageExpiry:
				h.expiry = binary.BigEndian.Uint32(cut(4))
				continue
			case wire.SubscriptionIdentifier:
				h.identifiers = append(h.identifiers, number())
				continue
			case wire.UserProperty:
				text()
				text()
			default:
				text()
			}
			h.properties += string(before[:len(before)-len(in)])
		}
	}
	h.payload = string(in)
	return h
}

// ack acknowledges a message.
func (c *messenger) ack(h heard) {
	c.t.Helper()
	c.write(rawmqtt.Packet(wire.Puback, 0, rawmqtt.Body(nil).Uint16(h.id)))
}

// mustHear reads messages with these payloads, acknowledges them, and returns them.
func (c *messenger) mustHear(payloads ...string) (all []heard) {
	c.t.Helper()
	for _, want := range payloads {
		h := c.next()
		if h.payload != want {
			c.t.Fatalf("%s: heard %.80q, want %.80q", c.id, h.payload, want)
		}
		if h.qos > 0 {
			c.ack(h)
		}
		all = append(all, h)
	}
	return all
}

// mustEnd reads until the connection ends, and returns the reason code of the DISCONNECT, or
// -1 if there was none.
func (c *messenger) mustEnd() (code int) {
	c.t.Helper()
	_ = c.conn.SetReadDeadline(time.Now().Add(patience))
	for code = -1; ; {
		packet, err := c.tryRead()
		if err != nil {
			if errors.Is(err, os.ErrDeadlineExceeded) {
				c.t.Errorf("%s: still connected", c.id)
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

// farewell disconnects normally, and waits until the server has noticed.
func (c *messenger) farewell() {
	c.t.Helper()
	c.write([]byte{0xe0, 0})
	c.mustEnd()
}

func numbered(n int) (payloads []string) {
	for i := range n {
		payloads = append(payloads, fmt.Sprintf("%05d", i))
	}
	return payloads
}
