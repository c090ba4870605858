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
	"github.com/tenurelock/tenure/server/internal/pubsub"
	"github.com/tenurelock/tenure/server/internal/rawmqtt"
	"github.com/tenurelock/tenure/server/internal/testsupport"
)

// A Will declares the holder of a lock dead. A late Will would declare its successor dead.
func TestTheWillOfATakenOverConnectionComesOnceAndBeforeTheNewOneActs(t *testing.T) {
	t.Parallel()
	address, s := testsupport.StartServer(t, server.Options{})
	observer := testsupport.Connect(t, address, "observer", nil)
	observer.Subscribe("factory/p/#")
	old := testsupport.Connect(t, address, "p", testsupport.WithWill("factory/p/gone", "end of 0"))
	for i := range 50 {
		present := testsupport.Connect(t, address, "p", testsupport.WithWill("factory/p/gone", fmt.Sprintf("end of %d", i+1)))
		present.Send("factory/p/news", fmt.Sprintf("begin of %d", i+1))
		old.MustBeDisconnected(testsupport.ReasonTakenOver)
		observer.MustReceive(fmt.Sprintf("end of %d", i))
		observer.MustReceive(fmt.Sprintf("begin of %d", i+1))
		old = present
	}
	_ = old.Paho.Disconnect(&paho.Disconnect{})
	testsupport.MustHaveClients(t, s, 1) // a take-over might close the socket before the DISCONNECT was read
	testsupport.Connect(t, address, "p", nil).Send("factory/p/news", "last")
	observer.MustReceive("last")
}

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

// [MQTT-3.1.2-8] and [MQTT-3.1.2-10]: a Will is published whenever a connection ends
// without a DISCONNECT of the client, and then once.
func TestAWillComesOnceHoweverTheConnectionEndsButNotAfterADisconnect(t *testing.T) {
	raw := func(data []byte) func(*testsupport.PahoClient) {
		return func(p *testsupport.PahoClient) { _, _ = p.Conn.Write(data) }
	}
	forbidden := &packets.Publish{QoS: 1, PacketID: 9, Topic: testsupport.InvokeTopic, Payload: testsupport.Command("GET", "k"),
		Properties: &packets.Properties{ResponseTopic: testsupport.InvokeTopic, CorrelationData: []byte("0123456789abcdef")}}
	exactlyTwo := &packets.Publish{QoS: 2, PacketID: 9, Topic: "factory/p/x", Properties: &packets.Properties{}}
	again := &packets.Connect{ProtocolName: "MQTT", ProtocolVersion: 5, ClientID: "p", Properties: &packets.Properties{}}
	for _, test := range []struct {
		name string
		end  func(*testsupport.PahoClient)
		will bool
	}{
		{"closed", func(p *testsupport.PahoClient) { _ = p.Conn.Close() }, true},
		{"reset", func(p *testsupport.PahoClient) { _ = p.Conn.(*net.TCPConn).SetLinger(0); _ = p.Conn.Close() }, true},
		{"a second CONNECT", raw(testsupport.Encode(again)), true},
		{"a malformed packet", raw([]byte("\x30\x02\xff\xff")), true},
		{"a packet that is too large", raw([]byte("\x30\xff\xff\xff\x7f")), true},
		{"a publish with QoS 2", raw(testsupport.Encode(exactlyTwo)), true},
		{"a forbidden response topic", raw(testsupport.Encode(forbidden)), true},
		{"DISCONNECT with Will", func(p *testsupport.PahoClient) { _ = p.Paho.Disconnect(&paho.Disconnect{ReasonCode: 4}) }, true},
		{"DISCONNECT with Will and no properties", raw([]byte("\xe0\x01\x04")), true},
		{"DISCONNECT for an error", raw([]byte("\xe0\x02\x82\x00")), true},
		{"DISCONNECT", func(p *testsupport.PahoClient) { _ = p.Paho.Disconnect(&paho.Disconnect{}) }, false},
		{"DISCONNECT with a reason and no properties", raw([]byte("\xe0\x01\x00")), false},
	} {
		t.Run(test.name, func(t *testing.T) {
			address, s := testsupport.StartServer(t, server.Options{})
			observer := testsupport.Connect(t, address, "observer", nil)
			observer.Subscribe("factory/p/#")
			p := testsupport.Connect(t, address, "p", testsupport.WithWill("factory/p/gone", "gone"))
			test.end(p)
			if test.will {
				observer.MustReceive("gone")
			}
			testsupport.Eventually(t, "the connection ends", func() bool { return s.Sockets() == 1 })
			testsupport.Connect(t, address, "p", nil).Send("factory/p/news", "last")
			observer.MustReceive("last")
		})
	}
}

