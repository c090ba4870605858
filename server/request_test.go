package server_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/eclipse/paho.golang/packets"
	"github.com/eclipse/paho.golang/paho"

	"github.com/tenurelock/tenure/server"
	"github.com/tenurelock/tenure/statestore"
)

func TestARequestIsAnsweredWithEverythingThatDeployedClientsWant(t *testing.T) {
	p := connect(t, start(t, server.Options{}), "client-id1", nil)
	request := p.request("SET", "SETKEY2", "VALUE5")
	ack, err := p.publish(request)
	if err != nil || ack.ReasonCode != 0 {
		t.Fatalf("PUBACK %+v, %v", ack, err)
	}
	if ack.Properties != nil && len(ack.Properties.User) > 0 {
		t.Errorf("the PUBACK repeats the user properties %v", ack.Properties.User)
	}
	reply := p.next()
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
	if _, err := p.publish(p.request("GET", "SETKEY2")); err != nil {
		t.Fatal(err)
	}
	reply = p.next()
	if got := string(reply.Payload); got != "$6\r\nVALUE5\r\n" || reply.Properties.User.Get("__ts") != version {
		t.Errorf("GET: %q with version %q, want that of the SET, %q", got, reply.Properties.User.Get("__ts"), version)
	}
	if got := p.do("get", "nothing"); got != "$-1\r\n" {
		t.Errorf("GET of a missing key: %q", got)
	}
	if got := p.do("FROB"); got != "-ERR unknown command\r\n" {
		t.Errorf("an unknown verb: %q", got)
	}
}

func TestARequestThatLacksSomethingIsDroppedWithTheReasonInItsPUBACK(t *testing.T) {
	for _, test := range []struct {
		name   string
		change func(*paho.Publish)
		code   byte
		reason string
	}{
		{"no response topic", func(m *paho.Publish) { m.Properties.ResponseTopic = "" }, 0x83, "needs a response topic"},
		{"no correlation data", func(m *paho.Publish) { m.Properties.CorrelationData = nil }, 0x83, "needs correlation data"},
		{"retained", func(m *paho.Publish) { m.Retain = true }, packets.PubackImplementationSpecificError, "may not be retained"},
		{"a wildcard in the response topic", func(m *paho.Publish) { m.Properties.ResponseTopic = "clients/+/response" }, packets.PubackTopicNameInvalid, "response topic"},
		{"a system response topic", func(m *paho.Publish) { m.Properties.ResponseTopic = "$SYS/broker" }, packets.PubackTopicNameInvalid, "response topic"},
		{"QoS 0", func(m *paho.Publish) { m.QoS = 0 }, 0, ""},
	} {
		t.Run(test.name, func(t *testing.T) {
			p := connect(t, start(t, server.Options{}), "p", nil)
			request := p.request("SET", "k", "v")
			test.change(request)
			ack, err := p.publish(request)
			if test.reason != "" {
				if err == nil || ack == nil || ack.Properties == nil || !strings.Contains(ack.Properties.ReasonString, test.reason) {
					t.Errorf("PUBACK %+v, %v; want the reason %q", ack, err, test.reason)
				} else if ack.ReasonCode < 0x80 {
					t.Errorf("PUBACK with code %#x", ack.ReasonCode)
				}
			}
			p.mustGet("k", "")
		})
	}
}

func TestARequestThatNamesTheStoresTopicsForItsReplyEndsTheConnection(t *testing.T) {
	for _, topic := range []string{
		invokeTopic,
		reservedPrefix,
		reservedPrefix + "/70/command/notify/6B",
	} {
		t.Run(topic, func(t *testing.T) {
			address := start(t, server.Options{})
			forger, other := connect(t, address, "forger", nil), connect(t, address, "p", nil)
			request := forger.request("SET", "k", "v")
			request.Properties.ResponseTopic = topic
			go func() { _, _ = forger.publish(request) }() // never acknowledged
			forger.mustBeDisconnected(reasonNotAuthorized)
			other.mustGet("k", "")
		})
	}
}

func TestAReplyGoesToWhoeverReadsTheResponseTopic(t *testing.T) {
	address := start(t, server.Options{})
	requester, reader := connect(t, address, "requester", nil), connect(t, address, "reader", nil)
	reader.subscribe("elsewhere/answers")
	request := requester.request("GET", "k")
	request.Properties.ResponseTopic = "elsewhere/answers"
	if _, err := requester.publish(request); err != nil {
		t.Fatal(err)
	}
	if reply := reader.next(); string(reply.Payload) != "$-1\r\n" || reply.Topic != "elsewhere/answers" {
		t.Errorf("reply %v", reply)
	}
	requester.mustBeSilent()
	// Both of them.
	requester.subscribe("elsewhere/answers")
	if _, err := requester.publish(request); err != nil {
		t.Fatal(err)
	}
	reader.next()
	if reply := requester.next(); reply.Topic != "elsewhere/answers" {
		t.Errorf("reply %v", reply)
	}
}

