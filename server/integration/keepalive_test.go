package integration_test

import (
	"bufio"
	"context"
	"net"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tenurelock/tenure/internal/await"
	"github.com/tenurelock/tenure/server"
	"github.com/tenurelock/tenure/server/internal/rawmqtt"
	"github.com/tenurelock/tenure/server/internal/testsupport"
)

func TestOnlyPacketsOfItsOwnKeepAClientConnected(t *testing.T) {
	const keepAlive, patience = 10, 15 * time.Second
	synctest.Test(t, func(t *testing.T) {
		dial, stop := startInMemory(t)
		c := testsupport.ConnectRaw(t, dial(), "p", keepAlive, "")
		_ = c.Conn.SetDeadline(time.Time{})
		for range 10 {
			time.Sleep(patience - time.Second)
			c.Do("SET", "k", "v")
		}
		last := time.Now()
		time.Sleep(patience / 3)
		c.Write(testsupport.PacketOf(t, c.Request("SET", "k", "w"))[:20])
		if _, err := c.TryRead(); err == nil {
			t.Error("something came")
		}
		if silent := time.Since(last); silent != patience {
			t.Errorf("the client was given up after %v, want %v", silent, patience)
		}
		stop()
	})
}

// startInMemory runs a server that clients reach without sockets.
func startInMemory(t *testing.T) (dial func() net.Conn, stop func()) {
	t.Helper()
	pipes := newPipes()
	s, err := server.New(server.Options{Listener: pipes})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	served := make(chan error)
	go func() { served <- s.Serve(ctx) }()
	return pipes.dial, func() {
		cancel()
		if err := await.Receive(served); err != nil {
			t.Error(err)
		}
	}
}

// What mochi never sees counts too: messages, acknowledgements and subscriptions.
func TestEveryPacketOfAClientKeepsItConnected(t *testing.T) {
	const keepAlive, patience = 10, 15 * time.Second
	for name, say := range map[string]func(*testsupport.Messenger){
		"messages of QoS 0": func(c *testsupport.Messenger) { c.Send(rawmqtt.Message{Topic: "t"}) },
		"messages of QoS 1": func(c *testsupport.Messenger) { c.Publish(rawmqtt.Message{Topic: "t"}) },
		"acknowledgements":  func(c *testsupport.Messenger) { c.Ack(testsupport.Message{ID: 77}) },
		"subscriptions":     func(c *testsupport.Messenger) { c.SubscribeAll("t") },
		"unsubscriptions": func(c *testsupport.Messenger) {
			c.Write(testsupport.Packet(0xa2, []byte{0, 9, 0}, testsupport.Text("u")))
			c.Read()
		},
		"nothing": nil,
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				dial, stop := startInMemory(t)
				conn := dial()
				_ = conn.SetDeadline(time.Now().Add(patience))
				c := &testsupport.Messenger{RawClient: &testsupport.RawClient{T: t, ID: "p", Conn: conn, Input: bufio.NewReader(conn)}}
				c.Write(testsupport.ConnectPacket{ID: "p", KeepAlive: keepAlive}.Packet())
				c.Read()
				_ = conn.SetDeadline(time.Time{})
				last := time.Now()
				c.SubscribeAll("news")
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
				stop()
			})
		})
	}
}

// pipes is a listener in memory.
type pipes struct {
	accepted chan net.Conn
	closed   chan struct{}
}

func newPipes() *pipes { return &pipes{make(chan net.Conn), make(chan struct{})} }

func (p *pipes) dial() net.Conn {
	here, there := net.Pipe()
	p.accepted <- there
	return here
}

func (p *pipes) Accept() (net.Conn, error) {
	select {
	case conn := <-p.accepted:
		return conn, nil
	case <-p.closed:
		return nil, net.ErrClosed
	}
}

func (p *pipes) Close() error {
	close(p.closed)
	return nil
}

func (p *pipes) Addr() net.Addr { return &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)} }
