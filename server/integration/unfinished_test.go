package integration_test

import (
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tenurelock/tenure/server"
	"github.com/tenurelock/tenure/server/internal/rawmqtt"
	"github.com/tenurelock/tenure/server/internal/testsupport"
	"github.com/tenurelock/tenure/server/servertest"
)

// unfinished is a message of 120 kB without its end.
func unfinished(old bool) []byte {
	packet := rawmqtt.Message{Topic: "t", Payload: make([]byte, 120_000), Old: old}.Packet()
	return packet[:len(packet)-1]
}

// One user leaves packets incomplete until it may have no more, and goes on with new ones. Another user
// sends large packets meanwhile.
func TestUnfinishedPacketsKeepNoOtherUserFromSending(t *testing.T) {
	const room = 1 << 20
	value := strings.Repeat("v", 100_000)
	for _, test := range []struct {
		name, attacker, other string
		old                   bool
	}{
		{"MQTT 5", "mallory", "alice", false},
		{"MQTT 3.1.1", "mallory", "alice", true},
	} {
		t.Run(test.name, func(t *testing.T) {
			address, s := testsupport.StartServer(t, server.Options{
				Authenticator: testsupport.Rules{},
				Limits:        server.Limits{AllArrivingBytes: room},
			})
			leave := func(n int) {
				c := testsupport.ConnectPacket{ID: "m" + strconv.Itoa(n), User: test.attacker, Old: test.old}.Connect(t, address)
				c.Write(unfinished(test.old))
			}
			other := testsupport.ConnectPacket{ID: "other", User: test.other}.Connect(t, address)
			other.Subscribe(other.ReplyTo)
			for n := range 12 {
				leave(n)
			}
			testsupport.Eventually(t, "they take as much as they may", func() bool { return s.Usage().ArrivingBytes > room/3 })
			for n := range 8 {
				if got := other.Do("SET", "k"+strconv.Itoa(n), value); got != "+OK\r\n" {
					t.Fatalf("packet %d: %q", n, got)
				}
				leave(12 + n)
			}
			if got := s.Usage().ArrivingBytes; got > room {
				t.Errorf("%d bytes of %d are taken", got, room)
			}
		})
	}
}

// Bytes of a packet that is not complete keep no connection.
func TestEachPacketMustBeCompleteWithinTheKeepAlive(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := dialInMemory(t, testsupport.ConnectPacket{ID: "p", KeepAlive: 60})
		for _, b := range []byte{0x30, 100, 0, 1, 't'} {
			c.Write([]byte{b})
			time.Sleep(20 * time.Second)
		}
		c.MustBeClosed()
	})
}

// dialInMemory connects to a server in memory.
func dialInMemory(t *testing.T, login testsupport.ConnectPacket) *testsupport.RawClient {
	t.Helper()
	s := servertest.NewWithOptions(t, servertest.Options{InMemory: true})
	conn, err := s.DialContext(t.Context(), "", "")
	if err != nil {
		t.Fatal(err)
	}
	c := login.Start(t, conn)
	if code := c.ReasonCode(); code != 0 {
		t.Fatalf("CONNACK %#x", code)
	}
	return c
}
