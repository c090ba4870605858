package server_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/eclipse/paho.golang/packets"
	"github.com/eclipse/paho.golang/paho"

	"github.com/tenurelock/tenure/server"
	"github.com/tenurelock/tenure/server/access"
)

// answer takes a request of another application and answers it where it says.
func (p *peer) answer(payload string) {
	p.t.Helper()
	request := p.next()
	if _, err := p.publish(&paho.Publish{
		QoS:     1,
		Topic:   request.Properties.ResponseTopic,
		Payload: []byte(payload),
		Properties: &paho.PublishProperties{
			CorrelationData: request.Properties.CorrelationData,
			ContentType:     "application/json",
			User:            paho.UserProperties{{Key: "__stat", Value: "200"}},
		},
	}); err != nil {
		p.t.Fatalf("%s answers on %q: %v", p.id, request.Properties.ResponseTopic, err)
	}
}

// The applications of the AIO SDKs answer each other on clients/{id of the one that
// asked}/{topic of the request}, while both use the store.
func TestTwoApplicationsAnswerEachOther(t *testing.T) {
	address := start(t, server.Options{})
	invoker, executor := connect(t, address, "invoker", nil), connect(t, address, "executor", nil)
	executor.subscribe("services/press/+/command/+")
	for i, level := range []string{"invoker", "696E766F6B6572"} {
		request := fmt.Sprintf("services/press/executor/command/increment-%d", i)
		response := "clients/" + level + "/" + request
		invoker.subscribe(response)
		for round := range 3 {
			invoker.do("SET", "k", "v") // on their own response topics
			executor.do("GET", "k")
			correlation := fmt.Sprintf("%015d%d", i, round)
			if _, err := invoker.publish(&paho.Publish{
				QoS:     1,
				Topic:   request,
				Payload: []byte("{}"),
				Properties: &paho.PublishProperties{
					ResponseTopic:   response,
					CorrelationData: []byte(correlation),
					User:            paho.UserProperties{{Key: "__srcId", Value: "invoker"}},
				},
			}); err != nil {
				t.Fatal(err)
			}
			executor.answer(correlation)
			reply := invoker.next()
			if reply.Topic != response || string(reply.Payload) != correlation || string(reply.Properties.CorrelationData) != correlation ||
				reply.Properties.User.Get("__stat") != "200" {
				t.Errorf("%s: the reply is %v", level, reply)
			}
		}
	}
}

// A stranger may publish to a client's topics, and only the client may read them.
func TestOthersPublishBelowAClientsNameAndDoNotReadThere(t *testing.T) {
	address := start(t, server.Options{})
	stranger := connect(t, address, "stranger", nil)
	for _, topic := range []string{"clients/p/rpc/x", "clients/70/rpc/x", "clients/nobody/rpc/x"} {
		if !stranger.mayPublish(topic) {
			t.Errorf("publish to %q is refused", topic)
		}
		if stranger.maySubscribe(topic) {
			t.Errorf("subscribe to %q is granted", topic)
		}
		if stranger.mayBeAnswered(topic) {
			t.Errorf("the store answers the stranger on %q", topic)
		}
	}
}

// The rules may say more about the topics of others, and nothing about a client's own.
func TestTheRulesDecideWhetherAClientPublishesBelowTheNameOfAnother(t *testing.T) {
	authorizer := rules{topic: func(who access.Identity, topic string, write bool) bool {
		return write && who.User == "executor" && strings.HasSuffix(topic, "/rpc")
	}}
	address := start(t, server.Options{Authenticator: authorizer, Authorizer: authorizer})
	executor, stranger := connect(t, address, "e", as("executor")), connect(t, address, "s", as("stranger"))
	for _, test := range []struct {
		who   *peer
		topic string
		want  bool
	}{
		{executor, "clients/p/rpc", true},
		{executor, "clients/p/other", false},
		{executor, "clients/p/services/statestore/rpc", false}, // the store's, whatever rules say
		{executor, "clients/statestore/rpc", false},
		{stranger, "clients/p/rpc", false},
		{stranger, "clients/s/other", true},
	} {
		if got := test.who.mayPublish(test.topic); got != test.want {
			t.Errorf("%s may publish to %q: %v", test.who.id, test.topic, got)
		}
	}
}

