package server_test

import (
	"context"
	"crypto/tls"
	"crypto/x509/pkix"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync"
	"testing"

	"github.com/eclipse/paho.golang/packets"
	"github.com/eclipse/paho.golang/paho"

	"github.com/tenurelock/tenure/internal/await"
	"github.com/tenurelock/tenure/internal/certificates"
	"github.com/tenurelock/tenure/internal/logbuffer"
	"github.com/tenurelock/tenure/server"
	"github.com/tenurelock/tenure/server/access"
	"github.com/tenurelock/tenure/server/internal/testsupport"
	"github.com/tenurelock/tenure/statestore"
)

// Below clients/ a client may subscribe only to its own topics, in both spellings. It may publish to
// the topics of all clients, except where the store replies.
func TestAClientReadsItsOwnTopicsAndNoOthers(t *testing.T) {
	address := testsupport.Start(t, server.Options{})
	for _, test := range []struct {
		name, client, topic string
		own, publish        bool
	}{
		{"the plain form", "p", "clients/p/services/statestore/_any_/command/invoke/response", true, false},
		{"the hex form", "p", "clients/70/services/statestore/_any_/command/invoke/response", true, false},
		{"another client", "p", "clients/q/response", false, true},
		{"another client in hex", "p", "clients/71/response", false, true},
		{"a name that begins with its own", "p", "clients/pq/response", false, true},
		{"a name that its own begins with", "pq", "clients/p/response", false, true},
		{"no name", "p", "clients//response", false, false},
		{"nothing below the name", "p", "clients/p", false, false},
		{"no level of its own", "p", "clients", false, false},
		{"lower-case hex", "j", "clients/6a/response", false, true},
		{"upper-case hex", "j", "clients/6A/response", true, true},
		{"the store's topics", "p", "clients/statestore/x", false, false},
		{"a hexadecimal name whose owner is not there", "72", "clients/72/response", true, true},
		{"the same name in hex", "72", "clients/3732/response", true, true},
		{"other topics of the store", "p", "statestore/v1/FA9AE35F-2F64-47CD-9BFF-08E2B32A0FE8/command/x", false, false},
		{"elsewhere", "p", "factory/answers", true, true},
		{"a topic that only begins like a client's", "p", "clientship/q", true, true},
	} {
		t.Run(test.name, func(t *testing.T) {
			p, err := testsupport.TryConnect(t, address, test.client, nil)
			if err != nil {
				t.Fatal(err)
			}
			if got := mayPublish(p, test.topic); got != test.publish {
				t.Errorf("client %q may publish to %q: %v", test.client, test.topic, got)
			}
			if got := mayBeAnswered(p, test.topic); got != test.own {
				t.Errorf("client %q may be answered on %q: %v", test.client, test.topic, got)
			}
			if test.topic == "statestore/v1/FA9AE35F-2F64-47CD-9BFF-08E2B32A0FE8/command/x" {
				return // nothing is ever published there, so every client may subscribe
			}
			if got := maySubscribe(p, test.topic); got != test.own {
				t.Errorf("client %q may subscribe to %q: %v", test.client, test.topic, got)
			}
		})
	}
}

// mayPublish reports whether the broker accepts a message on a topic.
func mayPublish(p *testsupport.PahoClient, topic string) bool {
	p.T.Helper()
	return may(p, &paho.Publish{QoS: 1, Topic: topic, Payload: []byte("x")})
}

func may(p *testsupport.PahoClient, message *paho.Publish) bool {
	p.T.Helper()
	ack, err := p.Publish(message)
	if err != nil && (ack == nil || ack.ReasonCode != packets.PubackNotAuthorized) {
		p.T.Fatalf("%s: publish %v: %+v, %v", p.ID, message, ack, err)
	}
	return err == nil
}

// maySubscribe reports whether the broker grants a subscription.
func maySubscribe(p *testsupport.PahoClient, filter string) bool {
	p.T.Helper()
	code, err := p.TrySubscribe(filter)
	if err != nil && code != packets.SubackNotauthorized {
		p.T.Fatalf("%s: subscribe to %q: %#x, %v", p.ID, filter, code, err)
	}
	return err == nil
}

