package integration_test

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/eclipse/paho.golang/packets"
	"github.com/eclipse/paho.golang/paho"

	"github.com/tenurelock/tenure/internal/await"
	"github.com/tenurelock/tenure/internal/logbuffer"
	"github.com/tenurelock/tenure/server"
	"github.com/tenurelock/tenure/server/activity"
	"github.com/tenurelock/tenure/server/internal/rawmqtt"
	"github.com/tenurelock/tenure/server/internal/testsupport"
)

func TestARequestIsAnsweredWithEverythingThatDeployedClientsWant(t *testing.T) {
	p := testsupport.Connect(t, testsupport.Start(t, server.Options{}), "client-id1", nil)
	request := p.Request("SET", "SETKEY2", "VALUE5")
	ack, err := p.Publish(request)
	if err != nil || ack.ReasonCode != 0 {
		t.Fatalf("PUBACK %+v, %v", ack, err)
	}
	if ack.Properties != nil && len(ack.Properties.User) > 0 {
		t.Errorf("the PUBACK repeats the user properties %v", ack.Properties.User)
	}
	reply := p.Next()
	if got := string(reply.Payload); got != "+OK\r\n" {
		t.Errorf("payload %q", got)
	}
	if got, want := string(reply.Properties.CorrelationData), string(request.Properties.CorrelationData); got != want {
		t.Errorf("correlation data %q, want %q", got, want)
	}
	if got := reply.Properties.ContentType; got != "application/octet-stream" {
		t.Errorf("content type %q", got)
	}
	for name, want := range map[string]string{"__stat": "200", "__protVer": "1.0"} {
		if got := reply.Properties.User.Get(name); got != want {
			t.Errorf("%s is %q, want %q", name, got, want)
		}
	}
	version := reply.Properties.User.Get("__ts")
	if !strings.HasSuffix(version, ":StateStore") {
		t.Errorf("__ts is %q", version)
	}
	if _, err := p.Publish(p.Request("GET", "SETKEY2")); err != nil {
		t.Fatal(err)
	}
	reply = p.Next()
	if got := string(reply.Payload); got != "$6\r\nVALUE5\r\n" || reply.Properties.User.Get("__ts") != version {
		t.Errorf("GET: %q with version %q, want the version of the SET, %q", got, reply.Properties.User.Get("__ts"), version)
	}
	if got := p.Do("get", "nothing"); got != "$-1\r\n" {
		t.Errorf("GET of a missing key: %q", got)
	}
	if got := p.Do("FROB"); got != "-ERR unknown command\r\n" {
		t.Errorf("an unknown verb: %q", got)
	}
}

// docs/protocol.md §1.2: a request fails without a response topic or correlation data, and
// with a QoS other than 1.
func TestProtocol1ARequestThatLacksSomethingIsDroppedAndCounted(t *testing.T) {
	for _, test := range []struct {
		name   string
		change func(*paho.Publish)
		code   byte // of the PUBACK; 0: there is none
		why    server.DropReason
	}{
		{"no response topic", func(m *paho.Publish) { m.Properties.ResponseTopic = "" }, packets.PubackImplementationSpecificError, server.DroppedNoResponse},
		{"no correlation data", func(m *paho.Publish) { m.Properties.CorrelationData = nil }, packets.PubackImplementationSpecificError, server.DroppedNoCorrelation},
		{"a system response topic", func(m *paho.Publish) { m.Properties.ResponseTopic = "$SYS/broker" }, packets.PubackTopicNameInvalid, server.DroppedInvalidTopic},
		{"a shared response topic", func(m *paho.Publish) { m.Properties.ResponseTopic = "$share/g/clients/p/response" }, packets.PubackTopicNameInvalid, server.DroppedInvalidTopic},
		{"another client's response topic", func(m *paho.Publish) { m.Properties.ResponseTopic = "clients/q/response" }, packets.PubackNotAuthorized, server.DroppedForeignTopic},
		{"QoS 0", func(m *paho.Publish) { m.QoS = 0 }, 0, server.DroppedQoS},
	} {
		t.Run(test.name, func(t *testing.T) {
			var log logbuffer.Buffer
			address, s := testsupport.StartServer(t, server.Options{Logger: log.Logger()})
			p, spy := testsupport.Connect(t, address, "p", nil), testsupport.Connect(t, address, "spy", nil)
			spy.Subscribe("#")
			request := p.Request("SET", "k", "v")
			test.change(request)
			ack, err := p.Publish(request)
			if test.code == 0 && err != nil || test.code != 0 && (err == nil || ack == nil || ack.ReasonCode != test.code ||
				ack.Properties == nil || ack.Properties.ReasonString != string(test.why)) {
				t.Errorf("PUBACK %+v, %v; want %#x, %q", ack, err, test.code, test.why)
			}
			p.MustGet("k", "")
			if got := s.Stats().Dropped; got[test.why] != 1 || len(got) != 1 {
				t.Errorf("dropped requests are counted as %v", got)
			}
			if text := log.String(); !strings.Contains(text, "client=p") || !strings.Contains(text, string(test.why)) {
				t.Errorf("the log says\n%s", text)
			}
			spy.MustBeSilent()
			if len(spy.Received) > 0 {
				t.Errorf("the spy received %v", await.Receive(spy.Received))
			}
		})
	}
}

