package server_test

import (
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/tenurelock/tenure/internal/frame"
	"github.com/tenurelock/tenure/server"
)

// mochi v2.7.9 reads beyond the end of this SUBSCRIBE, which ends the process.
func TestEightBytesEndNoMoreThanTheConnectionThatBroughtThem(t *testing.T) {
	address := start(t, server.Options{})
	other := rawTo(t, address, "other")
	other.do("SET", "k", "v")
	for range 20 {
		attacker := rawTo(t, address, "attacker")
		attacker.write([]byte{0x82, 0x06, 0x00, 0x01, 0x00, 0x00, 0x01, 0x61})
		attacker.mustLeave(0x81, "SUBSCRIBE: a topic filter has no options")
		if got := other.do("GET", "k"); got != "$1\r\nv\r\n" {
			t.Fatalf("the other client got %q", got)
		}
	}

}

// mustLeave reads a DISCONNECT with this reason, and the end of the connection.
func (c *raw) mustLeave(code byte, reason string) {
	c.t.Helper()
	rest, err := io.ReadAll(c.input)
	want := string(frame.AppendDisconnect(nil, code, reason))
	if err != nil || string(rest) != want {
		c.t.Errorf("%s: %q, %v\nwant %q", c.id, rest, err, want)
	}
}

func TestWhatAConnectionEndsWithSaysWhy(t *testing.T) {
	address := start(t, server.Options{MaxPacketSize: 64 << 10})
	filters := strings.Repeat(string(text("a"))+"\x00", 101)
	levels := strings.Repeat("a/", 512)
	for _, test := range []struct {
		name   string
		packet []byte
		code   byte
		reason string
	}{
		{"101 filters", packet(0x82, []byte{0, 9, 0}, []byte(filters)), 0x97, "SUBSCRIBE: it has more than 100 topic filters"},
		{"a filter of 513 levels", packet(0x82, []byte{0, 9, 0}, text(levels), []byte{0}), 0x8f, "SUBSCRIBE: a topic filter has more than 64 levels"},
		{"a topic name of 513 levels", packet(0x30, text(levels), []byte{0}), 0x90, "PUBLISH: a topic name has more than 64 levels"},
		{"AUTH", packet(0xf0, []byte{0x19, 0}), 0x82, "AUTH: it does not come from this side of a connection"},
		{"a length that is malformed", []byte{0xc0, 0x80, 0x00}, 0x81, "what comes is not MQTT: the length of a packet is malformed"},
		{"a header of 64 KiB and more", []byte{0x30, 0x80, 0x80, 0x04}, 0x95, "a packet of 65540 bytes, where at most 65536 are taken"},
	} {
		t.Run(test.name, func(t *testing.T) {
			c := rawTo(t, address, "c")
			c.write(packet(0xc0), test.packet)
			if got := c.read(); got[0] != 0xd0 {
				t.Errorf("% x comes in place of the PINGRESP for what was before", got)
			}
			c.mustLeave(test.code, test.reason)
		})
	}
}

func TestAConnectThatIsRefusedIsAnsweredInItsOwnVersion(t *testing.T) {
	address := start(t, server.Options{})
	for _, test := range []struct {
		name, packet, want string
	}{
		{"MQTT 5", "\x10\x0e\x00\x04MQTT\x05\x03\x00\x00\x00\x00\x01c", "\x20\x27\x00\x81\x24\x1f\x00\x21CONNECT: its reserved flag is set"},
		{"another version", "\x10\x07\x00\x04MQTT\x02", "\x20\x02\x00\x01"},
		{"MQTT 3.1.1, too large", "\x10\xff\xff\x7f\x00\x04MQTT\x04", ""},
		{"no MQTT", "GET / HTTP/1.1\r\n\r\n", ""},
	} {
		t.Run(test.name, func(t *testing.T) {
			conn := socketTo(t, address)
			defer conn.Close()
			_ = conn.SetDeadline(time.Now().Add(patience))
			send(t, conn, test.packet)
			_ = conn.(*net.TCPConn).CloseWrite()
			if got, err := io.ReadAll(conn); err != nil || string(got) != test.want {
				t.Errorf("%q, %v\nwant %q", got, err, test.want)
			}
		})
	}
}