// mayBeAnswered reports whether the broker accepts a request with this response topic.
func mayBeAnswered(p *testsupport.PahoClient, topic string) bool {
	p.T.Helper()
	request := p.Request("GET", "k")
	request.Properties.ResponseTopic = topic
	return may(p, request)
}

func TestAWildcardNeverDeliversWhatItsClientMayNotRead(t *testing.T) {
	address := testsupport.Start(t, server.Options{})
	p, spy := testsupport.Connect(t, address, "p", nil), testsupport.Connect(t, address, "spy", nil)
	for _, filter := range []string{"#", "clients/#", "clients/+/response", "+/p/response", "statestore/#"} {
		if !maySubscribe(spy, filter) {
			t.Errorf("subscribe to %q is refused", filter)
		}
	}
	p.Do("KEYNOTIFY", "k")
	p.Do("SET", "k", "secret")
	p.NextNotification()
	// A message that arrives at the spy after its own message was sent after the others.
	mayPublish(spy, "last")
	for message := spy.Next(); message.Topic != "last"; message = spy.Next() {
		t.Errorf("the spy received %v", message)
	}
	if len(spy.Notified) > 0 {
		t.Errorf("the spy received a notification of another: %v", await.Receive(spy.Notified))
	}
}

func TestAWillIsJudgedLikeAPublish(t *testing.T) {
	address := testsupport.Start(t, server.Options{})
	for _, test := range []struct {
		topic string
		own   bool
	}{
		{"clients/p/gone", true},
		{"clients/70/gone", true},
		{"factory/p/gone", true},
		{"clients/q/gone", false},
		{"clients/statestore/v1/x", false},
		{"statestore/v1/FA9AE35F-2F64-47CD-9BFF-08E2B32A0FE8/command/x", false},
		{testsupport.RecommendedResponseTopics("p")[0], false},
		{testsupport.RecommendedResponseTopics("70")[0], false},
		{testsupport.RecommendedResponseTopics("q")[0], false},
		{testsupport.ReservedPrefix + "/71/command/notify/6B", false},
	} {
		p, err := testsupport.TryConnect(t, address, "p", func(c *paho.Connect) {
			c.WillMessage = &paho.WillMessage{Topic: test.topic, Payload: []byte("x"), QoS: 1}
		})
		if (err == nil) != test.own {
			t.Errorf("a Will on %q: %v", test.topic, err)
		}
		if !test.own && (p.Connack == nil || p.Connack.ReasonCode != packets.ConnackNotAuthorized) {
			t.Errorf("a Will on %q is refused with %+v", test.topic, p.Connack)
		}
	}
}

func TestTheAuthorizerIsAskedForEachRequest(t *testing.T) {
	var mu sync.Mutex
	var asked []string
	authorizer := testsupport.Rules{Key: func(identity access.Identity, verb statestore.Verb, key string) bool {
		mu.Lock()
		defer mu.Unlock()
		asked = append(asked, fmt.Sprint(identity.Client, " ", identity.User, " ", verb, " ", key))
		return key != "forbidden"
	}}
	log := new(logbuffer.Buffer)
	p := testsupport.Connect(t, testsupport.Start(t, server.Options{Authenticator: authorizer, Authorizer: authorizer, Logger: log.Logger()}), "p", testsupport.As("alice"))
	for _, words := range [][]string{{"SET", "k", "v"}, {"get", "k"}, {"DEL", "k"}, {"VDEL", "k", "v"}, {"KEYNOTIFY", "k"}} {
		if got := p.Do(words...); strings.HasPrefix(got, "-ERR") {
			t.Errorf("%q: %q", words, got)
		}
		words[1] = "forbidden"
		if got := p.Do(words...); got != "-ERR not authorized\r\n" {
			t.Errorf("%q: %q", words, got)
		}
	}
	p.Do("FROB", "k")
	want := []string{
		"p alice SET k", "p alice SET forbidden", "p alice GET k", "p alice GET forbidden", "p alice DEL k", "p alice DEL forbidden",
		"p alice VDEL k", "p alice VDEL forbidden", "p alice KEYNOTIFY k", "p alice KEYNOTIFY forbidden",
	}
	mu.Lock()
	if strings.Join(asked, "\n") != strings.Join(want, "\n") {
		t.Errorf("asked %q, want %q", asked, want)
	}
	mu.Unlock()
	for _, verb := range []string{"SET", "GET", "DEL", "VDEL", "KEYNOTIFY"} {
		line := `level=WARN msg="refused a request" client=p user=alice remote=` + p.Conn.LocalAddr().String() + " verb=" + verb + " key=forbidden reason=\"not authorized\"\n"
		if strings.Count(log.String(), line) != 1 {
			t.Errorf("the log has not once %sbut\n%s", line, log.String())
		}
	}
	for range 100 {
		p.Do("GET", "forbidden")
	}
	if lines := strings.Count(log.String(), "not authorized"); lines > 15 {
		t.Errorf("105 denials cause %d lines", lines)
	}
}