// docs/protocol.md §1.1: QoS 1 only. CONNACK announces that, and paho would not send QoS 2.
func TestProtocol1ARequestWithQoS2EndsTheConnection(t *testing.T) {
	address, s := testsupport.StartServer(t, server.Options{})
	p, other := testsupport.Connect(t, address, "p", nil), testsupport.Connect(t, address, "other", nil)
	message := &packets.Publish{QoS: 2, PacketID: 7, Topic: testsupport.InvokeTopic, Payload: testsupport.Command("SET", "k", "v"),
		Properties: &packets.Properties{ResponseTopic: p.ReplyTo, CorrelationData: []byte("0123456789abcdef")}}
	if _, err := message.WriteTo(p.Conn); err != nil {
		t.Fatal(err)
	}
	p.MustBeDisconnected(packets.DisconnectQoSNotSupported)
	other.MustGet("k", "")
	if got := s.Stats().Dropped[server.DroppedQoS]; got != 1 {
		t.Errorf("%d such requests are counted", got)
	}
}

// docs/protocol.md §1.1: MQTT 5 only.
func TestProtocol1ARequestOfAnMQTT311ClientEndsItsConnection(t *testing.T) {
	address, s := testsupport.StartServer(t, server.Options{})
	observer := testsupport.Connect(t, address, "observer", nil)
	observer.Subscribe("#")
	for _, test := range []struct {
		name  string
		topic string
		flags byte
		ends  bool
	}{
		{"a message on an ordinary topic", "factory/news", 0x32, false},
		{"a request", testsupport.InvokeTopic, 0x32, true},
		{"a retained request", testsupport.InvokeTopic, 0x33, true},
		{"a request with QoS 0", testsupport.InvokeTopic, 0x30, true},
	} {
		t.Run(test.name, func(t *testing.T) {
			conn, err := net.Dial("tcp", address)
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
			_ = conn.SetDeadline(time.Now().Add(testsupport.Patience))
			write := func(packet string) {
				t.Helper()
				if _, err := io.WriteString(conn, packet); err != nil {
					t.Fatal(err)
				}
			}
			read := func(want string) error {
				got := make([]byte, len(want))
				_, err := io.ReadFull(conn, got)
				if err == nil && string(got) != want {
					t.Errorf("read %q, want %q", got, want)
				}
				return err
			}
			write("\x10\x0f\x00\x04MQTT\x04\x02\x00\x3c\x00\x03old")
			if err := read("\x20\x02\x00\x00"); err != nil {
				t.Fatal(err)
			}
			body := fmt.Sprintf("\x00%c%s", len(test.topic), test.topic)
			if test.flags&0x06 != 0 {
				body += "\x00\x07"
			}
			body += string(testsupport.Command("SET", "k", "v"))
			write(string([]byte{test.flags, byte(len(body))}) + body)
			if err := read("\x40\x02\x00\x07"); (err != nil) != test.ends {
				t.Errorf("PUBACK: %v", err)
			}
		})
	}
	if got := s.Stats().Dropped[server.DroppedOldProtocol]; got != 3 {
		t.Errorf("%d requests are counted", got)
	}
	if message := observer.Next(); message.Topic != "factory/news" {
		t.Errorf("the observer received %v", message)
	}
	observer.MustGet("k", "")
}

