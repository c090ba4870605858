package testsupport

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/eclipse/paho.golang/packets"

	"github.com/tenurelock/tenure/internal/mqtt"
	"github.com/tenurelock/tenure/server/internal/rawmqtt"
)

// RawClient is an MQTT client that writes and reads packets as bytes. It has no goroutine and little memory, so
// that a test can have thousands. Methods that return no error fail the test, and are for its goroutine.
type RawClient struct {
	T       testing.TB // nil for a client of TryDialRaw, which has methods that return errors only
	ID      string
	ReplyTo string // its response topic
	Conn    net.Conn
	Input   *bufio.Reader
	Sent    uint16 // the latest packet identifier
	Stamp   string // the __ts of its requests

	Present bool // the CONNACK said: session present
}

// ConnectRaw returns a client that is subscribed to its response topic. keepAlive is in
// seconds; properties are the encoded properties of its CONNECT.
func ConnectRaw(t testing.TB, conn net.Conn, id string, keepAlive byte, properties string) *RawClient {
	t.Helper()
	t.Cleanup(func() { _ = conn.Close() })
	c := NewRaw(t, conn, id)
	connect := ConnectPacket{ID: id, KeepAlive: uint16(keepAlive), Properties: rawmqtt.Body(properties)}
	if err := c.login(connect.Packet()); err != nil {
		t.Fatal(err)
	}
	return c
}

// DialRaw connects a RawClient over TCP.
func DialRaw(t testing.TB, address, id string) *RawClient {
	t.Helper()
	return ConnectRaw(t, DialTCP(t, address), id, 240, "")
}

// TryDialRaw is DialRaw for other goroutines than the test's. The caller closes the connection.
func TryDialRaw(address, id string) (*RawClient, error) {
	conn, err := net.Dial("tcp", address)
	if err != nil {
		return nil, err
	}
	c := NewRaw(nil, conn, id)
	if err := c.login(ConnectPacket{ID: id}.Packet()); err != nil {
		_ = conn.Close()
		return nil, fmt.Errorf("%s: %w", id, err)
	}
	return c, nil
}

// NewRaw returns a client on a connection, which has sent nothing yet.
func NewRaw(t testing.TB, conn net.Conn, id string) *RawClient {
	return &RawClient{T: t, ID: id, ReplyTo: "clients/" + id + "/response", Conn: conn, Input: bufio.NewReader(conn),
		Stamp: InAMinute()}
}

// login sends a CONNECT, and subscribes to the response topic.
func (c *RawClient) login(connect []byte) error {
	c.ExtendDeadline()
	for _, step := range []struct {
		packet []byte
		kind   byte
	}{{connect, packets.CONNACK}, {rawmqtt.SubscribeTo(60000, 1, c.ReplyTo), packets.SUBACK}} {
		if _, err := c.Conn.Write(step.packet); err != nil {
			return err
		}
		answer, err := c.Receive()
		if err != nil {
			return err
		}
		if answer[0]>>4 != step.kind || step.kind == packets.CONNACK && answer[3] != 0 {
			return fmt.Errorf("got %q, want a packet of type %d", answer, step.kind)
		}
	}
	return nil
}

// ExtendDeadline bounds the next calls. Under load each client waits for all the others.
func (c *RawClient) ExtendDeadline() { _ = c.Conn.SetDeadline(time.Now().Add(3 * Patience)) }

// Receive returns the next packet. A DISCONNECT is an error.
func (c *RawClient) Receive() ([]byte, error) {
	packet, err := c.TryRead()
	if err == nil && packet[0]>>4 == packets.DISCONNECT {
		return nil, fmt.Errorf("the server sent DISCONNECT %x", packet)
	}
	return packet, err
}

// Exchange is a request and the reply that it must get.
type Exchange struct {
	Words []string
	Want  string
}