func TestTheStoresTopicsAreItsOwn(t *testing.T) {
	address := start(t, server.Options{})
	p, spy := connect(t, address, "p", nil), connect(t, address, "spy", nil)
	for _, topic := range []string{invokeTopic, reservedPrefix + "/70/command/notify/+", reservedPrefix + "/#"} {
		if code, err := spy.trySubscribe(topic); err == nil || code != packets.SubackNotauthorized {
			t.Errorf("subscribe to %q: code %#x, %v; want %#x", topic, code, err, packets.SubackNotauthorized)
		}
	}
	spy.subscribe(reservedPrefix + "/737079/command/notify/+") // its own: "spy"
	spy.subscribe("#")                                         // granted, but without the store's topics
	if got := p.do("KEYNOTIFY", "k"); got != "+OK\r\n" {
		t.Fatal(got)
	}
	p.do("SET", "k", "v")
	p.nextNotification()
	forged := &paho.Publish{QoS: 1, Topic: reservedPrefix + "/70/command/notify/6B", Payload: []byte("x")}
	if ack, err := spy.publish(forged); err == nil || ack.ReasonCode != packets.PubackNotAuthorized {
		t.Errorf("a forged notification: %+v, %v", ack, err)
	}
	p.mustBeSilent()
	// What arrives at the spy after its own message was sent after all that.
	if _, err := spy.publish(&paho.Publish{QoS: 1, Topic: "last", Payload: []byte("x")}); err != nil {
		t.Fatal(err)
	}
	for message := spy.next(); message.Topic != "last"; message = spy.next() {
		if strings.HasPrefix(message.Topic, "statestore/") {
			t.Errorf("the spy received a request: %v", message)
		}
	}
	if len(spy.notified) > 0 {
		t.Errorf("the spy received a notification of another: %v", <-spy.notified)
	}
}

func TestAWillOnTheStoresTopicsIsRefusedAtConnect(t *testing.T) {
	address := start(t, server.Options{})
	for _, topic := range []string{invokeTopic, reservedPrefix + "/70/command/notify/6B"} {
		p, err := tryConnect(t, address, "p", func(c *paho.Connect) {
			c.WillMessage = &paho.WillMessage{Topic: topic, Payload: command("DEL", "k"), QoS: 1}
		})
		if err == nil || p.connack == nil || p.connack.ReasonCode != packets.ConnackNotAuthorized {
			t.Errorf("a Will on %q: %+v, %v", topic, p.connack, err)
		} else if !strings.Contains(p.connack.Properties.ReasonString, "belongs to the state store") {
			t.Errorf("reason %q", p.connack.Properties.ReasonString)
		}
	}
	connect(t, address, "p", func(c *paho.Connect) {
		c.WillMessage = &paho.WillMessage{Topic: "clients/p/gone", Payload: []byte("gone"), QoS: 1}
	})
}

func TestConnackSaysWhatTheServerWants(t *testing.T) {
	p := connect(t, start(t, server.Options{MaxPacketSize: 4096}), "p", func(c *paho.Connect) { c.KeepAlive = 0 })
	if got := p.connack.Properties.MaximumPacketSize; got == nil || *got != 4096 {
		t.Errorf("maximum packet size %v, want 4096", got)
	}
	if got := p.connack.Properties.ServerKeepAlive; got == nil || *got != 60 {
		t.Errorf("server keep-alive %v, want 60", got)
	}
	if got := p.connack.Properties.MaximumQoS; got == nil || *got != 1 {
		t.Errorf("maximum QoS %v, want 1", got)
	}
}

func TestBothDialectsAreSpoken(t *testing.T) {
	for _, test := range []struct {
		dialect        statestore.Dialect
		refused, event string
	}{
		{statestore.Deployed, ":-1\r\n", "DELETE"},
		{statestore.Documented, "-1\r\n", "DEL"},
	} {
		p := connect(t, start(t, server.Options{Dialect: test.dialect}), "p", nil)
		p.do("SET", "k", "v")
		if got := p.do("SET", "k", "w", "NX"); got != test.refused {
			t.Errorf("a refused SET: %q, want %q", got, test.refused)
		}
		p.do("KEYNOTIFY", "k")
		p.do("DEL", "k")
		if got, want := string(p.nextNotification().Payload), string(command("NOTIFY", test.event)); got != want {
			t.Errorf("notification %q, want %q", got, want)
		}
	}
}

func TestARequestOverTheMaximumPacketSizeHarmsItsSenderOnly(t *testing.T) {
	address := start(t, server.Options{MaxPacketSize: 1024})
	big, other := connect(t, address, "big", nil), connect(t, address, "p", nil)
	go func() { _, _ = big.publish(big.request("SET", "k", strings.Repeat("x", 4096))) }()
	big.mustBeGone()
	other.mustGet("k", "")
}

func TestTimestampsOfTheWireReachTheStore(t *testing.T) {
	p := connect(t, start(t, server.Options{}), "p", nil)
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
		request := p.request("SET", "k", "v")
		request.Properties.User = test.user
		if _, err := p.publish(request); err != nil {
			t.Fatal(err)
		}
		if got := string(p.next().Payload); got != test.want {
			t.Errorf("%s: %q, want %q", test.name, got, test.want)
		}
	}
}