// docs/protocol.md §1.2, and what deployed clients need: the request as the public Go SDK sends
// it, which has the hex of its id in its response topic, never subscribes to its
// notifications, and refuses a reply without __stat or with correlation data of
// another length.
func TestTheDeployedGoClientIsServed(t *testing.T) {
	address := testsupport.Start(t, server.Options{})
	p := testsupport.Connect(t, address, "client-id1", nil)
	p.ReplyTo = "clients/636C69656E742D696431/services/statestore/_any_/command/invoke/response"
	p.Subscribe(p.ReplyTo)
	expiry := uint32(10)
	ask := func(words ...string) *paho.Publish {
		t.Helper()
		request := p.Request(words...)
		request.Properties.ContentType = "application/octet-stream"
		request.Properties.MessageExpiry = &expiry
		for name, value := range map[string]string{"__srcId": "client-id1", "__protVer": "1.0", "$partition": "client-id1"} {
			request.Properties.User.Add(name, value)
		}
		if _, err := p.Publish(request); err != nil {
			t.Fatal(err)
		}
		reply := p.Next()
		if got := reply.Properties.CorrelationData; len(got) != 16 || string(got) != string(request.Properties.CorrelationData) {
			t.Errorf("%q: correlation data %q", words, got)
		}
		if got := reply.Properties.User.Get("__stat"); got != "200" {
			t.Errorf("%q: __stat is %q", words, got)
		}
		return reply
	}
	for _, test := range []struct {
		words []string
		want  string
	}{
		{[]string{"KEYNOTIFY", "SOMEKEY"}, "+OK\r\n"},
		{[]string{"SET", "SOMEKEY", "a", "NEX", "PX", "10000"}, "+OK\r\n"},
		{[]string{"SET", "SOMEKEY", "b", "NEX", "PX", "10000"}, ":-1\r\n"},
		{[]string{"VDEL", "SOMEKEY", "b"}, ":-1\r\n"},
		{[]string{"SET", "SOMEKEY"}, "-ERR wrong number of arguments\r\n"},
		{[]string{"VDEL", "SOMEKEY", "a"}, ":1\r\n"},
	} {
		if got := string(ask(test.words...).Payload); got != test.want {
			t.Errorf("%q: %q, want %q", test.words, got, test.want)
		}
	}
	for _, want := range []string{string(testsupport.Command("NOTIFY", "SET", "VALUE", "a")), string(testsupport.Command("NOTIFY", "DELETE"))} {
		got := p.NextNotification()
		if got.Topic != testsupport.ReservedPrefix+"/636C69656E742D696431/command/notify/534F4D454B4559" || string(got.Payload) != want {
			t.Errorf("notification %q on %s, want %q", got.Payload, got.Topic, want)
		}
	}
}

func TestARequestThatNamesTheStoresTopicsForItsReplyEndsTheConnection(t *testing.T) {
	for _, topic := range []string{
		testsupport.InvokeTopic,
		testsupport.ReservedPrefix,
		testsupport.ReservedPrefix + "/70/command/notify/6B",
	} {
		for name, change := range map[string]func(*paho.Publish){
			"":                         func(*paho.Publish) {},
			"with QoS 0":               func(m *paho.Publish) { m.QoS = 0 },
			"without correlation data": func(m *paho.Publish) { m.Properties.CorrelationData = nil },
		} {
			t.Run(topic+" "+name, func(t *testing.T) {
				address, s := testsupport.StartServer(t, server.Options{})
				forger, other := testsupport.Connect(t, address, "forger", nil), testsupport.Connect(t, address, "p", nil)
				request := forger.Request("SET", "k", "v")
				request.Properties.ResponseTopic = topic
				change(request)
				go func() { _, _ = forger.Publish(request) }() // never acknowledged
				if reason := forger.MustBeDisconnected(testsupport.ReasonNotAuthorized); reason != string(server.DroppedForbiddenTopic) {
					t.Errorf("the reason is %q", reason)
				}
				other.MustGet("k", "")
				await.Until(func() bool { // the page says why
					return slices.ContainsFunc(s.State().Clients, func(c activity.Client) bool { return c.Reason == activity.ReasonFault })
				})
			})
		}
	}
}

