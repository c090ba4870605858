package server_test

import (
	"bufio"
	"bytes"
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"slices"
	"strings"

	"testing"

	"time"

	"github.com/tenurelock/tenure/internal/frame"
	"github.com/tenurelock/tenure/server"
	"github.com/tenurelock/tenure/server/access"
	"github.com/tenurelock/tenure/statestore"
)

// raw is a client that writes and reads bytes.
type raw struct {
	t     testing.TB
	id    string
	conn  net.Conn
	input *bufio.Reader
	sent  uint16 // packet identifiers
	stamp string // __ts
}

// connectRaw returns a client that listens on its response topic. keepAlive is in
// seconds; properties are those of its CONNECT.
func connectRaw(t testing.TB, conn net.Conn, id string, keepAlive byte, properties string) *raw {
	t.Helper()
	t.Cleanup(func() { _ = conn.Close() })
	_ = conn.SetDeadline(time.Now().Add(patience))
	c := &raw{t: t, id: id, conn: conn, input: bufio.NewReader(conn), stamp: inAMinute()}
	c.write(packet(0x10, text("MQTT"), []byte{5, 2, 0, keepAlive, byte(len(properties))}, []byte(properties), text(id)))
	if ack := c.read(); ack[0] != 0x20 || ack[3] != 0 {
		t.Fatalf("CONNACK %x", ack)
	}
	c.subscribe(c.topic())
	return c
}

func (c *raw) topic() string { return "clients/" + c.id + "/response" }

func (c *raw) write(packets ...[]byte) {
	c.t.Helper()
	if _, err := c.conn.Write(bytes.Join(packets, nil)); err != nil {
		c.t.Fatal(err)
	}
}

// tryRead returns the next packet.
func (c *raw) tryRead() ([]byte, error) {
	header, err := c.input.Peek(2)
	for n := 2; err == nil && header[n-1] >= 0x80; n++ {
		header, err = c.input.Peek(n + 1)
	}
	if err != nil {
		return nil, err
	}
	size, _, _ := frame.Size(header)
	packet := make([]byte, size)
	_, err = io.ReadFull(c.input, packet)
	return packet, err
}

func (c *raw) read() []byte {
	c.t.Helper()
	packet, err := c.tryRead()
	if err != nil {
		c.t.Fatalf("%s: %v", c.id, err)
	}
	return packet
}

// readReply reads a reply, and its PUBACK.
func (c *raw) readReply() frame.Publish {
	c.t.Helper()
	reply, ok := frame.ParsePublish(c.read())
	if ack := c.read(); !ok || ack[0] != 0x40 {
		c.t.Fatalf("%s: got %v and %x, want a reply and a PUBACK", c.id, reply, ack)
	}
	return reply
}

func (c *raw) subscribe(topic string) {
	c.change(packet(0x82, []byte{0, 9, 0}, text(topic), []byte{1}))
}

func (c *raw) unsubscribe(topic string) { c.change(packet(0xa2, []byte{0, 9, 0}, text(topic))) }

// change changes a subscription.
func (c *raw) change(request []byte) {
	c.t.Helper()
	c.write(request)
	if ack := c.read(); ack[len(ack)-1] > 1 {
		c.t.Fatalf("%s: %x for %q", c.id, ack, request)
	}
}

// packet returns a packet with this first byte.
func packet(first byte, parts ...[]byte) []byte {
	body := bytes.Join(parts, nil)
	return append(binary.AppendUvarint([]byte{first}, uint64(len(body))), body...)
}

// text returns a string as packets have it.
func text(s string) []byte { return append(binary.BigEndian.AppendUint16(nil, uint16(len(s))), s...) }

// request returns what a request is made of.
func (c *raw) request(words ...string) frame.Message {
	if c.sent++; c.sent == 0 {
		c.sent = 1
	}
	return frame.Message{
		Topic:           invokeTopic,
		QoS:             1,
		PacketID:        c.sent,
		ResponseTopic:   c.topic(),
		CorrelationData: fmt.Appendf(nil, "%016d", c.sent),
		User:            []frame.UserProperty{{Name: "__ts", Value: c.stamp}},
		Payload:         command(words...),
	}
}

// do sends a request, and returns the payload of its reply.
func (c *raw) do(words ...string) string {
	c.t.Helper()
	c.write(packetOf(c.t, c.request(words...)))
	return string(c.readReply().Payload)
}

// inAMinute returns a timestamp that is ahead of all clocks. Versions do not depend on
// those then.
func inAMinute() string { return fmt.Sprintf("%d:0:p", time.Now().Add(50*time.Second).UnixMilli()) }

func packetOf(t testing.TB, message frame.Message) []byte {
	t.Helper()
	packet, err := message.Append(nil)
	if err != nil {
		t.Fatal(err)
	}
	return packet
}

func rawTo(t testing.TB, address, id string) *raw {
	t.Helper()
	return connectRaw(t, socketTo(t, address), id, 60, "")
}