// The topics on which clients expect the store's replies if nothing is set, in the form of
// each SDK.
func recommended(level string) []string {
	return []string{
		"clients/" + level + "/services/statestore/_any_/command/invoke/response",
		"clients/" + level + "/services/" + invokeTopic + "/response",
		"clients/" + level + "/" + invokeTopic,
		"clients/" + level + "/" + invokeTopic + "/response",
	}
}

// No client publishes in the store's place, neither the victim's neighbour nor one whose
// name looks like the victim's in hexadecimal digits, twice, nor the victim.
func TestTheStoreAloneSpeaksWhereItAnswersAndNotifies(t *testing.T) {
	address := start(t, server.Options{})
	always := append(recommended("p"), recommended("70")...)
	always = append(always, recommended("6a")...) // the plain form of a name that is no hex of the protocol
	always = append(always,
		reservedPrefix+"/70/command/notify/6B",
		reservedPrefix+"/70/command/notify/6b",
		strings.ToLower(reservedPrefix)+"/70/command/notify/6B",
		"clients/statestore", "clients/statestore/x", "clients", "clients/p", "clients//x",
		invokeTopic+"/response",
	)
	inUse := []string{"clients/p/response", "clients/70/answers"}
	stranger, namesake := connect(t, address, "stranger", nil), connect(t, address, "3730", nil)
	mustBe := func(when string, want bool, topics []string, who ...*peer) {
		t.Helper()
		for _, topic := range topics {
			for _, p := range who {
				if got := p.mayPublish(topic); got != want {
					t.Errorf("%s, %q may publish to %q: %v", when, p.id, topic, got)
				}
			}
		}
		for _, p := range who {
			p.mayPublish("factory/last") // the broker delivers after PUBACK; now it has delivered the rest
		}
	}
	mustBe("before the victim connects", false, always, stranger, namesake)
	mustBe("before the victim connects", true, inUse, stranger, namesake)
	p, err := tryConnect(t, address, "p", nil)
	if err != nil {
		t.Fatal(err)
	}
	mustBe("before its first request", false, always, stranger, namesake, p)
	mustBe("before its first request", true, inUse, stranger, namesake, p)
	for _, topic := range inUse {
		p.replyTo = topic
		p.subscribe(topic)
		p.do("GET", "k")
	}
	mustBe("after its first request", false, append(always, inUse...), stranger, namesake, p)
	mustBe("after its first request", true, []string{"clients/p/responses", "clients/p/response/x", "clients/70/response"}, stranger, namesake, p)
	for _, topic := range inUse { // QoS 0 is refused without a word
		if _, err := stranger.publish(&paho.Publish{Topic: topic, Payload: []byte("forged")}); err != nil {
			t.Fatal(err)
		}
	}
	stranger.mustBeSilent() // its messages were read
	p.mustBeSilent()
}

