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

// A client may send its PINGREQ as late as one keep-alive after its latest packet.
func TestASilentClientHasOneAndAHalfKeepAlives(t *testing.T) {
	for keepAlive := range byte(4) {
		keepAlive++
		t.Run(fmt.Sprint(keepAlive), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := testsupport.ConnectRaw(t, startInMemory(t), "p", keepAlive, "")
				_ = c.Conn.SetDeadline(time.Time{})
				for range 3 {
					time.Sleep(time.Duration(keepAlive) * time.Second)
					c.Write([]byte{0xc0, 0})
					if answer, err := c.TryRead(); err != nil || answer[0] != 0xd0 {
						t.Fatalf("a PINGREQ after one keep-alive: % x, %v", answer, err)
					}
				}
				last := time.Now()
				if _, err := c.TryRead(); err == nil {
					t.Error("something came")
				}
				if silent, patience := time.Since(last), time.Duration(keepAlive)*time.Second*3/2; silent != patience {
					t.Errorf("the client was given up after %v, want %v", silent, patience)
				}
			})
		})
	}
}

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

// Not only PINGREQs: messages, acknowledgements, subscriptions.
func TestEveryPacketOfAClientKeepsItConnected(t *testing.T) {
	const keepAlive, patience = 10, 15 * time.Second
	for name, say := range map[string]func(*testsupport.RawClient){
		"messages of QoS 0": func(c *testsupport.RawClient) { c.Send(rawmqtt.Message{Topic: "t"}) },
		"messages of QoS 1": func(c *testsupport.RawClient) { c.Publish(rawmqtt.Message{Topic: "t"}) },
		"acknowledgements":  func(c *testsupport.RawClient) { c.Ack(testsupport.Message{ID: 77}) },
		"subscriptions":     func(c *testsupport.RawClient) { c.Subscribe("t") },
		"unsubscriptions": func(c *testsupport.RawClient) {
			c.Write(testsupport.Packet(0xa2, []byte{0, 9, 0}, testsupport.Text("u")))
			c.Read()
		},
		"nothing": nil,
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				conn := startInMemory(t)
				_ = conn.SetDeadline(time.Now().Add(patience))
				c := testsupport.ConnectPacket{ID: "p", KeepAlive: keepAlive}.Start(t, conn)
				c.Read()
				_ = conn.SetDeadline(time.Time{})
				last := time.Now()
				c.Subscribe("news")
				for range 5 {
					if say != nil {
						time.Sleep(patience - time.Second)
						last = time.Now()
						say(c)
					}
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
