package integration_test

import (
	"fmt"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/eclipse/paho.golang/packets"

	"github.com/tenurelock/tenure/server"
	"github.com/tenurelock/tenure/server/internal/rawmqtt"
	"github.com/tenurelock/tenure/server/internal/testsupport"
	"github.com/tenurelock/tenure/server/servertest"
)

// unfinished is a message of 120 kB without its end.
func unfinished(old bool) []byte {
	packet := rawmqtt.Message{Topic: "t", Payload: make([]byte, 120_000), MQTT3: old}.Packet()
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
			other.Subscribe(other.Topic())
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

func TestEachPacketMustBeCompleteInTime(t *testing.T) {
	const timeout = 7 * time.Second
	for _, old := range []bool{false, true} {
		for name, packet := range map[string][]byte{
			"a large packet": unfinished(old),
			"a small packet": {0x30, 100, 0, 1, 't'},
			"a header":       {0x30},
		} {
			t.Run(fmt.Sprintf("%s, MQTT 3.1.1: %t", name, old), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					c := dialInMemory(t, server.Options{PacketTimeout: timeout}, testsupport.ConnectPacket{ID: "p", Old: old})
					time.Sleep(timeout * 2) // a client that is silent between packets has its keep-alive
					c.Write([]byte{0xc0, 0})
					c.Read()
					c.Write(packet[:1])
					began := time.Now()
					for _, b := range packet[1:min(5, len(packet))] { // progress does not count
						time.Sleep(timeout / 5)
						c.Write([]byte{b})
					}
					go func() { _, _ = c.Conn.Write(packet[min(5, len(packet)):]) }() // ends with the connection
					if old {
						if packet, err := c.TryRead(); err == nil {
							t.Errorf("got %x", packet)
						}
					} else {
						c.MustDisconnect(0x97, "a packet was not complete in time: Options.PacketTimeout, --packet-timeout")
					}
					if took := time.Since(began); took != timeout {
						t.Errorf("it took %v, want %v", took, timeout)
					}
				})
			})
		}
	}
}

// The time of each packet begins with its first byte.
func TestPacketsThatAreCompleteInTimeKeepAConnection(t *testing.T) {
	const timeout = 7 * time.Second
	synctest.Test(t, func(t *testing.T) {
		c := dialInMemory(t, server.Options{PacketTimeout: timeout}, testsupport.ConnectPacket{ID: "p"})
		ping := []byte{0xc0, 0}
		c.Write(ping[:1])
		for range 20 {
			time.Sleep(timeout - time.Second)
			c.Write(append(ping[1:2:2], ping[0])) // the end of one, and the beginning of the next
			if got := c.Read(); got[0] != 0xd0 {
				t.Fatalf("got %x", got)
			}
		}
		c.Write(ping[1:])
		c.Read()
		time.Sleep(30 * timeout)
		c.Write(ping)
		c.Read()
	})
}

// The client of a Will for the store may believe in a lease for as long as it may be silent. A part of a packet that
// hangs must not make the Will release the lease before.
func TestAClientWithAWillForTheStoreHasItsWholeSilenceForAPacket(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := dialInMemory(t, server.Options{PacketTimeout: time.Second}, testsupport.ConnectPacket{ID: "p", KeepAlive: 60, Will: &rawmqtt.Message{
			Topic: testsupport.InvokeTopic, QoS: 1, Payload: testsupport.Command("VDEL", "k", "v"),
			Properties: rawmqtt.Body{packets.PropResponseTopic}.Text("clients/p/response").Byte(packets.PropCorrelationData).Text("c"),
		}})
		c.Write([]byte{0xc0})
		time.Sleep(89 * time.Second)
		c.Write([]byte{0})
		if got := c.Read(); got[0] != 0xd0 {
			t.Errorf("got %x", got)
		}
	})
}

// dialInMemory connects to a server in memory.
func dialInMemory(t *testing.T, options server.Options, login testsupport.ConnectPacket) *testsupport.RawClient {
	t.Helper()
	s := servertest.NewWithOptions(t, servertest.Options{InMemory: true, Server: options})
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
