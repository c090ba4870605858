package server

import (
	"bytes"
	"net"
	"testing"
	"time"

	mqtt "github.com/mochi-mqtt/server/v2"

	"github.com/tenurelock/tenure/server/internal/quota"
	"github.com/tenurelock/tenure/server/internal/turns"
)

// What a client can send without pause is answered in turns: else 200 clients that send
// PINGREQ take the processors from all others.
func TestInvariant57AllThatIsAnsweredIsAnsweredInTurns(t *testing.T) {
	for _, test := range []struct {
		name           string
		version        byte
		packet, answer string
	}{
		{"PINGREQ", 5, "\xc0\x00", "\xd0\x00"},
		{"PINGREQ of 3.1.1", 4, "\xc0\x00", "\xd0\x00"},
		{"PUBREC", 5, "\x50\x02\x01\x02", "\x62\x03\x01\x02\x92"},
		{"PUBREL", 5, "\x62\x02\x01\x02", "\x70\x03\x01\x02\x92"},
		{"PUBREL of 3.1.1", 4, "\x62\x02\x01\x02", "\x70\x02\x01\x02"},
		{"PUBCOMP", 5, "\x70\x02\x01\x02", ""},
	} {
		t.Run(test.name, func(t *testing.T) {
			out := new(sink)
			conn := newConnection(out, &Options{MaxPacketSize: 1 << 20}, turns.New(1), quota.New(1<<30), newWriteLimiter())
			in := conn.inbound
			in.version, in.client = test.version, new(mqtt.Client)
			if !in.take([]byte(test.packet)) {
				t.Fatal("it goes on to mochi, which has no turns")
			}
			in.pause()
			if got := out.String(); got != test.answer {
				t.Errorf("the answer is %x, want %x", got, test.answer)
			}
		})
	}
}

// sink is a connection to which one only writes.
type sink struct {
	net.Conn
	bytes.Buffer
}

func (s *sink) Read(p []byte) (int, error)       { return s.Buffer.Read(p) }
func (s *sink) Write(p []byte) (int, error)      { return s.Buffer.Write(p) }
func (s *sink) SetReadDeadline(time.Time) error  { return nil }
func (s *sink) SetWriteDeadline(time.Time) error { return nil }
