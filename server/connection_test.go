package server_test

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/eclipse/paho.golang/packets"
	"github.com/eclipse/paho.golang/paho"

	"github.com/tenurelock/tenure/internal/await"
	"github.com/tenurelock/tenure/internal/logbuffer"
	"github.com/tenurelock/tenure/internal/mqtt"
	"github.com/tenurelock/tenure/server"
	"github.com/tenurelock/tenure/server/internal/rawmqtt"
	"github.com/tenurelock/tenure/server/internal/testsupport"
)

func TestTheWillOfABusyConnectionSurvivesATakeOver(t *testing.T) {
	t.Parallel()
	address := testsupport.Start(t, server.Options{})
	observer := testsupport.Connect(t, address, "observer", nil)
	observer.Subscribe("factory/p/#")
	for i := range 50 {
		busy := &testsupport.PacketClient{ID: "p", Conn: testsupport.DialTCP(t, address), ReplyTo: "clients/p/response"}
		busy.In = bufio.NewReader(busy.Conn)
		err := busy.Connect(func(c *packets.Connect) {
			c.WillFlag, c.WillTopic, c.WillMessage = true, "factory/p/gone", fmt.Appendf(nil, "end of %d", i)
			c.WillProperties = &packets.Properties{}
		})
		if err != nil {
			t.Fatal(err)
		}
		get := testsupport.Encode(busy.Request(0, nil, "GET", "k"))
		reading := make(chan struct{})
		var group sync.WaitGroup
		group.Go(func() {
			_, _ = busy.In.ReadByte()
			close(reading)
			_, _ = io.Copy(io.Discard, busy.In)
		})
		group.Go(func() {
			for {
				if _, err := busy.Conn.Write(get); err != nil {
					return
				}
			}
		})
		await.Receive(reading)
		present := testsupport.Connect(t, address, "p", nil)
		present.Send("factory/p/news", fmt.Sprintf("begin of %d", i+1))
		observer.MustReceive(fmt.Sprintf("end of %d", i))
		observer.MustReceive(fmt.Sprintf("begin of %d", i+1))
		_ = busy.Conn.Close()
		await.Done(group.Wait)
		_ = present.Paho.Disconnect(&paho.Disconnect{})
	}
}

// A packet is decoded in place, so a part of it that is kept without a copy keeps all of it.
func TestAStoredValueDoesNotRetainItsPacket(t *testing.T) {
	address := testsupport.Start(t, server.Options{})
	c := testsupport.DialPacketClient(t, address, "p", nil)
	const requests, padding = 200, 60 << 10
	ask := func(i int, want string, words ...string) {
		t.Helper()
		err := c.Do(i, func(message *packets.Publish) {
			message.Properties.ContentType = strings.Repeat("x", padding)
			message.Properties.User = append(message.Properties.User, packets.User{Key: "__ft", Value: fmt.Sprintf("%d:0:node-%03d", time.Now().UnixMilli(), i)})
		}, testsupport.Exchange{Words: words, Want: want})
		if err != nil {
			t.Fatal(err)
		}
	}
	ask(0, "$-1\r\n", "GET", "k")
	before := testsupport.HeapInUse()
	for i := range requests {
		switch i % 4 {
		case 0, 1:
			ask(i, "+OK\r\n", "SET", fmt.Sprint("key-", i), "v", "PX", "600000")
		case 2:
			ask(i, "+OK\r\n", "KEYNOTIFY", fmt.Sprint("watched-", i))
		case 3:
			ask(i, ":1\r\n", "DEL", fmt.Sprint("key-", i-2))
		}
	}
	after := testsupport.HeapInUse()
	if grown, all := int64(after)-int64(before), int64(requests*padding); grown > all/8 {
		t.Errorf("%d bytes are kept of %d bytes of requests with next to nothing in them", grown, all)
	}
	if err := c.Disconnect(); err != nil { // only now: all of it was in use
		t.Fatal(err)
	}
}

