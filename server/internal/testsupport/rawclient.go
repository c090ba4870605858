package testsupport

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/tenurelock/tenure/internal/frame"
	"github.com/tenurelock/tenure/internal/wire"
)

// DialTCP returns a connection that Patience bounds and the end of the test closes.
func DialTCP(t testing.TB, address string) net.Conn {
	t.Helper()
	conn, err := net.Dial("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	_ = conn.SetDeadline(time.Now().Add(Patience))
	return conn
}

// Send writes data to a connection.
func Send(t testing.TB, conn net.Conn, data string) {
	t.Helper()
	if _, err := io.WriteString(conn, data); err != nil {
		t.Fatal(err)
	}
}

// MustDisconnect fails unless the next packet is a DISCONNECT with this reason, and the last.
func (c *RawClient) MustDisconnect(code byte, reason string) {
	c.T.Helper()
	rest, err := io.ReadAll(c.Input)
	want := string(frame.AppendDisconnect(nil, code, reason))
	if err != nil || string(rest) != want {
		c.T.Errorf("%s: %q, %v\nwant %q", c.ID, rest, err, want)
	}
}

// RawClient is an MQTT client that writes and reads packets as bytes. Its methods are for the
// goroutine of the test.
type RawClient struct {
	T     testing.TB
	ID    string
	Conn  net.Conn
	Input *bufio.Reader
	Sent  uint16 // the latest packet identifier
	Stamp string // the __ts of its requests
}

// ConnectRaw returns a client that is subscribed to its response topic. keepAlive is in
// seconds; properties are the encoded properties of its CONNECT.
func ConnectRaw(t testing.TB, conn net.Conn, id string, keepAlive byte, properties string) *RawClient {
	t.Helper()
	t.Cleanup(func() { _ = conn.Close() })
	_ = conn.SetDeadline(time.Now().Add(Patience))
	c := &RawClient{T: t, ID: id, Conn: conn, Input: bufio.NewReader(conn), Stamp: InAMinute()}
	c.Write(Packet(0x10, Text("MQTT"), []byte{5, 2, 0, keepAlive, byte(len(properties))}, []byte(properties), Text(id)))
	if ack := c.Read(); ack[0] != 0x20 || ack[3] != 0 {
		t.Fatalf("CONNACK %x", ack)
	}
	c.Subscribe(c.Topic())
	return c
}

// Topic returns the response topic.
func (c *RawClient) Topic() string { return "clients/" + c.ID + "/response" }

// Write writes packets in one call.
func (c *RawClient) Write(packets ...[]byte) {
	c.T.Helper()
	if _, err := c.Conn.Write(bytes.Join(packets, nil)); err != nil {
		c.T.Fatal(err)
	}
}

// TryRead returns the next packet, or why there is none.
func (c *RawClient) TryRead() ([]byte, error) {
	header, err := c.Input.Peek(2)
	for n := 2; err == nil && header[n-1] >= 0x80; n++ {
		header, err = c.Input.Peek(n + 1)
	}
	if err != nil {
		return nil, err
	}
	size, _, _ := wire.Size(header)
	packet := make([]byte, size)
	_, err = io.ReadFull(c.Input, packet)
	return packet, err
}

// Read returns the next packet.
func (c *RawClient) Read() []byte {
	c.T.Helper()
	packet, err := c.TryRead()
	if err != nil {
		c.T.Fatalf("%s: %v", c.ID, err)
	}
	return packet
}

// ReadReply reads a reply, and its PUBACK.
func (c *RawClient) ReadReply() frame.Publish {
	c.T.Helper()
	reply, ok := frame.ParsePublish(c.Read())
	if ack := c.Read(); !ok || ack[0] != 0x40 {
		c.T.Fatalf("%s: got %v and %x, want a reply and a PUBACK", c.ID, reply, ack)
	}
	return reply
}

// Subscribe subscribes with QoS 1, which must be granted.
func (c *RawClient) Subscribe(topic string) {
	c.Change(Packet(0x82, []byte{0, 9, 0}, Text(topic), []byte{1}))
}

// Unsubscribe ends a subscription.
func (c *RawClient) Unsubscribe(topic string) { c.Change(Packet(0xa2, []byte{0, 9, 0}, Text(topic))) }

// Change sends a SUBSCRIBE or UNSUBSCRIBE packet and reads its acknowledgement.
func (c *RawClient) Change(request []byte) {
	c.T.Helper()
	c.Write(request)
	if ack := c.Read(); ack[len(ack)-1] > 1 {
		c.T.Fatalf("%s: %x for %q", c.ID, ack, request)
	}
}

// Packet returns a packet with this first byte and this body.
func Packet(first byte, parts ...[]byte) []byte {
	body := bytes.Join(parts, nil)
	return append(binary.AppendUvarint([]byte{first}, uint64(len(body))), body...)
}

// Text encodes a string with its length.
func Text(s string) []byte { return append(binary.BigEndian.AppendUint16(nil, uint16(len(s))), s...) }

// Request returns the next request to the store.
func (c *RawClient) Request(words ...string) frame.Message {
	if c.Sent++; c.Sent == 0 {
		c.Sent = 1
	}
	return frame.Message{
		Topic:           InvokeTopic,
		QoS:             1,
		PacketID:        c.Sent,
		ResponseTopic:   c.Topic(),
		CorrelationData: fmt.Appendf(nil, "%016d", c.Sent),
		User:            []frame.UserProperty{{Name: "__ts", Value: c.Stamp}},
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

// PacketOf encodes a message.
func PacketOf(t testing.TB, message frame.Message) []byte {
	t.Helper()
	packet, err := message.Append(nil)
	if err != nil {
		t.Fatal(err)
	}
	return packet
}

// DialRaw connects a RawClient over TCP.
func DialRaw(t testing.TB, address, id string) *RawClient {
	t.Helper()
	return ConnectRaw(t, DialTCP(t, address), id, 60, "")
}

// ReadAll returns what arrives, sorted: as many packets as wanted and what else comes before
// the reply to a PINGREQ or, where the connection ends, until its end.
func (c *RawClient) ReadAll(wants int, ends bool) (packets [][]byte) {
	c.T.Helper()
	for range wants {
		packets = append(packets, c.Read())
	}
	if !ends {
		c.Write([]byte{0xc0, 0})
	}
	for {
		packet, err := c.TryRead()
		if errors.Is(err, os.ErrDeadlineExceeded) || (err != nil) != ends && err != nil {
			c.T.Fatal(err)
		}
		if err != nil || packet[0] == 0xd0 {
			break
		}
		packets = append(packets, packet)
	}
	slices.SortFunc(packets, bytes.Compare)
	return packets
}