// A response topic belongs to the store as long as the session of its client.
func TestAResponseTopicIsReservedUntilTheSessionOfItsClientEnds(t *testing.T) {
	keep := uint32(600)
	for _, test := range []struct {
		name     string
		connect  func(*paho.Connect)
		end      func(t *testing.T, address string, p *peer)
		reserved bool
	}{
		{"the session ends with the connection", nil, func(t *testing.T, _ string, p *peer) {
			_ = p.paho.Disconnect(&paho.Disconnect{})
		}, false},
		{"the connection breaks", nil, func(t *testing.T, _ string, p *peer) { _ = p.conn.Close() }, false},
		{"the session is kept", func(c *paho.Connect) { c.Properties.SessionExpiryInterval = &keep }, func(t *testing.T, _ string, p *peer) {
			_ = p.paho.Disconnect(&paho.Disconnect{})
		}, true},
		{"the session is resumed by a take-over", func(c *paho.Connect) { c.Properties.SessionExpiryInterval = &keep }, func(t *testing.T, address string, p *peer) {
			if _, err := tryConnect(t, address, "p", func(c *paho.Connect) {
				c.CleanStart, c.Properties.SessionExpiryInterval = false, &keep
			}); err != nil {
				t.Fatal(err)
			}
		}, true},
		{"a take-over begins a new session", func(c *paho.Connect) { c.Properties.SessionExpiryInterval = &keep }, func(t *testing.T, address string, p *peer) {
			if _, err := tryConnect(t, address, "p", nil); err != nil {
				t.Fatal(err)
			}
		}, false},
		{"a kept session is replaced", func(c *paho.Connect) { c.Properties.SessionExpiryInterval = &keep }, func(t *testing.T, address string, p *peer) {
			_ = p.paho.Disconnect(&paho.Disconnect{})
			if _, err := tryConnect(t, address, "p", nil); err != nil {
				t.Fatal(err)
			}
		}, false},
	} {
		t.Run(test.name, func(t *testing.T) {
			address, s := startServer(t, server.Options{})
			stranger := connect(t, address, "stranger", nil)
			p := connect(t, address, "p", test.connect)
			p.do("GET", "k")
			if stranger.mayPublish("clients/p/response") {
				t.Fatal("the topic is not reserved at all")
			}
			test.end(t, address, p)
			if test.reserved {
				p.mustBeGone()
				if stranger.mayPublish("clients/p/response") {
					t.Error("the topic is free, and the session is not over")
				}
				return
			}
			eventually(t, "the topic is free", func() bool { return stranger.mayPublish("clients/p/response") })
			stranger.do("GET", "k")
			if got := s.ResponseTopics(); got != 1 {
				t.Errorf("the response topics of %d sessions are kept, want only the stranger's", got)
			}
		})
	}
}

// Invariant 56: what a client can make the server hold is bounded.
func TestInvariant56AClientMayBeAnsweredOnAtMost64Topics(t *testing.T) {
	address, s := startServer(t, server.Options{})
	p := connect(t, address, "p", nil)
	p.subscribe("clients/p/#")
	for i := range 64 {
		p.replyTo = fmt.Sprintf("clients/p/%d/%s", i, strings.Repeat("x", 1000))
		p.do("GET", "k")
	}
	one := p.request("SET", "k", "v")
	one.Properties.ResponseTopic = "clients/p/another"
	ack, err := p.publish(one)
	if err == nil || ack == nil || ack.ReasonCode != packets.PubackQuotaExceeded || !strings.Contains(ack.Properties.ReasonString, "64 response topics") {
		t.Errorf("the 65th: %+v, %v", ack, err)
	}
	if got := s.Stats().Dropped[server.DroppedTooManyTopics]; got != 1 {
		t.Errorf("%d are counted", got)
	}
	p.mustGet("k", "") // on a topic that is reserved already
	for _, topic := range []string{"clients/p/services/statestore/_any_/command/invoke/response", "factory/answers"} {
		p.replyTo = topic // which need not be remembered
		p.subscribe(topic)
		p.do("GET", "k")
	}
}

// A topic below clients/ may have another owner by the time a retained message is read.
func TestNothingBelowClientsIsRetained(t *testing.T) {
	address := start(t, server.Options{Retain: true})
	p := connect(t, address, "p", nil)
	for _, topic := range []string{"clients/q/x", "clients/p/x", "clients/70/x"} {
		ack, err := p.publish(&paho.Publish{QoS: 1, Retain: true, Topic: topic, Payload: []byte("x")})
		if err == nil || ack == nil || ack.ReasonCode != packets.PubackNotAuthorized || !strings.Contains(ack.Properties.ReasonString, "retained") {
			t.Errorf("%s: %+v, %v", topic, ack, err)
		}
		if _, err := p.publish(&paho.Publish{Retain: true, Topic: topic, Payload: []byte("x")}); err != nil {
			t.Fatal(err)
		}
	}
	p.mustBeSilent() // all was read
	p.subscribe("clients/p/#")
	p.subscribe("clients/70/#")
	connect(t, address, "q", nil).subscribe("clients/q/#")
	p.mustBeSilent()
	if _, err := p.publish(&paho.Publish{QoS: 1, Retain: true, Topic: "factory/x", Payload: []byte("x")}); err != nil {
		t.Errorf("elsewhere: %v", err)
	}
}

