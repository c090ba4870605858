package server_test

import (
	"context"
	"crypto/tls"
	"crypto/x509/pkix"
	"errors"
	"net"
	"strings"
	"testing"

	"github.com/eclipse/paho.golang/packets"
	"github.com/eclipse/paho.golang/paho"

	"github.com/tenurelock/tenure/internal/await"
	"github.com/tenurelock/tenure/server"
	"github.com/tenurelock/tenure/server/access"
	"github.com/tenurelock/tenure/server/internal/testsupport"
	"github.com/tenurelock/tenure/statestore"
)

// connectTLS connects with a certificate, or without if there is none.
func connectTLS(t *testing.T, address, id string, trust *testsupport.Authority, certificates ...tls.Certificate) (*paho.Connack, error) {
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
	ca, other := testsupport.NewAuthority(t), testsupport.NewAuthority(t)
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
		{"one that nobody has verified", tls.RequestClientCert, []tls.Certificate{other.Issue(subject)}, "", false},
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

func TestWhoIsNotAdmittedLearnsNothing(t *testing.T) {
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

// Without anybody to check it a user name is only what somebody says.
func TestAUserNameThatNobodyCheckedIsNone(t *testing.T) {
	var user string
	authorizer := onlyKeys(func(who access.Identity) { user = who.User })
	p := testsupport.Connect(t, testsupport.Start(t, server.Options{Authorizer: authorizer}), "p", testsupport.As("admin"))
	p.Do("GET", "k")
	if user != "" {
		t.Errorf("the user is %q", user)
	}
}

type onlyKeys func(who access.Identity)

func (o onlyKeys) Authorize(who access.Identity, _ statestore.Verb, _ string) bool {
	o(who)
	return true
}

// placed is a listener with an address of its own.
type placed struct{ network, address string }

func (p placed) Network() string         { return p.network }
func (p placed) String() string          { return p.address }
func (p placed) Addr() net.Addr          { return p }
func (placed) Accept() (net.Conn, error) { return nil, net.ErrClosed }
func (placed) Close() error              { return nil }

func TestAnAddressThatOthersCanReachNeedsTLSAndAuthentication(t *testing.T) {
	ca := testsupport.NewAuthority(t)
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