func TestAReplyGoesToEverySubscriberOfTheResponseTopic(t *testing.T) {
	address := testsupport.Start(t, server.Options{})
	requester, reader := testsupport.Connect(t, address, "requester", nil), testsupport.Connect(t, address, "reader", nil)
	reader.Subscribe("elsewhere/answers")
	request := requester.Request("GET", "k")
	request.Properties.ResponseTopic = "elsewhere/answers"
	if _, err := requester.Publish(request); err != nil {
		t.Fatal(err)
	}
	if reply := reader.Next(); string(reply.Payload) != "$-1\r\n" || reply.Topic != "elsewhere/answers" {
		t.Errorf("reply %v", reply)
	}
	requester.MustBeSilent()
	// Both of them.
	requester.Subscribe("elsewhere/answers")
	if _, err := requester.Publish(request); err != nil {
		t.Fatal(err)
	}
	reader.Next()
	if reply := requester.Next(); reply.Topic != "elsewhere/answers" {
		t.Errorf("reply %v", reply)
	}
}

func TestTheStoresTopicsAreItsOwn(t *testing.T) {
	address := testsupport.Start(t, server.Options{})
	p, spy := testsupport.Connect(t, address, "p", nil), testsupport.Connect(t, address, "spy", nil)
	for _, topic := range []string{testsupport.InvokeTopic, testsupport.ReservedPrefix + "/70/command/notify/+", testsupport.ReservedPrefix + "/#"} {
		if code, err := spy.TrySubscribe(topic); err == nil || code != packets.SubackNotauthorized {
			t.Errorf("subscribe to %q: code %#x, %v; want %#x", topic, code, err, packets.SubackNotauthorized)
		}
	}
	spy.Subscribe(testsupport.ReservedPrefix + "/737079/command/notify/+") // its own: "spy"
	spy.Subscribe("#")                                                     // granted, but without the store's topics
	if got := p.Do("KEYNOTIFY", "k"); got != "+OK\r\n" {
		t.Fatal(got)
	}
	p.Do("SET", "k", "v")
	p.NextNotification()
	forged := &paho.Publish{QoS: 1, Topic: testsupport.ReservedPrefix + "/70/command/notify/6B", Payload: []byte("x")}
	if ack, err := spy.Publish(forged); err == nil || ack.ReasonCode != packets.PubackNotAuthorized {
		t.Errorf("a forged notification: %+v, %v", ack, err)
	}
	p.MustBeSilent()
	// A message that arrives at the spy after its own message was sent after the others.
	if _, err := spy.Publish(&paho.Publish{QoS: 1, Topic: "last", Payload: []byte("x")}); err != nil {
		t.Fatal(err)
	}
	for message := spy.Next(); message.Topic != "last"; message = spy.Next() {
		if strings.HasPrefix(message.Topic, "statestore/") {
			t.Errorf("the spy received a request: %v", message)
		}
	}
	if len(spy.Notified) > 0 {
		t.Errorf("the spy received a notification of another: %v", await.Receive(spy.Notified))
	}
}

func TestAWillOnTheStoresTopicsIsRefusedAtConnect(t *testing.T) {
	address := testsupport.Start(t, server.Options{})
	service := strings.TrimSuffix(testsupport.InvokeTopic, "/command/invoke")
	for _, topic := range []string{service, service + "/command", testsupport.InvokeTopic + "/x", testsupport.ReservedPrefix + "/70/command/notify/6B"} {
		p, err := testsupport.TryConnect(t, address, "p", func(c *paho.Connect) {
			c.WillMessage = &paho.WillMessage{Topic: topic, Payload: testsupport.Command("DEL", "k"), QoS: 1}
		})
		if err == nil || p.Connack == nil || p.Connack.ReasonCode != packets.ConnackNotAuthorized {
			t.Errorf("a Will on %q: %+v, %v", topic, p.Connack, err)
		} else if !strings.Contains(p.Connack.Properties.ReasonString, "belongs to the state store") {
			t.Errorf("reason %q", p.Connack.Properties.ReasonString)
		}
	}
	testsupport.Connect(t, address, "p", func(c *paho.Connect) {
		c.WillMessage = &paho.WillMessage{Topic: "clients/p/gone", Payload: []byte("gone"), QoS: 1}
	})
}