// A Will that could never be published is refused while its client can be told.
func TestNoWillForgesAReplyOfTheStore(t *testing.T) {
	address := start(t, server.Options{Retain: true})
	for _, test := range []struct {
		client, topic string
		retain        bool
		delay         uint32
	}{
		{"p", "clients/q/rpc", false, 0}, // may be a response topic when the Will is due
		{"p", "clients/71/rpc", false, 0},
		{"p", recommended("p")[0], false, 0},
		{"p", recommended("70")[0], false, 0},
		{"p", recommended("q")[0], false, 0},
		{"p", reservedPrefix + "/71/command/notify/6B", false, 0},
		{"p", "clients/p/gone", true, 0},
	} {
		c, err := tryConnect(t, address, test.client, func(c *paho.Connect) {
			c.WillMessage = &paho.WillMessage{Topic: test.topic, Payload: []byte("x"), QoS: 1, Retain: test.retain}
			c.WillProperties = &paho.WillProperties{WillDelayInterval: &test.delay}
		})
		if err == nil || c.connack == nil || c.connack.ReasonCode != packets.ConnackNotAuthorized {
			t.Errorf("%q may leave a Will on %q: %+v", test.client, test.topic, c.connack)
		}
	}
}

// The reply to a Will that is a request goes to its response topic, which is reserved
// from CONNECT on.
func TestTheResponseTopicOfAWillIsReserved(t *testing.T) {
	address := start(t, server.Options{})
	stranger := connect(t, address, "stranger", nil)
	first := bequeath("p", "VDEL", "lock", "p:1")
	first.session = 600
	c := first.leave(t, address, "p")
	if stranger.mayPublish("clients/p/response") {
		t.Error("a reply to the Will can be forged")
	}
	c.drop()
	// The next Will takes its place: a session that is kept does not gather them.
	second := bequeath("p", "VDEL", "lock", "p:1")
	second.session, second.response, second.correlation = 600, "clients/p/other", "another"
	second.leave(t, address, "p")
	if stranger.mayPublish("clients/p/other") || !stranger.mayPublish("clients/p/response") {
		t.Error("not the response topic of the present Will is reserved")
	}
}

// A topic that a Will reserved, too, is still one of the requests when the Will changes.
func TestAResponseTopicStaysReservedWhenTheWillThatHadItIsReplaced(t *testing.T) {
	address := start(t, server.Options{})
	stranger := connect(t, address, "stranger", nil)
	first := bequeath("p", "VDEL", "lock", "p:1")
	first.session = 600
	c := first.leave(t, address, "p")
	c.must(t, 1, "$-1\r\n", "GET", "k") // on the topic of the Will
	c.drop()
	second := bequeath("p", "VDEL", "lock", "p:1")
	second.session, second.response, second.correlation = 600, "clients/p/other", "another"
	second.leave(t, address, "p")
	if stranger.mayPublish("clients/p/response") {
		t.Error("a reply to a request of this session can be forged")
	}
}

func TestNothingIsRetainedUnlessOptionsSaySo(t *testing.T) {
	address, s := startServer(t, server.Options{})
	c := rawTo(t, address, "p")
	c.write(packet(0x33, text("factory"), []byte{0, 9, 0}, []byte("x")))
	if farewell := c.read(); farewell[0] != 0xe0 || farewell[2] != packets.DisconnectRetainNotSupported {
		t.Errorf("read %x, want DISCONNECT: retain not supported", farewell)
	}
	mustRetainNothing(t, s)
}