func TestTopicsElsewhereAreAllowedUnlessTheRulesSayOtherwise(t *testing.T) {
	authorizer := testsupport.Rules{Topic: func(identity access.Identity, topic string, write bool) bool {
		return strings.HasPrefix(topic, identity.User+"/") || !write && topic == "news"
	}}
	p := testsupport.Connect(t, testsupport.Start(t, server.Options{Authenticator: authorizer, Authorizer: authorizer}), "p", testsupport.As("alice"))
	for _, test := range []struct {
		topic       string
		write, read bool
	}{
		{"alice/x", true, true},
		{"bob/x", false, false},
		{"news", false, true},
		{"clients/p/x", true, true}, // not a matter of rules
		{"clients/bob/x", false, false},
	} {
		if got := mayPublish(p, test.topic); got != test.write {
			t.Errorf("publish to %q: %v", test.topic, got)
		}
		if got := mayBeAnswered(p, test.topic); got != test.write {
			t.Errorf("be answered on %q: %v", test.topic, got)
		}
		if got := maySubscribe(p, test.topic); got != test.read {
			t.Errorf("subscribe to %q: %v", test.topic, got)
		}
	}
	if !maySubscribe(p, "#") {
		t.Error("a wildcard is refused")
	}
}

func TestAClientIdCannotBeTakenOverByAnotherUser(t *testing.T) {
	address := testsupport.Start(t, server.Options{Authenticator: testsupport.Rules{}})
	keep := uint32(600)
	for _, test := range []struct {
		name string
		end  func(*testsupport.PahoClient)
	}{
		{"while it is connected", func(*testsupport.PahoClient) {}},
		{"while its session is kept", func(p *testsupport.PahoClient) { _ = p.Paho.Disconnect(&paho.Disconnect{}) }},
	} {
		t.Run(test.name, func(t *testing.T) {
			p := testsupport.Connect(t, address, "p", func(c *paho.Connect) {
				testsupport.As("alice")(c)
				c.Properties.SessionExpiryInterval = &keep
			})
			test.end(p)
			thief, err := testsupport.TryConnect(t, address, "p", testsupport.As("bob"))
			if err == nil || thief.Connack == nil || thief.Connack.ReasonCode != packets.ConnackNotAuthorized ||
				!strings.Contains(thief.Connack.Properties.ReasonString, "another user") {
				t.Errorf("another user: %+v, %v", thief.Connack, err)
			}
			testsupport.Connect(t, address, "p", testsupport.As("alice"))
		})
	}
}

// connectTLS connects with a certificate, or without if there is none.
func connectTLS(t *testing.T, address, id string, trust *certificates.Authority, certificates ...tls.Certificate) (*paho.Connack, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), testsupport.Patience)
	defer cancel()
	dialer := tls.Dialer{Config: &tls.Config{RootCAs: trust.Pool, Certificates: certificates}}
	conn, err := dialer.DialContext(ctx, "tcp", address)
	if err != nil {
		return nil, err
	}
	client := paho.NewClient(paho.ClientConfig{Conn: packets.NewThreadSafeConn(conn)})
	connack, err := client.Connect(ctx, &paho.Connect{ClientID: id, CleanStart: true, KeepAlive: 60})
	if err == nil {
		t.Cleanup(func() { _ = client.Disconnect(&paho.Disconnect{}) })
	} else {
		_ = conn.Close()
	}
	return connack, err
}

