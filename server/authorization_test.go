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
			if got := p.MayPublish(test.topic); got != test.publish {
				t.Errorf("client %q may publish to %q: %v", test.client, test.topic, got)
			}
			if got := p.MayBeAnswered(test.topic); got != test.own {
				t.Errorf("client %q may be answered on %q: %v", test.client, test.topic, got)
			}
			if test.topic == "statestore/v1/FA9AE35F-2F64-47CD-9BFF-08E2B32A0FE8/command/x" {
				return // nothing is ever published there, so every client may subscribe
			}
			if got := p.MaySubscribe(test.topic); got != test.own {
				t.Errorf("client %q may subscribe to %q: %v", test.client, test.topic, got)
			}
		})
	}
}

func TestAWildcardNeverDeliversWhatItsClientMayNotRead(t *testing.T) {
	address := testsupport.Start(t, server.Options{})
	p, spy := testsupport.Connect(t, address, "p", nil), testsupport.Connect(t, address, "spy", nil)
	for _, filter := range []string{"#", "clients/#", "clients/+/response", "+/p/response", "statestore/#"} {
		if !spy.MaySubscribe(filter) {
			t.Errorf("subscribe to %q is refused", filter)
		}
	}
	p.Do("KEYNOTIFY", "k")
	p.Do("SET", "k", "secret")
	p.NextNotification()
	// A message that arrives at the spy after its own message was sent after the others.
	spy.MayPublish("last")
	for message := spy.Next(); message.Topic != "last"; message = spy.Next() {
		t.Errorf("the spy received %v", message)
	}
	if len(spy.Notified) > 0 {
		t.Errorf("the spy received a notification of another: %v", await.Receive(spy.Notified))
	}
}

// The server publishes nothing on topics that begin with $, so it refuses subscriptions to them.
func TestSysTopicsAreRefused(t *testing.T) {
	p := testsupport.Connect(t, testsupport.Start(t, server.Options{}), "p", nil)
	for _, filter := range []string{"$SYS/#", "$SYS/broker/clients/connected", "$sys/+", "$other", "$SHARE/g/t"} {
		if p.MaySubscribe(filter) {
			t.Errorf("subscribe to %q is granted", filter)
		}
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

// A right to publish is a right to a topic, so the server allows no aliases.
func TestATopicAliasDoesNotHideATopic(t *testing.T) {
	address := testsupport.Start(t, server.Options{})
	p, other := testsupport.Connect(t, address, "p", nil), testsupport.Connect(t, address, "other", nil)
	alias := uint16(1)
	message := &packets.Publish{Topic: "clients/p/x", Payload: []byte("x"), Properties: &packets.Properties{TopicAlias: &alias}}
	if _, err := message.WriteTo(p.Conn); err != nil {
		t.Fatal(err)
	}
	p.MustBeGone()
	other.MustBeSilent()
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
		if got := p.MayPublish(test.topic); got != test.write {
			t.Errorf("publish to %q: %v", test.topic, got)
		}
		if got := p.MayBeAnswered(test.topic); got != test.write {
			t.Errorf("be answered on %q: %v", test.topic, got)
		}
		if got := p.MaySubscribe(test.topic); got != test.read {
			t.Errorf("subscribe to %q: %v", test.topic, got)
		}
	}
	if !p.MaySubscribe("#") {
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
	if got := s.Stats(); got.RefusedConnections != 1 || got.Connected != 0 {
		t.Errorf("stats %+v", got)
	}
}

// Without an Authenticator a user name is only a claim of its client.
func TestAnUncheckedUserNameIsIgnored(t *testing.T) {
	var user string
	authorizer := onlyKeys(func(identity access.Identity) { user = identity.User })
	p := testsupport.Connect(t, testsupport.Start(t, server.Options{Authorizer: authorizer}), "p", testsupport.As("admin"))
	p.Do("GET", "k")
	if user != "" {
		t.Errorf("the user is %q", user)
	}
}

type onlyKeys func(identity access.Identity)

func (o onlyKeys) Authorize(identity access.Identity, _ statestore.Verb, _ string) bool {
	o(identity)
	return true
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
		{"loopback by name", server.Options{Addr: "localhost:0"}, true},
		{"loopback of IPv6 in IPv4", server.Options{Addr: "[::ffff:127.0.0.1]:0"}, true},
		{"all interfaces", server.Options{Addr: ":0"}, false},
		{"all interfaces in numbers", server.Options{Addr: "0.0.0.0:0"}, false},
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
		{"a listener on an unknown network, explicitly", server.Options{Listener: placed{"overlay", "here"}, AllowInsecure: true}, true},
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
