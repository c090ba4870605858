package server_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/eclipse/paho.golang/packets"
	"github.com/eclipse/paho.golang/paho"

	"github.com/tenurelock/tenure/server"
	"github.com/tenurelock/tenure/server/access"
	"github.com/tenurelock/tenure/server/internal/testsupport"
)

// The applications of the AIO SDKs answer each other on clients/{id of the one that
// asked}/{topic of the request}, while both use the store.
func TestTwoApplicationsAnswerEachOther(t *testing.T) {
	address := testsupport.Start(t, server.Options{})
	invoker, executor := testsupport.Connect(t, address, "invoker", nil), testsupport.Connect(t, address, "executor", nil)
	executor.Subscribe("services/press/+/command/+")
	for i, level := range []string{"invoker", "696E766F6B6572"} {
		request := fmt.Sprintf("services/press/executor/command/increment-%d", i)
		response := "clients/" + level + "/" + request
		invoker.Subscribe(response)
		for round := range 3 {
			invoker.Do("SET", "k", "v") // on their own response topics
			executor.Do("GET", "k")
			correlation := fmt.Sprintf("%015d%d", i, round)
			if _, err := invoker.Publish(&paho.Publish{
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
			executor.Answer(correlation)
			reply := invoker.Next()
			if reply.Topic != response || string(reply.Payload) != correlation || string(reply.Properties.CorrelationData) != correlation ||
				reply.Properties.User.Get("__stat") != "200" {
				t.Errorf("%s: the reply is %v", level, reply)
			}
		}
	}
}

// Every client may publish to the topics of a client, and only that client may read them.
func TestOthersPublishBelowAClientsNameAndDoNotReadThere(t *testing.T) {
	address := testsupport.Start(t, server.Options{})
	stranger := testsupport.Connect(t, address, "stranger", nil)
	for _, topic := range []string{"clients/p/rpc/x", "clients/70/rpc/x", "clients/absent/rpc/x"} {
		if !stranger.MayPublish(topic) {
			t.Errorf("publish to %q is refused", topic)
		}
		if stranger.MaySubscribe(topic) {
			t.Errorf("subscribe to %q is granted", topic)
		}
		if stranger.MayBeAnswered(topic) {
			t.Errorf("the store answers the stranger on %q", topic)
		}
	}
}

// Rules can restrict the topics of other clients, but not the own topics of a client.
func TestTheRulesDecideWhetherAClientPublishesBelowTheNameOfAnother(t *testing.T) {
	authorizer := testsupport.Rules{Topic: func(identity access.Identity, topic string, write bool) bool {
		return write && identity.User == "executor" && strings.HasSuffix(topic, "/rpc")
	}}
	address := testsupport.Start(t, server.Options{Authenticator: authorizer, Authorizer: authorizer})
	executor, stranger := testsupport.Connect(t, address, "e", testsupport.As("executor")), testsupport.Connect(t, address, "s", testsupport.As("stranger"))
	for _, test := range []struct {
		client *testsupport.PahoClient
		topic  string
		want   bool
	}{
		{executor, "clients/p/rpc", true},
		{executor, "clients/p/other", false},
		{executor, "clients/p/services/statestore/rpc", false}, // the store's, whatever rules say
		{executor, "clients/statestore/rpc", false},
		{stranger, "clients/p/rpc", false},
		{stranger, "clients/s/other", true},
	} {
		if got := test.client.MayPublish(test.topic); got != test.want {
			t.Errorf("%s may publish to %q: %v", test.client.ID, test.topic, got)
		}
	}
}

// No client may publish where the store replies and notifies: neither another client, nor one with a
// client id that is the hex of the hex of the victim's, nor the victim.
func TestOnlyTheStorePublishesRepliesAndNotifications(t *testing.T) {
	address := testsupport.Start(t, server.Options{})
	always := append(testsupport.RecommendedResponseTopics("p"), testsupport.RecommendedResponseTopics("70")...)
	always = append(always, testsupport.RecommendedResponseTopics("6a")...) // the plain form of a name that is no hex of the protocol
	always = append(always,
		testsupport.ReservedPrefix+"/70/command/notify/6B",
		testsupport.ReservedPrefix+"/70/command/notify/6b",
		strings.ToLower(testsupport.ReservedPrefix)+"/70/command/notify/6B",
		"clients/statestore", "clients/statestore/x", "clients", "clients/p", "clients//x",
		testsupport.InvokeTopic+"/response",
	)
	inUse := []string{"clients/p/response", "clients/70/answers"}
	stranger, namesake := testsupport.Connect(t, address, "stranger", nil), testsupport.Connect(t, address, "3730", nil)
	mustBe := func(when string, want bool, topics []string, clients ...*testsupport.PahoClient) {
		t.Helper()
		for _, topic := range topics {
			for _, p := range clients {
				if got := p.MayPublish(topic); got != want {
					t.Errorf("%s, %q may publish to %q: %v", when, p.ID, topic, got)
				}
			}
		}
		for _, p := range clients {
			p.MayPublish("factory/last") // the broker delivers after PUBACK; now it has delivered the rest
		}
	}
	mustBe("before the victim connects", false, always, stranger, namesake)
	mustBe("before the victim connects", true, inUse, stranger, namesake)
	p, err := testsupport.TryConnect(t, address, "p", nil)
	if err != nil {
		t.Fatal(err)
	}
	mustBe("before its first request", false, always, stranger, namesake, p)
	mustBe("before its first request", true, inUse, stranger, namesake, p)
	for _, topic := range inUse {
		p.ReplyTo = topic
		p.Subscribe(topic)
		p.Do("GET", "k")
	}
	mustBe("after its first request", false, append(always, inUse...), stranger, namesake, p)
	mustBe("after its first request", true, []string{"clients/p/responses", "clients/p/response/x", "clients/70/response"}, stranger, namesake, p)
	for _, topic := range inUse { // QoS 0 is refused without a word
		if _, err := stranger.Publish(&paho.Publish{Topic: topic, Payload: []byte("forged")}); err != nil {
			t.Fatal(err)
		}
	}
	stranger.MustBeSilent() // its messages were read
	p.MustBeSilent()
}

// A response topic is reserved for the store until the session of its client ends.
func TestAResponseTopicIsReservedUntilTheSessionOfItsClientEnds(t *testing.T) {
	keep := uint32(600)
	for _, test := range []struct {
		name     string
		connect  func(*paho.Connect)
		end      func(t *testing.T, address string, p *testsupport.PahoClient)
		reserved bool
	}{
		{"the session ends with the connection", nil, func(t *testing.T, _ string, p *testsupport.PahoClient) {
			_ = p.Paho.Disconnect(&paho.Disconnect{})
		}, false},
		{"the connection breaks", nil, func(t *testing.T, _ string, p *testsupport.PahoClient) { _ = p.Conn.Close() }, false},
		{"the session is kept", func(c *paho.Connect) { c.Properties.SessionExpiryInterval = &keep }, func(t *testing.T, _ string, p *testsupport.PahoClient) {
			_ = p.Paho.Disconnect(&paho.Disconnect{})
		}, true},
		{"the session is resumed by a take-over", func(c *paho.Connect) { c.Properties.SessionExpiryInterval = &keep }, func(t *testing.T, address string, p *testsupport.PahoClient) {
			if _, err := testsupport.TryConnect(t, address, "p", func(c *paho.Connect) {
				c.CleanStart, c.Properties.SessionExpiryInterval = false, &keep
			}); err != nil {
				t.Fatal(err)
			}
		}, true},
		{"a take-over begins a new session", func(c *paho.Connect) { c.Properties.SessionExpiryInterval = &keep }, func(t *testing.T, address string, p *testsupport.PahoClient) {
			if _, err := testsupport.TryConnect(t, address, "p", nil); err != nil {
				t.Fatal(err)
			}
		}, false},
		{"a kept session is replaced", func(c *paho.Connect) { c.Properties.SessionExpiryInterval = &keep }, func(t *testing.T, address string, p *testsupport.PahoClient) {
			_ = p.Paho.Disconnect(&paho.Disconnect{})
			if _, err := testsupport.TryConnect(t, address, "p", nil); err != nil {
				t.Fatal(err)
			}
		}, false},
	} {
		t.Run(test.name, func(t *testing.T) {
			address, s := testsupport.StartServer(t, server.Options{})
			stranger := testsupport.Connect(t, address, "stranger", nil)
			p := testsupport.Connect(t, address, "p", test.connect)
			p.Do("GET", "k")
			if stranger.MayPublish("clients/p/response") {
				t.Fatal("the topic is not reserved at all")
			}
			test.end(t, address, p)
			if test.reserved {
				p.MustBeGone()
				if stranger.MayPublish("clients/p/response") {
					t.Error("the topic is free, and the session is not over")
				}
				return
			}
			testsupport.Eventually(t, "the topic is free", func() bool { return stranger.MayPublish("clients/p/response") })
			stranger.Do("GET", "k")
			if got := s.ResponseTopics(); got != 1 {
				t.Errorf("the response topics of %d sessions are kept, want only the stranger's", got)
			}
		})
	}
}

// Invariant 56: what a client can make the server hold is bounded.
func TestInvariant56AClientMayBeAnsweredOnAtMost64Topics(t *testing.T) {
	address, s := testsupport.StartServer(t, server.Options{})
	p := testsupport.Connect(t, address, "p", nil)
	p.Subscribe("clients/p/#")
	for i := range 64 {
		p.ReplyTo = fmt.Sprintf("clients/p/%d/%s", i, strings.Repeat("x", 1000))
		p.Do("GET", "k")
	}
	one := p.Request("SET", "k", "v")
	one.Properties.ResponseTopic = "clients/p/another"
	ack, err := p.Publish(one)
	if err == nil || ack == nil || ack.ReasonCode != packets.PubackQuotaExceeded || !strings.Contains(ack.Properties.ReasonString, "64 response topics") {
		t.Errorf("the 65th: %+v, %v", ack, err)
	}
	if got := s.Stats().Dropped[server.DroppedTooManyTopics]; got != 1 {
		t.Errorf("%d are counted", got)
	}
	p.MustGet("k", "") // on a topic that is reserved already
	for _, topic := range []string{"clients/p/services/statestore/_any_/command/invoke/response", "factory/answers"} {
		p.ReplyTo = topic // which need not be remembered
		p.Subscribe(topic)
		p.Do("GET", "k")
	}
}

// A Will that could never be published is refused at CONNECT, where its client learns it.
func TestNoWillForgesAReplyOfTheStore(t *testing.T) {
	address := testsupport.Start(t, server.Options{})
	for _, test := range []struct {
		client, topic string
		delay         uint32
	}{
		{"p", "clients/q/rpc", 0}, // may be a response topic when the Will is due
		{"p", "clients/71/rpc", 0},
		{"p", testsupport.RecommendedResponseTopics("p")[0], 0},
		{"p", testsupport.RecommendedResponseTopics("70")[0], 0},
		{"p", testsupport.RecommendedResponseTopics("q")[0], 0},
		{"p", testsupport.ReservedPrefix + "/71/command/notify/6B", 0},
	} {
		c, err := testsupport.TryConnect(t, address, test.client, func(c *paho.Connect) {
			c.WillMessage = &paho.WillMessage{Topic: test.topic, Payload: []byte("x"), QoS: 1}
			c.WillProperties = &paho.WillProperties{WillDelayInterval: &test.delay}
		})
		if err == nil || c.Connack == nil || c.Connack.ReasonCode != packets.ConnackNotAuthorized {
			t.Errorf("%q may leave a Will on %q: %+v", test.client, test.topic, c.Connack)
		}
	}
}

// The reply to a Will that is a request goes to its response topic, which is reserved
// from CONNECT on.
func TestTheResponseTopicOfAWillIsReserved(t *testing.T) {
	address := testsupport.Start(t, server.Options{})
	stranger := testsupport.Connect(t, address, "stranger", nil)
	first := testsupport.RequestWill("p", "VDEL", "lock", "p:1")
	first.Session = 600
	c := first.Connect(t, address, "p")
	if stranger.MayPublish("clients/p/response") {
		t.Error("a reply to the Will can be forged")
	}
	c.Reset()
	// The next Will replaces it: a kept session does not collect them.
	second := testsupport.RequestWill("p", "VDEL", "lock", "p:1")
	second.Session, second.Response, second.Correlation = 600, "clients/p/other", "another"
	second.Connect(t, address, "p")
	if stranger.MayPublish("clients/p/other") || !stranger.MayPublish("clients/p/response") {
		t.Error("not the response topic of the present Will is reserved")
	}
}

// A topic that both a Will and requests reserved stays reserved when the Will changes.
func TestAResponseTopicStaysReservedWhenTheWillThatHadItIsReplaced(t *testing.T) {
	address := testsupport.Start(t, server.Options{})
	stranger := testsupport.Connect(t, address, "stranger", nil)
	first := testsupport.RequestWill("p", "VDEL", "lock", "p:1")
	first.Session = 600
	c := first.Connect(t, address, "p")
	c.MustDo(t, 1, "$-1\r\n", "GET", "k") // on the topic of the Will
	c.Reset()
	second := testsupport.RequestWill("p", "VDEL", "lock", "p:1")
	second.Session, second.Response, second.Correlation = 600, "clients/p/other", "another"
	second.Connect(t, address, "p")
	if stranger.MayPublish("clients/p/response") {
		t.Error("a reply to a request of this session can be forged")
	}
}