func TestALimitedNumberOfMessagesWaitsForASubscriberThatDoesNotRead(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name           string
		qos            byte
		messages, size int
		limits         server.Limits
		most           int // that wait, besides those in the sockets
		why            server.MessageDropReason
	}{
		{"QoS 0", 0, 600, 32 << 10, server.Limits{SessionBytes: 1 << 20}, (1 << 20) / (32 << 10), "session full"},
		{"bytes of QoS 1, with a limit", 1, 80, 200 << 10, server.Limits{SessionBytes: 1 << 20}, (1 << 20) / (200 << 10), "session full"},
		{"messages of QoS 1, with a limit", 1, 200, 1, server.Limits{SessionMessages: 100}, 100, "session full"},
	} {
		t.Run(test.name, func(t *testing.T) {
			address, s := testsupport.StartServer(t, server.Options{Limits: test.limits})
			reader := testsupport.DialRaw(t, address, "reader")
			// The sockets hold little, so few messages are enough: the server ends the connection
			// of a subscriber that does not read for seconds.
			if err := reader.Conn.(*net.TCPConn).SetReadBuffer(256 << 10); err != nil {
				t.Fatal(err)
			}
			reader.Subscribe("factory/news")
			writer := testsupport.Connect(t, address, "writer", nil)
			for range test.messages {
				message := &paho.Publish{QoS: test.qos, Topic: "factory/news", Payload: make([]byte, test.size)}
				if _, err := writer.Publish(message); err != nil {
					t.Fatal(err)
				}
			}
			writer.MustGet("k", "") // all of them were handled
			usage := s.Usage()
			if usage.WaitingMessages > int64(test.most) {
				t.Errorf("%d messages wait; %d may", usage.WaitingMessages, test.most)
			}
			dropped := int(s.Stats().DroppedMessages[test.why])
			if dropped == 0 {
				t.Errorf("nothing was dropped: %v", s.Stats().DroppedMessages)
			}
			_ = reader.Conn.SetDeadline(time.Now().Add(testsupport.Patience))
			// Each of the others arrives, and where it must be acknowledged there is room again.
			for range test.messages - dropped {
				message, ok := testsupport.ParsePublish(reader.Read())
				if !ok || message.QoS != test.qos {
					t.Fatalf("got a message of QoS %d, %t", message.QoS, ok)
				}
				if message.QoS > 0 {
					reader.Write(mqtt.AppendPuback(nil, message.PacketID))
				}
			}
			if reader.Do("GET", "k"); test.qos > 0 && s.Usage().WaitingMessages > 0 {
				t.Errorf("%d messages still wait", s.Usage().WaitingMessages)
			}
			writer.SendMessage(&paho.Publish{QoS: test.qos, Topic: "factory/news", Payload: []byte("last")})
			if message, _ := testsupport.ParsePublish(reader.Read()); string(message.Payload) != "last" {
				t.Errorf("a message of %d bytes came last", len(message.Payload))
			}
		})
	}
}

func TestUserPropertiesArriveWithoutRequestProblemInformation(t *testing.T) {
	address := testsupport.Start(t, server.Options{})
	few := uint16(10)
	p := testsupport.Connect(t, address, "p", func(c *paho.Connect) {
		// paho v0.23.0 sends Request Problem Information 0 with any CONNECT properties unless
		// it is set, and deployed clients do not set it.
		c.Properties = &paho.ConnectProperties{ReceiveMaximum: &few}
	})
	must := func(what string, message *paho.Publish, names ...string) {
		t.Helper()
		for _, name := range names {
			if message.Properties.User.Get(name) == "" {
				t.Errorf("%s has no %s: %v", what, name, message.Properties.User)
			}
		}
	}
	ask := func(words ...string) *paho.Publish {
		t.Helper()
		if _, err := p.Publish(p.Request(words...)); err != nil {
			t.Fatal(err)
		}
		return p.Next()
	}
	must("the reply to a KEYNOTIFY", ask("KEYNOTIFY", "k"), "__stat", "__protVer", "tenure-store")
	must("the reply to a SET", ask("SET", "k", "v"), "__ts", "__stat", "__protVer", "tenure-store")
	must("a notification", p.NextNotification(), "__ts", "__protVer", "tenure-store")
	must("an error", ask("FROB"), "__stat", "__protVer", "tenure-store")
	p.Subscribe("clients/p/elsewhere")
	request := p.Request("GET", "k")
	request.Properties.ResponseTopic = "clients/p/elsewhere"
	if _, err := p.Publish(request); err != nil {
		t.Fatal(err)
	}
	must("a reply elsewhere", p.Next(), "__ts", "__stat", "__protVer", "tenure-store")
	// The expiry that a client sets is not shortened either.
	p.Subscribe("factory/news")
	testsupport.Connect(t, address, "q", nil).SendMessage(&paho.Publish{QoS: 1, Topic: "factory/news", Properties: &paho.PublishProperties{
		User: paho.UserProperties{{Key: "said", Value: "so"}},
	}})
	must("a message", p.Next(), "said")
}