// RequestNumber returns the request number n, which it also returns on another connection of the client.
func (c *RawClient) RequestNumber(n int, words ...string) mqtt.Message {
	request := c.Request(words...)
	request.PacketID, request.CorrelationData = uint16(1+n%50000), c.correlation(n)
	request.User[0].Value = fmt.Sprintf("%d:0:%s", time.Now().UnixMilli(), c.ID)
	return request
}

func (c *RawClient) correlation(n int) []byte { return fmt.Appendf(nil, "%s/%08d", c.ID, n) }

// Exchange sends requests numbered from first, and then reads their replies. change, which may be nil,
// alters each request.
func (c *RawClient) Exchange(first int, change func(*mqtt.Message), exchanges ...Exchange) error {
	if err := c.SendRequests(first, change, exchanges...); err != nil {
		return err
	}
	return c.ReadReplies(first, exchanges...)
}

// MustDo sends the request number n and fails unless want is the reply.
func (c *RawClient) MustDo(t testing.TB, n int, want string, words ...string) {
	t.Helper()
	if err := c.Exchange(n, nil, Exchange{words, want}); err != nil {
		t.Fatalf("%s: %v", c.ID, err)
	}
}

// SendRequests sends requests numbered from first, in one write.
func (c *RawClient) SendRequests(first int, change func(*mqtt.Message), exchanges ...Exchange) (err error) {
	c.ExtendDeadline()
	var requests []byte
	for i, exchange := range exchanges {
		request := c.RequestNumber(first+i, exchange.Words...)
		if change != nil {
			change(&request)
		}
		if requests, err = request.Append(requests); err != nil {
			return err
		}
	}
	_, err = c.Conn.Write(requests)
	return err
}

// ReadReplies reads exactly the replies and acknowledgements of these requests, in order.
// Notifications may come in between.
func (c *RawClient) ReadReplies(first int, exchanges ...Exchange) error {
	replies, acks := 0, 0
	for replies < len(exchanges) || acks < len(exchanges) {
		packet, err := c.Receive()
		if err != nil {
			return fmt.Errorf("after %d replies and %d acknowledgements to requests %d and later: %w", replies, acks, first, err)
		}
		if ack, ok := ParsePuback(packet); ok {
			if want := uint16(1 + (first+acks)%50000); acks == len(exchanges) || ack.PacketID != want || ack.ReasonCode >= 0x80 {
				return fmt.Errorf("PUBACK %+v, want one of packet id %d", ack, want)
			}
			acks++
			continue
		}
		reply, ok := ParsePublish(packet)
		if ok && bytes.HasPrefix(reply.Topic, []byte(ReservedPrefix)) {
			continue
		}
		if !ok || replies == len(exchanges) {
			return fmt.Errorf("got %x, want no more packets but PUBACKs", packet)
		}
		if want := c.correlation(first + replies); string(reply.Topic) != c.ReplyTo ||
			!bytes.Equal(reply.CorrelationData, want) {
			return fmt.Errorf("a reply to %q on %s, want one to %q", reply.CorrelationData, reply.Topic, want)
		}
		if got, want := string(reply.Payload), exchanges[replies].Want; got != want {
			return fmt.Errorf("%q is answered %q, want %q", exchanges[replies].Words, got, want)
		}
		replies++
	}
	return nil
}

// TryDisconnect ends the connection. It fails if an unexpected packet had arrived.
func (c *RawClient) TryDisconnect() error {
	defer c.Conn.Close()
	c.ExtendDeadline()
	if _, err := c.Conn.Write([]byte{packets.PINGREQ << 4, 0}); err != nil {
		return err
	}
	packet, err := c.Receive()
	if err != nil {
		return fmt.Errorf("%s: at the end: %w", c.ID, err)
	}
	if packet[0]>>4 != packets.PINGRESP {
		return fmt.Errorf("%s: at the end: got %x", c.ID, packet)
	}
	_, err = c.Conn.Write([]byte{packets.DISCONNECT << 4, 0})
	return err
}

