package server_test

import (
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/tenurelock/tenure/server"
	"github.com/tenurelock/tenure/server/internal/testsupport"
)

// mochi v2.7.9 reads beyond the end of this SUBSCRIBE, which ends the process.
func TestEightBytesEndNoMoreThanTheConnectionThatBroughtThem(t *testing.T) {
	address := testsupport.Start(t, server.Options{})
	other := testsupport.DialRaw(t, address, "other")
	other.Do("SET", "k", "v")
	for range 20 {
		attacker := testsupport.DialRaw(t, address, "attacker")
		attacker.Write([]byte{0x82, 0x06, 0x00, 0x01, 0x00, 0x00, 0x01, 0x61})
		attacker.MustDisconnect(0x81, "SUBSCRIBE: a topic filter has no options")
		if got := other.Do("GET", "k"); got != "$1\r\nv\r\n" {
			t.Fatalf("the other client got %q", got)
		}
	}

}

func TestWhatAConnectionEndsWithSaysWhy(t *testing.T) {
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
		{"a length that is malformed", []byte{0xc0, 0x80, 0x00}, 0x81, "what comes is not MQTT: the length of a packet is malformed"},
		{"a header of 64 KiB and more", []byte{0x30, 0x80, 0x80, 0x04}, 0x95, "a packet of 65540 bytes, where at most 65536 are taken"},
	} {
		t.Run(test.name, func(t *testing.T) {
			c := testsupport.DialRaw(t, address, "c")
			c.Write(testsupport.Packet(0xc0), test.packet)
			if got := c.Read(); got[0] != 0xd0 {
				t.Errorf("% x comes in place of the PINGRESP for what was before", got)
			}
			c.MustDisconnect(test.code, test.reason)
		})
	}
}

func TestAConnectThatIsRefusedIsAnsweredInItsOwnVersion(t *testing.T) {
	address := testsupport.Start(t, server.Options{})
	for _, test := range []struct {
		name, packet, want string
	}{
		{"MQTT 5", "\x10\x0e\x00\x04MQTT\x05\x03\x00\x00\x00\x00\x01c", "\x20\x27\x00\x81\x24\x1f\x00\x21CONNECT: its reserved flag is set"},
		{"another version", "\x10\x07\x00\x04MQTT\x02", "\x20\x02\x00\x01"},
		{"MQTT 3.1.1, too large", "\x10\xff\xff\x7f\x00\x04MQTT\x04", ""},
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
