package integration_test

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/eclipse/paho.golang/packets"

	"github.com/tenurelock/tenure/internal/mqtt"
	"github.com/tenurelock/tenure/server"
	"github.com/tenurelock/tenure/server/internal/testsupport"
	"github.com/tenurelock/tenure/statestore"
)

// What follows a PUBLISH's fixed header of two bytes, the topic and the identifier.
const propertiesAt = 3 + 2 + len(testsupport.InvokeTopic) + 2

// Each request gets one reply, in the form that it asks for, or the refusal that the standard defines,
// and the server goes on. The conformance tests check the content of the replies.
func TestEachPacketGetsAsManyAnswersAsItShould(t *testing.T) {
	change := func(words []string, change func(*mqtt.Message)) func(*testsupport.RawClient) []byte {
		return func(c *testsupport.RawClient) []byte {
			message := c.Request(words...)
			if change != nil {
				change(&message)
			}
			return testsupport.PacketOf(c.T, message)
		}
	}
	plain := func(words ...string) func(*testsupport.RawClient) []byte { return change(words, nil) }
	flags := func(first byte) func(*testsupport.RawClient) []byte {
		return func(c *testsupport.RawClient) []byte {
			packet := plain("SET", "k", "w")(c)
			packet[0] = first
			return packet
		}
	}
	get := []string{"GET", "k"}
	for _, test := range []struct {
		name    string
		packet  func(*testsupport.RawClient) []byte
		ends    bool   // the connection
		wants   int    // packets, if it does not
		limit   uint32 // the client's Maximum Packet Size
		maximum uint32 // the server's; default 8192
	}{
		{name: "SET", packet: plain("SET", "k", "w"), wants: 2},
		{name: "KEYNOTIFY", packet: plain("KEYNOTIFY", "other"), wants: 2},
		{name: "a token", packet: change([]string{"SET", "guarded", "w"}, func(m *mqtt.Message) {
			m.User = append(m.User, mqtt.UserProperty{Name: "__ft", Value: "1:0:p"})
		}), wants: 2},
		{name: "no token", packet: plain("SET", "fenced", "w"), wants: 2},
		{name: "all that deployed clients send", packet: change(get, func(m *mqtt.Message) {
			m.MessageExpiry, m.ContentType = 10, "application/octet-stream"
			m.User = append(m.User, mqtt.UserProperty{Name: "__srcId", Value: "p"}, mqtt.UserProperty{Name: "$partition", Value: "p"})
		}), wants: 2},
		{name: "said to be a duplicate", packet: flags(0x3a), wants: 2},
		{name: "the hex form of the response topic, without a subscription", packet: change(get, func(m *mqtt.Message) { m.ResponseTopic = "clients/70/response" }), wants: 2},
		{name: "a topic to which another client subscribes too", packet: change(get, func(m *mqtt.Message) { m.ResponseTopic = "both" }), wants: 2},
		{name: "a reply that is a byte too large", packet: plain(get...), wants: 1, limit: 169},
		{name: "a reply that is just not too large", packet: plain(get...), wants: 2, limit: 170},

		{name: "retained", packet: flags(0x33), wants: 1},
		{name: "QoS 2", packet: flags(0x34), ends: true},
		{name: "QoS 3", packet: flags(0x36), ends: true},
		{name: "no identifier", packet: func(c *testsupport.RawClient) []byte {
			packet := plain(get...)(c)
			packet[propertiesAt-2], packet[propertiesAt-1] = 0, 0
			return packet
		}, ends: true},
		{name: "a reply with a wildcard", packet: change(get, func(m *mqtt.Message) { m.ResponseTopic = "clients/p/+" }), ends: true},
		{name: "an ordinary message", packet: change(get, func(m *mqtt.Message) { m.Topic = "factory/news" }), wants: 1},
		{name: "a message to itself", packet: change(get, func(m *mqtt.Message) { m.Topic = "clients/p/response" }), wants: 2},
		{name: "below the system topic", packet: change(get, func(m *mqtt.Message) { m.Topic = testsupport.InvokeTopic + "/x" }), wants: 1},
		{name: "a topic alias", packet: func(c *testsupport.RawClient) []byte {
			return testsupport.Packet(0x32, testsupport.Text(testsupport.InvokeTopic), []byte{0, 7, 3, 0x23, 0, 1}, testsupport.Command(get...))
		}, ends: true},
		{name: "a property that does not exist", packet: func(c *testsupport.RawClient) []byte {
			return testsupport.Packet(0x32, testsupport.Text(testsupport.InvokeTopic), []byte{0, 7, 2, 0x7f, 0}, testsupport.Command(get...))
		}, ends: true},
		{name: "properties that do not end", packet: func(c *testsupport.RawClient) []byte {
			return testsupport.Packet(0x32, testsupport.Text(testsupport.InvokeTopic), []byte{0, 7, 0x7f, 1, 1}, testsupport.Command(get...))
		}, ends: true},
		{name: "a long one", packet: plain("SET", "k", strings.Repeat("w", 5000)), wants: 2},
		{name: "one that is too long for the server", packet: plain("SET", "k", strings.Repeat("w", 3000)), maximum: 2048, ends: true},
		{name: "one that is too long", packet: plain("SET", "k", strings.Repeat("w", 9000)), ends: true},
	} {
		t.Run(test.name, func(t *testing.T) {
			address := testsupport.Start(t, server.Options{Store: statestore.Options{Identity: "the store"}, MaxPacketSize: cmp.Or(test.maximum, 8192)})
			testsupport.DialRaw(t, address, "reader").Subscribe("both")
			other := testsupport.DialRaw(t, address, "other")
			other.Do("SET", "k", "v")
			other.Do("SET", "large", strings.Repeat("v", 400))
			fenced := other.Request("SET", "fenced", "v")
			fenced.User = append(fenced.User, mqtt.UserProperty{Name: "__ft", Value: "5:0:p"})
			other.Write(testsupport.PacketOf(t, fenced))
			other.ReadReply()
			var properties []byte
			if test.limit > 0 {
				properties = binary.BigEndian.AppendUint32([]byte{0x27}, test.limit)
			}
			c := testsupport.ConnectRaw(t, testsupport.DialTCP(t, address), "p", 60, string(properties))
			c.Subscribe("both")
			c.Write(test.packet(c))
			if got := readAll(c, test.wants, test.ends); !test.ends && len(got) != test.wants {
				t.Errorf("read %d packets, want %d: %q", len(got), test.wants, got)
			}
			if got := other.Do("GET", "nothing"); got != "$-1\r\n" {
				t.Errorf("another client reads %q", got)
			}
		})
	}
}