// Reset resets the connection, without DISCONNECT and TIME_WAIT.
func (c *RawClient) Reset() {
	_ = c.Conn.(*net.TCPConn).SetLinger(0)
	_ = c.Conn.Close()
}

// WriteString writes bytes that need not be a packet, and may reach no server.
func (c *RawClient) WriteString(data string) { _, _ = io.WriteString(c.Conn, data) }

// Write writes packets in one call.
func (c *RawClient) Write(packets ...[]byte) {
	c.T.Helper()
	if _, err := c.Conn.Write(bytes.Join(packets, nil)); err != nil {
		c.T.Fatal(err)
	}
}

// ReasonCode waits for the CONNACK and returns its reason code.
func (c *RawClient) ReasonCode() byte {
	c.T.Helper()
	packet := c.Read()
	if packet[0] != 0x20 {
		c.T.Fatalf("%s: got %x, want a CONNACK", c.ID, packet)
	}
	return packet[3]
}

// TryRead returns the next packet, or why there is none.
func (c *RawClient) TryRead() ([]byte, error) { return rawmqtt.Read(c.Input) }

// Read returns the next packet.
func (c *RawClient) Read() []byte {
	c.T.Helper()
	packet, err := c.TryRead()
	if err != nil {
		c.T.Fatalf("%s: %v", c.ID, err)
	}
	return packet
}

// ReadReply reads a reply, and its PUBACK, which comes first where the reply waits for a commit.
func (c *RawClient) ReadReply() mqtt.Publish {
	c.T.Helper()
	packet, ack := c.Read(), c.Read()
	if packet[0] == 0x40 {
		packet, ack = ack, packet
	}
	reply, ok := ParsePublish(packet)
	if !ok || ack[0] != 0x40 {
		c.T.Fatalf("%s: got %v and %x, want a reply and a PUBACK", c.ID, reply, ack)
	}
	return reply
}

// ParsePublish decodes a packet, and reports false if it is no PUBLISH of MQTT 5.
func ParsePublish(packet []byte) (mqtt.Publish, bool) {
	var p mqtt.Publish
	ok := p.Decode(packet, new(mqtt.Limits)) == nil
	return p, ok
}

// ParsePuback decodes a packet, and reports false if it is no PUBACK of MQTT 5.
func ParsePuback(packet []byte) (mqtt.Puback, bool) {
	var ack mqtt.Puback
	ok := mqtt.Type(packet) == packets.PUBACK && ack.Decode(packet, new(mqtt.Limits)) == nil
	return ack, ok
}

// Packet returns a packet with this first byte and this body.
func Packet(first byte, parts ...[]byte) []byte {
	return rawmqtt.Packet(first>>4, first, bytes.Join(parts, nil))
}

// Text encodes a string with its length.
func Text(s string) []byte { return rawmqtt.Body(nil).Text(s) }

func (c *RawClient) nextID() uint16 {
	c.Sent = max(1, c.Sent+1)
	return c.Sent
}

// Request returns the next request to the store.
func (c *RawClient) Request(words ...string) mqtt.Message {
	id := c.nextID()
	return mqtt.Message{
		Topic:           InvokeTopic,
		QoS:             1,
		PacketID:        id,
		ResponseTopic:   c.ReplyTo,
		CorrelationData: fmt.Appendf(nil, "%016d", id),
		User:            []mqtt.UserProperty{{Name: "__ts", Value: c.Stamp}, {Name: "__protVer", Value: "1.0"}},
		Payload:         Command(words...),
	}
}

// Do sends a request, and returns the payload of its reply.
func (c *RawClient) Do(words ...string) string {
	c.T.Helper()
	c.Write(PacketOf(c.T, c.Request(words...)))
	return string(c.ReadReply().Payload)
}