func TestTheSubjectOfAClientCertificateIsTheUser(t *testing.T) {
	ca, other := certificates.New(t, "authority"), certificates.New(t, "authority")
	subject := pkix.Name{CommonName: "press-7", Organization: []string{"Plant"}}
	for _, test := range []struct {
		name        string
		auth        tls.ClientAuthType
		certificate []tls.Certificate
		user        string // "-": refused by TLS
		certified   bool
	}{
		{"a certificate", tls.RequireAndVerifyClientCert, []tls.Certificate{ca.Issue(subject)}, "CN=press-7,O=Plant", true},
		{"none where one is required", tls.RequireAndVerifyClientCert, nil, "-", false},
		{"none where one may be given", tls.VerifyClientCertIfGiven, nil, "", false},
		{"one of another authority", tls.RequireAndVerifyClientCert, []tls.Certificate{other.Issue(subject)}, "-", false},
		{"one that was not verified", tls.RequestClientCert, []tls.Certificate{other.Issue(subject)}, "", false},
	} {
		t.Run(test.name, func(t *testing.T) {
			authenticator := testsupport.Credentials{Came: make(chan access.Credentials, 1)}
			address := testsupport.Start(t, server.Options{
				TLS:           &tls.Config{Certificates: []tls.Certificate{ca.Issue(pkix.Name{CommonName: "server"})}, ClientCAs: ca.Pool, ClientAuth: test.auth},
				Authenticator: authenticator,
			})
			_, err := connectTLS(t, address, "p", ca, test.certificate...)
			if (err != nil) != (test.user == "-") {
				t.Fatalf("connect: %v", err)
			}
			if test.user == "-" {
				return
			}
			if got := await.Receive(authenticator.Came); got.Client != "p" || got.User != test.user || got.Certified != test.certified {
				t.Errorf("came %+v", got)
			}
		})
	}
}

func TestARefusedClientLearnsNothing(t *testing.T) {
	authenticator := testsupport.Credentials{Came: make(chan access.Credentials, 1), Refuse: errors.New("no such user: mallory")}
	address, s := testsupport.StartServer(t, server.Options{Authenticator: authenticator})
	p, err := testsupport.TryConnect(t, address, "p", testsupport.As("mallory"))
	if err == nil || p.Connack == nil || p.Connack.ReasonCode != packets.ConnackBadUsernameOrPassword {
		t.Fatalf("%+v, %v", p.Connack, err)
	}
	if reason := p.Connack.Properties.ReasonString; strings.Contains(reason, "mallory") || strings.Contains(reason, "no such") {
		t.Errorf("it is told %q", reason)
	}
	if got := await.Receive(authenticator.Came); got.User != "mallory" || string(got.Password) != "secret" || got.Certified {
		t.Errorf("came %+v", got)
	}
	if got := s.Stats(); got.Refused[server.RefusedCredentials] != 1 || got.Connected != 0 {
		t.Errorf("stats %+v", got)
	}
}

// Without an Authenticator a user name is only a claim of its client.
func TestAnUncheckedUserNameIsIgnored(t *testing.T) {
	var user string
	authorizer := testsupport.Rules{Key: func(identity access.Identity, _ statestore.Verb, _ string) bool {
		user = identity.User
		return true
	}}
	p := testsupport.Connect(t, testsupport.Start(t, server.Options{Authorizer: authorizer}), "p", testsupport.As("admin"))
	p.Do("GET", "k")
	if user != "" {
		t.Errorf("the user is %q", user)
	}
}

// placed is a listener with a given address.
type placed struct{ network, address string }

func (p placed) Network() string { return p.network }