func socketTo(t testing.TB, address string) net.Conn {
	t.Helper()
	conn, err := net.Dial("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	_ = conn.SetDeadline(time.Now().Add(patience))
	return conn
}

// denied is an Authorizer that refuses one key.
type denied string

func (d denied) Authorize(_ access.Identity, _ statestore.Verb, key string) bool {
	return key != string(d)
}

// What follows a PUBLISH's fixed header of two bytes, the topic and the identifier.
const propertiesAt = 3 + 2 + len(invokeTopic) + 2

// Each request is answered once, in the form that it asks for, or refused in the way that the
// standard has for it; and the server goes on. What the replies say is tested by the
// conformance tests.
func TestEachPacketGetsAsManyAnswersAsItShould(t *testing.T) {
	change := func(words []string, change func(*frame.Message)) func(*raw) []byte {
		return func(c *raw) []byte {
			message := c.request(words...)
			if change != nil {
				change(&message)
			}
			return packetOf(c.t, message)
		}
	}
	plain := func(words ...string) func(*raw) []byte { return change(words, nil) }
	flags := func(first byte) func(*raw) []byte {
		return func(c *raw) []byte {
			packet := plain("SET", "k", "w")(c)
			packet[0] = first
			return packet
		}
	}
	get := []string{"GET", "k"}
	for _, test := range []struct {
		name    string
		packet  func(*raw) []byte
		ends    bool   // the connection
		wants   int    // packets, if it does not
		limit   uint32 // the client's Maximum Packet Size
		maximum uint32 // the server's; default 8192
	}{
		{name: "SET", packet: plain("SET", "k", "w"), wants: 2},
		{name: "SET of another key", packet: plain("SET", "new", "w"), wants: 2},
		{name: "acquiring", packet: plain("SET", "lock", "p", "NEX", "PX", "10000"), wants: 2},
		{name: "acquiring what is held", packet: plain("SET", "k", "p", "NEX", "PX", "10000"), wants: 2},
		{name: "renewing", packet: plain("SET", "k", "v", "NEX", "PX", "10000"), wants: 2},
		{name: "GET", packet: plain(get...), wants: 2},
		{name: "GET of nothing", packet: plain("GET", "nothing"), wants: 2},
		{name: "DEL", packet: plain("DEL", "k"), wants: 2},
		{name: "VDEL of another value", packet: plain("VDEL", "k", "w"), wants: 2},
		{name: "VDEL", packet: plain("VDEL", "k", "v"), wants: 2},
		{name: "KEYNOTIFY", packet: plain("KEYNOTIFY", "other"), wants: 2},
		{name: "a token", packet: change([]string{"SET", "guarded", "w"}, func(m *frame.Message) {
			m.User = append(m.User, frame.UserProperty{Name: "__ft", Value: "1:0:p"})
		}), wants: 2},
		{name: "no token", packet: plain("SET", "fenced", "w"), wants: 2},
		{name: "no timestamp", packet: change([]string{"SET", "k", "w"}, func(m *frame.Message) { m.User = nil }), wants: 2},
		{name: "an empty timestamp", packet: change([]string{"SET", "k", "w"}, func(m *frame.Message) { m.User[0].Value = "" }), wants: 2},
		{name: "two timestamps", packet: change([]string{"SET", "k", "w"}, func(m *frame.Message) {
			m.User = append(m.User, frame.UserProperty{Name: "__ts", Value: "x"})
		}), wants: 2},
		{name: "a key that is denied", packet: plain("SET", "secret", "w"), wants: 2},
		{name: "no such verb", packet: plain("SETT", "k", "w"), wants: 2},
		{name: "no RESP3", packet: change(nil, func(m *frame.Message) { m.Payload = []byte("SET k w") }), wants: 2},
		{name: "no payload", packet: change(nil, func(m *frame.Message) { m.Payload = nil }), wants: 2},
		{name: "all that deployed clients send", packet: change(get, func(m *frame.Message) {
			m.MessageExpiry, m.ContentType = 10, "application/octet-stream"
			m.User = append(m.User, frame.UserProperty{Name: "__srcId", Value: "p"}, frame.UserProperty{Name: "$partition", Value: "p"})
		}), wants: 2},
		{name: "said to be a duplicate", packet: flags(0x3a), wants: 2},
		{name: "the hex form of the response topic, unread", packet: change(get, func(m *frame.Message) { m.ResponseTopic = "clients/70/response" }), wants: 1},
		{name: "a topic that somebody else reads too", packet: change(get, func(m *frame.Message) { m.ResponseTopic = "both" }), wants: 2},
		{name: "a topic with a subscription identifier", packet: change(get, func(m *frame.Message) { m.ResponseTopic = "identified" }), wants: 2},
		{name: "a reply that is too large", packet: plain("GET", "large"), wants: 2, limit: 300},
		{name: "a reply that is a byte too large", packet: plain(get...), wants: 1, limit: 169},
		{name: "a reply that is just not too large", packet: plain(get...), wants: 2, limit: 170},
		{name: "a reply that would fit without properties", packet: plain(get...), wants: 1, limit: 90},

		{name: "QoS 0", packet: change(get, func(m *frame.Message) { m.QoS = 0 })},
		{name: "retained", packet: flags(0x33), wants: 1},
		{name: "QoS 2", packet: flags(0x34), ends: true},
		{name: "QoS 3", packet: flags(0x36), ends: true},
		{name: "no identifier", packet: func(c *raw) []byte {
			packet := plain(get...)(c)
			packet[propertiesAt-2], packet[propertiesAt-1] = 0, 0
			return packet
		}, ends: true},
		{name: "no response topic", packet: change(get, func(m *frame.Message) { m.ResponseTopic = "" }), wants: 1},
		{name: "no correlation data", packet: change(get, func(m *frame.Message) { m.CorrelationData = nil }), wants: 1},
		{name: "a reply for another", packet: change(get, func(m *frame.Message) { m.ResponseTopic = "clients/other/response" }), wants: 1},
		{name: "a reply with a wildcard", packet: change(get, func(m *frame.Message) { m.ResponseTopic = "clients/p/+" }), ends: true},
		{name: "a reply on the system topic", packet: change(get, func(m *frame.Message) { m.ResponseTopic = invokeTopic }), ends: true},
		{name: "a forged notification", packet: change(get, func(m *frame.Message) { m.ResponseTopic = reservedPrefix + "/70/command/notify/6B" }), ends: true},
		{name: "an ordinary message", packet: change(get, func(m *frame.Message) { m.Topic = "factory/news" }), wants: 1},
		{name: "a message to itself", packet: change(get, func(m *frame.Message) { m.Topic = "clients/p/response" }), wants: 2},
		{name: "below the system topic", packet: change(get, func(m *frame.Message) { m.Topic = invokeTopic + "/x" }), wants: 1},
		{name: "a topic alias", packet: func(c *raw) []byte {
			return packet(0x32, text(invokeTopic), []byte{0, 7, 3, 0x23, 0, 1}, command(get...))
		}, ends: true},
		{name: "a property that does not exist", packet: func(c *raw) []byte {
			return packet(0x32, text(invokeTopic), []byte{0, 7, 2, 0x7f, 0}, command(get...))
		}, ends: true},
		{name: "properties that do not end", packet: func(c *raw) []byte {
			return packet(0x32, text(invokeTopic), []byte{0, 7, 0x7f, 1, 1}, command(get...))
		}, ends: true},
		{name: "a long one", packet: plain("SET", "k", strings.Repeat("w", 5000)), wants: 2},
		{name: "one that is too long for the server", packet: plain("SET", "k", strings.Repeat("w", 3000)), maximum: 2048, ends: true},
		{name: "one that is too long", packet: plain("SET", "k", strings.Repeat("w", 9000)), ends: true},
	} {
		t.Run(test.name, func(t *testing.T) {
			address := start(t, server.Options{Store: statestore.Options{Identity: "the store"}, Authorizer: denied("secret"), MaxPacketSize: cmp.Or(test.maximum, 8192)})
			rawTo(t, address, "reader").subscribe("both")
			other := rawTo(t, address, "other")
			other.do("SET", "k", "v")
			other.do("SET", "large", strings.Repeat("v", 400))
			fenced := other.request("SET", "fenced", "v")
			fenced.User = append(fenced.User, frame.UserProperty{Name: "__ft", Value: "5:0:p"})
			other.write(packetOf(t, fenced))
			other.readReply()
			var properties []byte
			if test.limit > 0 {
				properties = binary.BigEndian.AppendUint32([]byte{0x27}, test.limit)
			}
			c := connectRaw(t, socketTo(t, address), "p", 60, string(properties))
			c.subscribe("both")
			c.change(packet(0x82, []byte{0, 9, 2, 0x0b, 5}, text("identified"), []byte{1}))
			c.write(test.packet(c))
			if got := c.readAll(test.wants, test.ends); !test.ends && len(got) != test.wants {
				t.Errorf("read %d packets, want %d: %q", len(got), test.wants, got)
			}
			if got := other.do("GET", "nothing"); got != "$-1\r\n" {
				t.Errorf("another client reads %q", got)
			}
		})
	}
}

// readAll returns what arrives, in no order: so many packets, and none before the answer
// to a PINGREQ; or all until the end.
func (c *raw) readAll(wants int, ends bool) (packets [][]byte) {
	c.t.Helper()
	for range wants {
		packets = append(packets, c.read())
	}
	if !ends {
		c.write([]byte{0xc0, 0})
	}
	for {
		packet, err := c.tryRead()
		if errors.Is(err, os.ErrDeadlineExceeded) || (err != nil) != ends && err != nil {
			c.t.Fatal(err)
		}
		if err != nil || packet[0] == 0xd0 {
			break
		}
		packets = append(packets, packet)
	}
	slices.SortFunc(packets, bytes.Compare)
	return packets
}