// InAMinute returns a timestamp ahead of all clocks, so that versions do not depend on them.
func InAMinute() string { return fmt.Sprintf("%d:0:p", time.Now().Add(50*time.Second).UnixMilli()) }

// Again returns a PUBLISH as it is delivered again: with DUP.
func Again(packet []byte) []byte {
	again := slices.Clone(packet)
	again[0] |= 8
	return again
}

// PacketOf encodes a message.
func PacketOf(t testing.TB, message mqtt.Message) []byte {
	t.Helper()
	packet, err := message.Append(nil)
	if err != nil {
		t.Fatal(err)
	}
	return packet
}

// ShrinkReadBuffer makes the socket buffer of the client small, so that it holds few unread
// bytes.
func (c *RawClient) ShrinkReadBuffer() *RawClient {
	_ = c.Conn.(*net.TCPConn).SetReadBuffer(4 << 10) // more time is needed if it fails
	return c
}

// NoLocal is an option of a subscription.
const NoLocal = 0x04

// Filter subscribes to filters and returns the reason codes.
func (c *RawClient) Filter(options byte, filters ...string) (codes []byte) {
	c.T.Helper()
	c.Write(rawmqtt.SubscribeTo(9, options, filters...))
	ack := c.Read()
	if ack[0] != 0x90 || len(ack) < len(filters) {
		c.T.Fatalf("%s: got %x, want a SUBACK", c.ID, ack)
	}
	return ack[len(ack)-len(filters):]
}

// Subscribe subscribes to filters with QoS 1, which must be granted.
func (c *RawClient) Subscribe(filters ...string) {
	c.T.Helper()
	if codes := c.Filter(1, filters...); slices.Max(codes) > 1 {
		c.T.Fatalf("%s: SUBACK %x for %q", c.ID, codes, filters)
	}
}

// Send writes a PUBLISH packet.
func (c *RawClient) Send(m rawmqtt.Message) {
	c.T.Helper()
	if m.QoS > 0 && m.ID == 0 {
		m.ID = c.nextID()
	}
	c.Write(m.Packet())
}

// Publish sends a message with QoS 1, and returns the reason code of its PUBACK, which must
// be the next packet.
func (c *RawClient) Publish(m rawmqtt.Message) (code byte) {
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
func (c *RawClient) MustPublish(topic string, payloads ...string) {
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
	Expiry         uint32
	Properties     string // all other properties, encoded
}

// Next returns the next message, which must be the next packet.
func (c *RawClient) Next() Message {
	c.T.Helper()
	packet := c.Read()
	if packet[0]>>4 != packets.PUBLISH {
		c.T.Fatalf("%s: got %x, want a message", c.ID, packet)
	}
	var p mqtt.Publish
	if refusal := p.Decode(packet, new(mqtt.Limits)); refusal != nil {
		c.T.Fatalf("%s: %x: %v", c.ID, packet, refusal)
	}
	m := Message{
		Topic: string(p.Topic), Payload: string(p.Payload), Dup: p.Duplicate, Retain: p.Retain, QoS: p.QoS, ID: p.PacketID,
		Expiry: p.MessageExpiry,
	}
	for rest := mqtt.Reader(p.Raw()); len(rest) > 0; {
		before := rest
		switch property, _ := rest.Property(); property.Identifier {
		case packets.PropMessageExpiry:
		default:
			m.Properties += string(before[:len(before)-len(rest)])
		}
	}
	return m
}

// Ack sends the PUBACK of a message.
func (c *RawClient) Ack(h Message) {
	c.T.Helper()
	c.Write(rawmqtt.Packet(packets.PUBACK, 0, rawmqtt.Body(nil).Uint16(h.ID)))
}

// MustReceive reads messages, which must have these payloads, acknowledges and returns them.
func (c *RawClient) MustReceive(payloads ...string) (all []Message) {
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
func (c *RawClient) MustBeClosed() (code int) {
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
func (c *RawClient) Disconnect() {
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