func (p placed) String() string { return p.address }

func (p placed) Addr() net.Addr { return p }

func (placed) Accept() (net.Conn, error) { return nil, net.ErrClosed }

func (placed) Close() error { return nil }

func TestAnAddressThatOthersCanReachNeedsTLSAndAuthentication(t *testing.T) {
	ca := certificates.New(t, "authority")
	encrypted := &tls.Config{Certificates: []tls.Certificate{ca.Issue(pkix.Name{CommonName: "server"})}}
	certified := encrypted.Clone()
	certified.ClientCAs, certified.ClientAuth = ca.Pool, tls.RequireAndVerifyClientCert
	optional := certified.Clone()
	optional.ClientAuth = tls.VerifyClientCertIfGiven
	for _, test := range []struct {
		name    string
		options server.Options
		ok      bool
	}{
		{"loopback", server.Options{Addr: "127.0.0.1:0"}, true},
		{"loopback of IPv6 in IPv4", server.Options{Addr: "[::ffff:127.0.0.1]:0"}, true},
		{"all interfaces", server.Options{Addr: ":0"}, false},
		{"told so explicitly", server.Options{Addr: "0.0.0.0:0", AllowInsecure: true}, true},
		{"TLS alone", server.Options{Addr: "0.0.0.0:0", TLS: encrypted}, false},
		{"authentication alone", server.Options{Addr: "0.0.0.0:0", Authenticator: testsupport.Rules{}}, false},
		{"TLS and authentication", server.Options{Addr: "0.0.0.0:0", TLS: encrypted, Authenticator: testsupport.Rules{}}, true},
		{"client certificates", server.Options{Addr: "0.0.0.0:0", TLS: certified}, true},
		{"client certificates that may be left out", server.Options{Addr: "0.0.0.0:0", TLS: optional}, false},
		{"a listener on loopback", server.Options{Addr: "0.0.0.0:0", Listener: placed{"tcp", "127.0.0.1:1883"}}, true},
		{"a listener on all interfaces", server.Options{Addr: "127.0.0.1:0", Listener: placed{"tcp", "[::]:1883"}}, false},
		{"a Unix socket", server.Options{Listener: placed{"unix", "/run/tenure.sock"}}, true},
		{"a listener with an address that is no host and port", server.Options{Listener: placed{"tcp", "tcp://0.tcp.example.org:12345"}}, false},
		{"a listener on an unknown network", server.Options{Listener: placed{"overlay", "here"}}, false},
	} {
		t.Run(test.name, func(t *testing.T) {
			s, err := server.New(test.options)
			if err == nil {
				_ = s.Close()
			}
			if (err == nil) != test.ok || err != nil && !errors.Is(err, server.ErrInsecure) {
				t.Errorf("%v", err)
			}
		})
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
				if got := mayPublish(p, topic); got != want {
					t.Errorf("%s, %q may publish to %q: %v", when, p.ID, topic, got)
				}
			}
		}
		for _, p := range clients {
			mayPublish(p, "factory/last") // the broker delivers after PUBACK; now it has delivered the rest
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
			if mayPublish(stranger, "clients/p/response") {
				t.Fatal("the topic is not reserved at all")
			}
			test.end(t, address, p)
			if test.reserved {
				p.MustBeGone()
				if mayPublish(stranger, "clients/p/response") {
					t.Error("the topic is free, and the session is not over")
				}
				return
			}
			testsupport.Eventually(t, "the topic is free", func() bool { return mayPublish(stranger, "clients/p/response") })
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
			if mayPublish(stranger, "clients/p/response") {
				t.Error("a reply to the Will can be forged")
			}
			if asked {
				c.MustDo(t, 1, "$-1\r\n", "GET", "k")
			}
			c.Reset()
			will.Response, will.Correlation = "clients/p/other", "another"
			will.Connect(t, address, "p")
			if mayPublish(stranger, "clients/p/other") || mayPublish(stranger, "clients/p/response") == asked {
				t.Error("not the response topics of the present Will, and of requests, are reserved")
			}
		})
	}
}
