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
		{"the session is kept", func(c *paho.Connect) { c.Properties.SessionExpiryInterval = &keep }, func(t *testing.T, _ string, p *testsupport.PahoClient) {
			_ = p.Paho.Disconnect(&paho.Disconnect{})
		}, true},
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

// The reply to a Will that is a request goes to its response topic, which is reserved from CONNECT on. The next
// Will replaces it: a kept session does not collect them. What requests have reserved as well stays.
func TestTheResponseTopicOfAWillIsReserved(t *testing.T) {
	for _, asked := range []bool{false, true} {
		t.Run(fmt.Sprint("requests name it: ", asked), func(t *testing.T) {
			address := testsupport.Start(t, server.Options{})
			stranger := testsupport.Connect(t, address, "stranger", nil)
			will := testsupport.RequestWill("p", "VDEL", "lock", "p:1")
			will.Session = 600
			c := will.Connect(t, address, "p")
			if stranger.MayPublish("clients/p/response") {
				t.Error("a reply to the Will can be forged")
			}
			if asked {
				c.MustDo(t, 1, "$-1\r\n", "GET", "k")
			}
			c.Reset()
			will.Response, will.Correlation = "clients/p/other", "another"
			will.Connect(t, address, "p")
			if stranger.MayPublish("clients/p/other") || stranger.MayPublish("clients/p/response") == asked {
				t.Error("not the response topics of the present Will, and of requests, are reserved")
			}
		})
	}
}
