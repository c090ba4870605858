package integration_test

import (
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tenurelock/tenure/server"
	"github.com/tenurelock/tenure/server/activity"
	"github.com/tenurelock/tenure/server/internal/rawmqtt"
	"github.com/tenurelock/tenure/server/internal/testsupport"
	"github.com/tenurelock/tenure/server/servertest"
)

// unfinished is a message of n bytes without its end.
func unfinished(n int) []byte {
	packet := rawmqtt.Message{Topic: "t", Payload: make([]byte, n)}.Packet()
	return packet[:len(packet)-1]
}

// One user leaves packets incomplete until it may have no more, and goes on with new ones. Another user
// sends large packets meanwhile.
func TestUnfinishedPacketsKeepNoOtherUserFromSending(t *testing.T) {
	const space = 4 << 20 // four of the largest packets
	address, s := testsupport.StartServer(t, server.Options{Authenticator: testsupport.Rules{}, MaxMemory: 64 << 20})
	leave := func(n int) {
		c := testsupport.ConnectPacket{ID: "m" + strconv.Itoa(n), User: "mallory"}.Connect(t, address)
		c.Write(unfinished(500_000))
	}
	other := testsupport.ConnectPacket{ID: "other", User: "alice"}.Connect(t, address)
	other.Subscribe(other.ReplyTo)
	for n := range 12 {
		leave(n)
	}
	testsupport.Eventually(t, "they take as much as they may", func() bool { return s.Usage().ArrivingBytes > space/3 })
	for n := range 8 {
		if got := other.Do("SET", "k"+strconv.Itoa(n), strings.Repeat("v", 400_000)); got != "+OK\r\n" {
			t.Fatalf("packet %d: %q", n, got)
		}
		leave(12 + n)
	}
	if got := s.Usage().ArrivingBytes; got > space {
		t.Errorf("%d bytes of %d are taken", got, space)
	}
}

// Bytes of a packet that is not complete keep no connection, and those that others could have for half a minute.
func TestEachPacketMustBeCompleteInTime(t *testing.T) {
	small, large := []byte{0x30, 100, 0, 1, 't'}, unfinished(120_000)
	for name, test := range map[string]struct {
		keepAlive      uint16
		before, packet []byte
		after          time.Duration
	}{
		"small":                 {60, nil, small, 90 * time.Second},
		"large":                 {60, nil, large, 30 * time.Second},
		"a short keep-alive":    {10, nil, large, 15 * time.Second},
		"after a complete one":  {60, large, large, 30 * time.Second},
		"nothing after a large": {60, large, nil, 90 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := servertest.NewWithOptions(t, servertest.Options{InMemory: true})
				conn, err := s.DialContext(t.Context(), "", "")
				if err != nil {
					t.Fatal(err)
				}
				c := testsupport.ConnectPacket{ID: "p", KeepAlive: test.keepAlive}.Start(t, conn)
				if code := c.ReasonCode(); code != 0 {
					t.Fatalf("CONNACK %#x", code)
				}
				_ = c.Conn.SetDeadline(time.Time{})
				began := time.Now()
				if test.before != nil {
					c.Write(test.before, []byte{0})
				}
				for part := range slices.Chunk(test.packet, len(test.packet)/3+1) { // bytes alone give no more time
					c.Write(part)
					time.Sleep(4 * time.Second)
				}
				if packet, err := c.TryRead(); err == nil || time.Since(began) != test.after {
					t.Errorf("it ends after %v, want %v; %q", time.Since(began), test.after, packet)
				}
				synctest.Wait()
				reason := activity.ReasonIncomplete
				if test.packet == nil {
					reason = activity.ReasonSilent
				}
				if got := s.Server().State().Clients[0].Reason; got != reason {
					t.Errorf("the page says %q, want %q", got, reason)
				}
			})
		})
	}
}