func TestConnackSaysWhatTheServerWants(t *testing.T) {
	p := testsupport.Connect(t, testsupport.Start(t, server.Options{MaxPacketSize: 4096}), "p", func(c *paho.Connect) { c.KeepAlive = 0 })
	if got := p.Connack.Properties.MaximumPacketSize; got == nil || *got != 4096 {
		t.Errorf("maximum packet size %v, want 4096", got)
	}
	if got := p.Connack.Properties.ServerKeepAlive; got == nil || *got != 60 {
		t.Errorf("server keep-alive %v, want 60", got)
	}
	if got := p.Connack.Properties.MaximumQoS; got == nil || *got != 1 {
		t.Errorf("maximum QoS %v, want 1", got)
	}
}

func TestARequestOverTheMaximumPacketSizeHarmsItsSenderOnly(t *testing.T) {
	address := testsupport.Start(t, server.Options{MaxPacketSize: 1024})
	big, other := testsupport.Connect(t, address, "big", nil), testsupport.Connect(t, address, "p", nil)
	go func() { _, _ = big.Publish(big.Request("SET", "k", strings.Repeat("x", 4096))) }()
	big.MustBeGone()
	other.MustGet("k", "")
}

func TestTimestampsOfTheWireReachTheStore(t *testing.T) {
	p := testsupport.Connect(t, testsupport.Start(t, server.Options{}), "p", nil)
	for _, test := range []struct {
		name string
		user paho.UserProperties
		want string
	}{
		{"no timestamp", nil, "-ERR missing timestamp\r\n"},
		{"an empty timestamp", paho.UserProperties{{Key: "__ts", Value: ""}}, "-ERR malformed timestamp\r\n"},
		{"a token from the far future", paho.UserProperties{
			{Key: "__ts", Value: "0:0:p"},
			{Key: "__ft", Value: fmt.Sprintf("%d:0:p", time.Now().Add(time.Hour).UnixMilli())},
		}, "-ERR the request fencing token timestamp is too far in the future; ensure that the client and broker system clocks are synchronized\r\n"},
	} {
		request := p.Request("SET", "k", "v")
		request.Properties.User = test.user
		if _, err := p.Publish(request); err != nil {
			t.Fatal(err)
		}
		if got := string(p.Next().Payload); got != test.want {
			t.Errorf("%s: %q, want %q", test.name, got, test.want)
		}
	}
}

// Subscription Identifiers count towards the Maximum Packet Size of a client [MQTT-3.1.2-24].
func TestAReplyWithSubscriptionIdentifiersIsNotLargerThanItsClientTakes(t *testing.T) {
	address := testsupport.Start(t, server.Options{})
	size := 0
	for _, maximum := range []uint32{1 << 20, 0} {
		if maximum == 0 {
			maximum = uint32(size) - 1
		}
		conn, err := net.Dial("tcp", address)
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		_ = conn.SetDeadline(time.Now().Add(testsupport.Patience))
		in := bufio.NewReader(conn)
		login := rawmqtt.Login{ClientID: "p", KeepAlive: 60, Properties: rawmqtt.Body(nil).Byte(packets.PropMaximumPacketSize).Uint32(maximum)}
		subscribe := rawmqtt.Packet(packets.SUBSCRIBE, 2, rawmqtt.Body(nil).Uint16(1).
			Properties(rawmqtt.Body(nil).Byte(packets.PropSubscriptionIdentifier).Variable(1<<28-1)).Text("clients/p/r").Byte(0))
		request := rawmqtt.Message{Topic: testsupport.InvokeTopic, QoS: 1, ID: 2,
			Properties: rawmqtt.Body(nil).Byte(packets.PropResponseTopic).Text("clients/p/r").Byte(packets.PropCorrelationData).Text(fmt.Sprintf("%016d", size)),
			Payload:    testsupport.Command("GET", "k")}.Packet()
		for _, packet := range [][]byte{login.Packet(), subscribe, request} {
			if _, err := conn.Write(packet); err != nil {
				t.Fatal(err)
			}
		}
		for {
			first, body, err := rawmqtt.Read(in, 1<<20)
			if err != nil {
				t.Fatal(err)
			}
			if first>>4 == packets.PUBLISH {
				if got := len(rawmqtt.Packet(packets.PUBLISH, 0, body)); got > int(maximum) {
					t.Errorf("a reply of %d bytes; the client takes %d", got, maximum)
				} else {
					size = got
				}
			}
			if first>>4 == packets.PUBACK {
				break
			}
		}
	}
	if size == 0 {
		t.Error("there was no reply")
	}
}