// The broker waits for a client that does not read when it publishes to it with QoS 1,
// whether it publishes a message or the Will of a client that is being taken over.
func TestAStuckSubscriberDelaysATakeOverForSecondsAtMost(t *testing.T) {
	address := testsupport.Start(t, server.Options{})
	stuck := testsupport.DialPacketClient(t, address, "stuck", nil)
	if err := stuck.Subscribe("factory/#", 1); err != nil {
		t.Fatal(err)
	}
	chat := testsupport.Connect(t, address, "chat", nil)
	testsupport.Connect(t, address, "p", testsupport.WithWill("factory/p/gone", "gone"))
	for range 800 { // with QoS 0, which does not wait, until every buffer on the way is full
		if _, err := chat.Publish(&paho.Publish{Topic: "factory/x", Payload: []byte(strings.Repeat("x", 32<<10))}); err != nil {
			t.Fatal(err)
		}
	}
	chat.Do("GET", "k")
	present, err := testsupport.TryConnect(t, address, "p", nil) // gives up after ten seconds
	if err != nil {
		t.Fatalf("the take-over: %v", err)
	}
	present.Subscribe(present.ReplyTo)
	present.MustGet("k", "")
}

// Clients that could not be sent a CONNACK must not count against MaxClients until no other can connect.
func TestAClientLostBeforeItsCONNACKIsForgotten(t *testing.T) {
	turnstile := testsupport.Turnstile{Reached: make(chan struct{}), Open: make(chan struct{})}
	address, s := testsupport.StartServer(t, server.Options{MaxClients: 3, Authenticator: turnstile})
	for i := range 5 {
		conn := testsupport.DialTCP(t, address)
		testsupport.Send(t, conn, string(testsupport.EncodeConnect(fmt.Sprint("p-", i), nil)))
		await.Receive(turnstile.Reached)
		_ = conn.(*net.TCPConn).SetLinger(0)
		_ = conn.Close()
		time.Sleep(10 * time.Millisecond) // where the reset comes too late nothing is tested, and nothing fails
		turnstile.Open <- struct{}{}
		testsupport.Eventually(t, "the connection is over", func() bool { return s.Sockets() == 0 })
		if left := s.Clients(); left > 0 {
			t.Fatalf("%d clients are left of %d that connected and went", left, i+1)
		}
	}
}

// A kept session must survive that.
func TestASessionSurvivesAConnectionLostBeforeItsCONNACK(t *testing.T) {
	kept := uint32(600)
	for _, test := range []struct {
		name      string
		hello     string
		subscribe string
	}{
		{"MQTT 3.1.1", "\x10\x0d\x00\x04MQTT\x04\x00\x00\x3c\x00\x01p", "\x82\x0e\x00\x07\x00\x09factory/x\x01"},
		{"MQTT 5", string(testsupport.EncodeConnect("p", func(c *packets.Connect) {
			c.CleanStart, c.Properties.SessionExpiryInterval = false, &kept
		})), "\x82\x0f\x00\x07\x00\x00\x09factory/x\x01"},
	} {
		t.Run(test.name, func(t *testing.T) {
			turnstile := testsupport.Turnstile{Reached: make(chan struct{}), Open: make(chan struct{})}
			address, s := testsupport.StartServer(t, server.Options{Authenticator: turnstile})
			conn := testsupport.DialTCP(t, address)
			testsupport.Send(t, conn, test.hello)
			await.Receive(turnstile.Reached)
			turnstile.Open <- struct{}{}
			testsupport.Send(t, conn, test.subscribe)
			subscribers := func() int { return s.Usage().Subscriptions }
			testsupport.Eventually(t, "it subscribes", func() bool { return subscribers() == 1 })
			_ = conn.Close()
			testsupport.Eventually(t, "the connection is over", func() bool { return s.Sockets() == 0 })
			conn = testsupport.DialTCP(t, address)
			testsupport.Send(t, conn, test.hello)
			await.Receive(turnstile.Reached)
			_ = conn.(*net.TCPConn).SetLinger(0)
			_ = conn.Close()
			time.Sleep(10 * time.Millisecond)
			turnstile.Open <- struct{}{}
			testsupport.Eventually(t, "the connection is over", func() bool { return s.Sockets() == 0 })
			if clients, left := s.Clients(), subscribers(); clients != 1 || left != 1 {
				t.Errorf("%d clients with %d subscriptions are left of one session", clients, left)
			}
		})
	}
}