func TestTheWillOfAClientOfAnOlderMQTTComesWhenItsRequestEndsTheConnection(t *testing.T) {
	address := testsupport.Start(t, server.Options{})
	observer := testsupport.Connect(t, address, "observer", nil)
	observer.Subscribe("factory/#")
	conn := testsupport.DialTCP(t, address)
	testsupport.Send(t, conn, "\x10\x22\x00\x04MQTT\x04\x0e\x00\x3c\x00\x03old\x00\x0bfactory/old\x00\x04gone")
	connack := make([]byte, 4)
	if _, err := io.ReadFull(conn, connack); err != nil || connack[3] != 0 {
		t.Fatalf("CONNACK %x, %v", connack, err)
	}
	testsupport.Send(t, conn, fmt.Sprintf("\x32%c\x00%c%s\x00\x07", len(testsupport.InvokeTopic)+4, len(testsupport.InvokeTopic), testsupport.InvokeTopic))
	observer.MustReceive("gone")
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
		{"bytes of QoS 1", 1, 80, 200 << 10, server.Limits{}, (4 << 20) / (200 << 10), "session full"},
		{"bytes of QoS 1, with a limit", 1, 80, 200 << 10, server.Limits{SessionBytes: 1 << 20}, (1 << 20) / (200 << 10), "session full"},
		{"messages of QoS 1", 1, 10_100, 1, server.Limits{}, 10_000, "session full"},
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

func TestTheBrokerAddsNoMessageExpiry(t *testing.T) {
	address := testsupport.Start(t, server.Options{})
	p, q := testsupport.Connect(t, address, "p", nil), testsupport.Connect(t, address, "q", nil)
	q.Subscribe("factory/news")
	given := uint32(100_000) // more than the broker's own limit
	for _, test := range []struct {
		name   string
		expiry *uint32
	}{
		{"without", nil}, {"with", &given},
	} {
		p.SendMessage(&paho.Publish{QoS: 1, Topic: "factory/news", Payload: []byte("x"), Properties: &paho.PublishProperties{MessageExpiry: test.expiry}})
		got := q.Next().Properties.MessageExpiry
		if test.expiry == nil && got != nil {
			t.Errorf("%s: it expires after %d s", test.name, *got)
		}
		// The rest of it: the time in the server is subtracted.
		if test.expiry != nil && (got == nil || *got > given || *got < given-uint32(testsupport.Patience.Seconds())) {
			t.Errorf("%s: expiry %v, want %d", test.name, got, given)
		}
	}
	// Replies of the store have no expiry.
	if _, err := p.Publish(p.Request("GET", "k")); err != nil {
		t.Fatal(err)
	}
	if got := p.Next().Properties.MessageExpiry; got != nil {
		t.Errorf("a reply expires after %d s", *got)
	}
}

// overhear subscribes inside the server, past the rules about topics. It receives up to 4 MiB.
func overhear(t *testing.T, s *server.Server) *eavesdropper {
	t.Helper()
	e := &eavesdropper{woken: make(chan struct{}, 1), session: s.Messages().Session("eavesdropper")}
	e.session.Attach(pubsub.Receiver{Link: e, MQTT5: true})
	if err := e.session.Subscribe(pubsub.Subscription{Filter: "#", QoS: 1}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(e.session.End)
	return e
}

// eavesdropper is a subscriber without a connection.
type eavesdropper struct {
	session *pubsub.Session
	woken   chan struct{}
	heard   []mqtt.Publish
}

func (e *eavesdropper) Wake() {
	select {
	case e.woken <- struct{}{}:
	default:
	}
}

// until calls each with all messages until the first on a topic.
func (e *eavesdropper) until(t *testing.T, topic string, each func(mqtt.Publish)) {
	t.Helper()
	for {
		for len(e.heard) > 0 {
			message := e.heard[0]
			e.heard = e.heard[1:]
			if string(message.Topic) == topic {
				return
			}
			each(message)
		}
		select {
		case <-e.woken:
		case <-time.After(testsupport.Patience):
			t.Fatalf("there is no message on %q", topic)
		}
		for more := true; more; {
			var packet []byte
			packet, more = e.session.Append(e, nil, 1)
			for len(packet) > 0 {
				size, _, _ := mqtt.Size(packet)
				message, _ := testsupport.ParsePublish(packet[:size])
				e.heard = append(e.heard, message)
				if message.QoS > 0 {
					e.session.Acknowledge(message.PacketID)
				}
				packet = packet[size:]
			}
		}
	}
}

// Several checks keep a request from subscribers. This test looks behind the first.
func TestNoRequestIsPublishedWhateverItLacks(t *testing.T) {
	address, s := testsupport.StartServer(t, server.Options{})
	heard := overhear(t, s)
	p := testsupport.Connect(t, address, "p", nil)
	for _, qos := range []byte{0, 1} {
		for name, change := range map[string]func(*paho.Publish){
			"nothing":                   func(*paho.Publish) {},
			"a response topic":          func(m *paho.Publish) { m.Properties.ResponseTopic = "" },
			"correlation data":          func(m *paho.Publish) { m.Properties.CorrelationData = nil },
			"a possible response topic": func(m *paho.Publish) { m.Properties.ResponseTopic = "$SYS/broker" },
			"a response topic of its own": func(m *paho.Publish) {
				m.Properties.ResponseTopic = "clients/q/response"
			},
			"sense": func(m *paho.Publish) { m.Payload = []byte("nonsense") },
		} {
			request := p.Request("GET", "k")
			request.QoS = qos
			change(request)
			if ack, err := p.Publish(request); err != nil && ack == nil {
				t.Fatalf("a request that lacks %s: %v", name, err)
			}
		}
	}
	p.Send("last", "last")
	heard.until(t, "last", func(message mqtt.Publish) {
		if string(message.Topic) == testsupport.InvokeTopic {
			t.Errorf("a request was published: %q, QoS %d", message.Payload, message.QoS)
		}
	})
}

// A reply must not wait for the reader of another connection.
func TestAStuckReaderOfItsRepliesDoesNotDelayARequester(t *testing.T) {
	address := testsupport.Start(t, server.Options{})
	stuck := testsupport.DialPacketClient(t, address, "stuck", func(conn *net.TCPConn) { _ = conn.SetReadBuffer(4096) })
	if err := stuck.Subscribe("factory/answers", 1); err != nil {
		t.Fatal(err)
	}
	p := testsupport.Connect(t, address, "p", nil)
	p.Do("SET", "k", strings.Repeat("x", 64<<10))
	for range 500 { // more than sockets hold
		request := p.Request("GET", "k")
		request.Properties.ResponseTopic = "factory/answers"
		if _, err := p.Publish(request); err != nil {
			t.Fatal(err)
		}
	}
	p.MustGet("nothing", "")
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

func TestASessionIsKeptForAnHourAtMost(t *testing.T) {
	for _, asked := range []uint32{3601, 1<<32 - 1} {
		p := testsupport.Connect(t, testsupport.Start(t, server.Options{}), "p", func(c *paho.Connect) { c.Properties.SessionExpiryInterval = &asked })
		if got := p.Connack.Properties.SessionExpiryInterval; got == nil || *got != 3600 {
			t.Errorf("asked for %d s: got %v", asked, got)
		}
	}
}

func TestAnExpiredSessionLeavesNoSubscriptions(t *testing.T) {
	t.Parallel()
	address, s := testsupport.StartServer(t, server.Options{})
	p := testsupport.Connect(t, address, "p", func(c *paho.Connect) { second := uint32(1); c.Properties.SessionExpiryInterval = &second })
	p.Subscribe("factory/#")
	_ = p.Conn.Close()
	testsupport.Eventually(t, "the connection ends", func() bool { return s.Sockets() == 0 })
	session, ok := s.Messages().Find("p")
	if !ok {
		t.Fatal("the session is not kept")
	}
	if _, subscribed := session.Matches("factory/news"); !subscribed {
		t.Error("the subscription is gone while the session is kept")
	}
	testsupport.Eventually(t, "the session runs out", func() bool { return s.Clients() == 0 })
	if left := s.Usage(); left.Subscriptions > 0 || left.Sessions > 0 {
		t.Errorf("left are %+v", left)
	}
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

// [MQTT-3.1.3.3]: the payload of a Will may be empty.
func TestAWillWithoutAPayloadIsPublished(t *testing.T) {
	address := testsupport.Start(t, server.Options{})
	observer := testsupport.Connect(t, address, "observer", nil)
	observer.Subscribe("factory/p/#")
	p := testsupport.Connect(t, address, "p", testsupport.WithWill("factory/p/gone", ""))
	_ = p.Conn.Close()
	observer.MustReceive("")
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

// [MQTT-3.1.2-24]: a client that takes no CONNACK is not connected, and leaves nothing.
func TestAClientThatTakesNoConnackIsNotConnected(t *testing.T) {
	address, s := testsupport.StartServer(t, server.Options{})
	five, kept := uint32(5), uint32(60)
	conn := testsupport.DialTCP(t, address)
	testsupport.Send(t, conn, string(testsupport.EncodeConnect("p", func(c *packets.Connect) {
		c.Properties.MaximumPacketSize, c.Properties.SessionExpiryInterval = &five, &kept
	})))
	testsupport.MustBeClosed(t, conn)
	testsupport.Eventually(t, "the connection is over", func() bool { return s.Sockets() == 0 })
	if got := s.Stats().Connected; got != 0 {
		t.Errorf("%d clients are connected", got)
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