// readAll returns what arrives, sorted: as many packets as wanted and what else comes before
// the reply to a PINGREQ or, where the connection ends, until its end.
func readAll(c *testsupport.RawClient, wants int, ends bool) (packets [][]byte) {
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

// mustDisconnect fails unless the next packet is a DISCONNECT with this reason, and the last.
func mustDisconnect(c *testsupport.RawClient, code byte, reason string) {
	c.T.Helper()
	rest, err := io.ReadAll(c.Input)
	want := string(mqtt.Encode(&packets.Disconnect{ReasonCode: code, Properties: &packets.Properties{ReasonString: reason}}))
	if err != nil || string(rest) != want {
		c.T.Errorf("%s: %q, %v\nwant %q", c.ID, rest, err, want)
	}
}

func TestADISCONNECTSaysWhy(t *testing.T) {
	address := testsupport.Start(t, server.Options{MaxPacketSize: 64 << 10})
	filters := strings.Repeat(string(testsupport.Text("a"))+"\x00", 101)
	levels := strings.Repeat("a/", 512)
	for _, test := range []struct {
		name   string
		packet []byte
		code   byte
		reason string
	}{
		{"101 filters", testsupport.Packet(0x82, []byte{0, 9, 0}, []byte(filters)), 0x97, "SUBSCRIBE: it has more than 100 topic filters"},
		{"a filter of 513 levels", testsupport.Packet(0x82, []byte{0, 9, 0}, testsupport.Text(levels), []byte{0}), 0x8f, "SUBSCRIBE: a topic filter has more than 64 levels"},
		{"a topic name of 513 levels", testsupport.Packet(0x30, testsupport.Text(levels), []byte{0}), 0x90, "PUBLISH: a topic name has more than 64 levels"},
		{"AUTH", testsupport.Packet(0xf0, []byte{0x19, 0}), 0x82, "AUTH: it does not come from this side of a connection"},
		{"a length that is malformed", []byte{0xc0, 0x80, 0x00}, 0x81, "the data is not MQTT: the length of a packet is malformed"},
		{"a header of 64 KiB and more", []byte{0x30, 0x80, 0x80, 0x04}, 0x95, "a packet of 65540 bytes, and at most 65536 are accepted"},
	} {
		t.Run(test.name, func(t *testing.T) {
			c := testsupport.DialRaw(t, address, "c")
			c.Write(testsupport.Packet(0xc0), test.packet)
			if got := c.Read(); got[0] != 0xd0 {
				t.Errorf("% x comes in place of the PINGRESP for what was before", got)
			}
			mustDisconnect(c, test.code, test.reason)
		})
	}
}

func TestARefusedCONNECTIsAnsweredInItsOwnVersion(t *testing.T) {
	address := testsupport.Start(t, server.Options{})
	for _, test := range []struct {
		name, packet, want string
	}{
		{"MQTT 5", "\x10\x0e\x00\x04MQTT\x05\x03\x00\x00\x00\x00\x01c", "\x20\x27\x00\x81\x24\x1f\x00\x21CONNECT: its reserved flag is set"},
		{"another version", "\x10\x07\x00\x04MQTT\x02", "\x20\x02\x00\x01"},
		{"one that is too large", "\x10\xff\xff\x7f", "\x20\x3e\x00\x95\x3b\x1f\x00\x38a packet of 2097155 bytes, and at most 8192 are accepted"},
		{"no MQTT", "GET / HTTP/1.1\r\n\r\n", ""},
	} {
		t.Run(test.name, func(t *testing.T) {
			conn := testsupport.DialTCP(t, address)
			defer conn.Close()
			_ = conn.SetDeadline(time.Now().Add(testsupport.Patience))
			testsupport.Send(t, conn, test.packet)
			_ = conn.(*net.TCPConn).CloseWrite()
			if got, err := io.ReadAll(conn); err != nil || string(got) != test.want {
				t.Errorf("%q, %v\nwant %q", got, err, test.want)
			}
		})
	}
}