// [MQTT-3.1.3-6, MQTT-3.1.3-7]: a client without an id gets one of its own.
func TestAClientWithoutAnIDGetsOne(t *testing.T) {
	address := testsupport.Start(t, server.Options{})
	ids := make(map[string]bool)
	for range 3 {
		p, err := testsupport.TryConnect(t, address, "", nil)
		if err != nil {
			t.Fatal(err)
		}
		id := p.Connack.Properties.AssignedClientID
		if id == "" || ids[id] {
			t.Errorf("got %q after %v", id, ids)
		}
		ids[id] = true
	}
	// A CONNACK of MQTT 3.1.1 does not name the id.
	for range 2 {
		conn := testsupport.DialTCP(t, address)
		testsupport.Send(t, conn, "\x10\x0c\x00\x04MQTT\x04\x02\x00\x3c\x00\x00")
		mustBeAccepted(t, conn)
	}
}

// Nor does it take anything from a client that has its id: a connection, a session, or a Will that waits.
func TestAClientThatTakesNoConnackTakesNothingOver(t *testing.T) {
	for _, resume := range []bool{false, true} {
		t.Run(fmt.Sprint("resume ", resume), func(t *testing.T) {
			var log logbuffer.Buffer
			address, s := testsupport.StartServer(t, server.Options{Logger: log.Logger()})
			listener := testsupport.ConnectPacket{ID: "listener"}.Connect(t, address)
			listener.Subscribe("factory/p")
			asked := testsupport.ConnectPacket{ID: "p", Resume: resume, Expiry: 600, Will: testsupport.OrdinaryWill("factory/p", 600)}
			tooSmall := asked
			tooSmall.Properties = rawmqtt.Body{packets.PropMaximumPacketSize}.Uint32(5)
			mustBeRefused := func(times uint64) {
				t.Helper()
				if _, connack := tooSmall.TryConnect(t, address); connack != nil {
					t.Errorf("CONNACK %x", connack)
				}
				if got := s.Stats().Refused[server.RefusedRules]; got != times {
					t.Errorf("%d refusals are counted, want %d", got, times)
				}
			}
			p := asked.Connect(t, address)
			mustBeRefused(1)
			p.Write(testsupport.Packet(packets.PINGREQ << 4))
			if answer := p.Read(); answer[0] != packets.PINGRESP<<4 {
				t.Errorf("the client that was connected gets %x", answer)
			}
			_ = p.Conn.Close()
			testsupport.MustHaveClients(t, s, 1)
			mustBeRefused(2)
			if !s.HasSession("p") {
				t.Error("its session has ended")
			}
			listener.MustPublish("factory/p", "the Will waits")
			listener.MustReceive("the Will waits")
			testsupport.Eventually(t, "no client id is taken", func() bool { return s.LockedClientIDs() == 0 })
			pass(s, 600)
			listener.MustReceive("gone")
			if line := "no packet of the size of a CONNACK"; !strings.Contains(log.String(), line) {
				t.Errorf("%q is not in the log:\n%s", line, &log)
			}
		})
	}
}

// [MQTT-3.1.2.5]: the server publishes the Will if it ends the connection for a fault of the client. A
// DISCONNECT behind the faulty packet is too late.
func TestADisconnectBehindAForbiddenPacketDoesNotWithdrawTheWill(t *testing.T) {
	address := testsupport.Start(t, server.Options{})
	observer := testsupport.Connect(t, address, "observer", nil)
	observer.Subscribe("factory/p/#")
	for name, packet := range map[string][]byte{
		"QoS 2":              testsupport.Encode(&packets.Publish{QoS: 2, PacketID: 9, Topic: "factory/p/x", Properties: &packets.Properties{}}),
		"a malformed packet": []byte("\x30\x02\xff\xff"),
	} {
		p := testsupport.Connect(t, address, "p", testsupport.WithWill("factory/p/gone", name))
		_, _ = p.Conn.Write(append(packet, packets.DISCONNECT<<4, 0))
		observer.MustReceive(name)
	}
}

// [MQTT 3.1.1, 3.14]: only clients send a DISCONNECT.
func TestAServerSendsNoDisconnectBeforeMQTT5(t *testing.T) {
	address := testsupport.Start(t, server.Options{})
	const hello = "\x10\x0d\x00\x04MQTT\x04\x02\x00\x3c\x00\x01p"
	old := testsupport.DialTCP(t, address)
	testsupport.Send(t, old, hello)
	mustBeAccepted(t, old)
	next := testsupport.DialTCP(t, address)
	testsupport.Send(t, next, hello)
	mustBeAccepted(t, next)
	testsupport.MustBeClosed(t, old)
}

// mustBeAccepted reads a CONNACK of MQTT 3.1.1.
func mustBeAccepted(t *testing.T, conn net.Conn) {
	t.Helper()
	answer := make([]byte, 4)
	if _, err := io.ReadFull(conn, answer); err != nil || string(answer) != "\x20\x02\x00\x00" {
		t.Fatalf("got % x, %v", answer, err)
	}
}
