package integration_test

import (
	"fmt"
	"net"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tenurelock/tenure/server/internal/rawmqtt"
	"github.com/tenurelock/tenure/server/internal/testsupport"
	"github.com/tenurelock/tenure/server/servertest"
)

// startInMemory runs a server in memory, and returns a connection to it.
func startInMemory(t *testing.T) net.Conn {
	t.Helper()
	s := servertest.NewWithOptions(t, servertest.Options{InMemory: true})
	conn, err := s.DialContext(t.Context(), "", "")
	if err != nil {
		t.Fatal(err)
	}
	return conn
}

// A client may be silent for one and a half keep-alives after any packet.
func TestEveryPacketOfAClientKeepsItConnected(t *testing.T) {
	for name, say := range map[string]func(*testsupport.RawClient){
		"PINGREQ": func(c *testsupport.RawClient) {
			c.Write([]byte{0xc0, 0})
			c.Read()
		},
		"messages of QoS 0": func(c *testsupport.RawClient) { c.Send(rawmqtt.Message{Topic: "t"}) },
		"messages of QoS 1": func(c *testsupport.RawClient) { c.Publish(rawmqtt.Message{Topic: "t"}) },
		"acknowledgements":  func(c *testsupport.RawClient) { c.Ack(testsupport.Message{ID: 77}) },
		"subscriptions":     func(c *testsupport.RawClient) { c.Subscribe("t") },
		"unsubscriptions": func(c *testsupport.RawClient) {
			c.Write(testsupport.Packet(0xa2, []byte{0, 9, 0}, testsupport.Text("u")))
			c.Read()
		},
	} {
		for _, keepAlive := range []uint16{1, 3, 10} {
			t.Run(fmt.Sprint(name, keepAlive), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					patience := time.Duration(keepAlive) * 3 * time.Second / 2
					c := testsupport.ConnectPacket{ID: "p", KeepAlive: keepAlive}.Start(t, startInMemory(t))
					c.Read()
					last := time.Now()
					for range 5 {
						time.Sleep(patience - time.Millisecond)
						last = time.Now()
						say(c)
					}
					if _, err := c.TryRead(); err == nil {
						t.Error("something came")
					}
					if silent := time.Since(last); silent != patience {
						t.Errorf("the client was given up after %v, want %v", silent, patience)
					}
				})
			})
		}
	}
}
