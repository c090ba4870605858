package server_test

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"math/big"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/eclipse/paho.golang/packets"
	"github.com/eclipse/paho.golang/paho"

	"github.com/tenurelock/tenure/internal/await"
	"github.com/tenurelock/tenure/server"
	"github.com/tenurelock/tenure/server/access"
	"github.com/tenurelock/tenure/statestore"
)

// An authority signs certificates, for as long as a test lasts.
type authority struct {
	t           testing.TB
	certificate *x509.Certificate
	key         *ecdsa.PrivateKey
	pool        *x509.CertPool
}

func newAuthority(t testing.TB) *authority {
	t.Helper()
	a := &authority{t: t, pool: x509.NewCertPool()}
	made := a.issue(pkix.Name{CommonName: "authority"})
	a.certificate, a.key = made.Leaf, made.PrivateKey.(*ecdsa.PrivateKey)
	a.pool.AddCert(a.certificate)
	return a
}

// issue returns a certificate for 127.0.0.1; the first is the authority's own.
func (a *authority) issue(subject pkix.Name) tls.Certificate {
	a.t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		a.t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber:          big.NewInt(time.Now().UnixNano()),
		Subject:               subject,
		NotBefore:             time.Now().Add(-time.Hour),
		NotAfter:              time.Now().Add(time.Hour),
		IPAddresses:           []net.IP{net.IPv4(127, 0, 0, 1)},
		ExtKeyUsage:           []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
		BasicConstraintsValid: true,
	}
	parent, signer := a.certificate, a.key
	if parent == nil {
		template.IsCA, template.KeyUsage = true, x509.KeyUsageCertSign
		parent, signer = template, key
	}
	der, err := x509.CreateCertificate(rand.Reader, template, parent, &key.PublicKey, signer)
	if err != nil {
		a.t.Fatal(err)
	}
	leaf, err := x509.ParseCertificate(der)
	if err != nil {
		a.t.Fatal(err)
	}
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key, Leaf: leaf}
}

// connectTLS connects with a certificate, or without if there is none.
func connectTLS(t *testing.T, address, id string, trust *authority, certificates ...tls.Certificate) (*paho.Connack, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	dialer := tls.Dialer{Config: &tls.Config{RootCAs: trust.pool, Certificates: certificates}}
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

// credentials notes who came.
type credentials struct {
	came   chan access.Credentials
	refuse error
}

func (c credentials) Authenticate(got access.Credentials) error {
	c.came <- got
	return c.refuse
}

func TestTheSubjectOfAClientCertificateIsTheUser(t *testing.T) {
	ca, other := newAuthority(t), newAuthority(t)
	subject := pkix.Name{CommonName: "press-7", Organization: []string{"Plant"}}
	for _, test := range []struct {
		name        string
		auth        tls.ClientAuthType
		certificate []tls.Certificate
		user        string // "-": refused by TLS
		certified   bool
	}{
		{"a certificate", tls.RequireAndVerifyClientCert, []tls.Certificate{ca.issue(subject)}, "CN=press-7,O=Plant", true},
		{"none where one is required", tls.RequireAndVerifyClientCert, nil, "-", false},
		{"none where one may be given", tls.VerifyClientCertIfGiven, nil, "", false},
		{"one of another authority", tls.RequireAndVerifyClientCert, []tls.Certificate{other.issue(subject)}, "-", false},
		{"one that nobody has verified", tls.RequestClientCert, []tls.Certificate{other.issue(subject)}, "", false},
	} {
		t.Run(test.name, func(t *testing.T) {
			authenticator := credentials{came: make(chan access.Credentials, 1)}
			address := start(t, server.Options{
				TLS:           &tls.Config{Certificates: []tls.Certificate{ca.issue(pkix.Name{CommonName: "server"})}, ClientCAs: ca.pool, ClientAuth: test.auth},
				Authenticator: authenticator,
			})
			_, err := connectTLS(t, address, "p", ca, test.certificate...)
			if (err != nil) != (test.user == "-") {
				t.Fatalf("connect: %v", err)
			}
			if test.user == "-" {
				return
			}
			if got := await.Receive(authenticator.came); got.Client != "p" || got.User != test.user || got.Certified != test.certified {
				t.Errorf("came %+v", got)
			}
		})
	}
}

func TestWhoIsNotAdmittedLearnsNothing(t *testing.T) {
	authenticator := credentials{came: make(chan access.Credentials, 1), refuse: errors.New("no such user: mallory")}
	address, s := startServer(t, server.Options{Authenticator: authenticator})
	p, err := tryConnect(t, address, "p", as("mallory"))
	if err == nil || p.connack == nil || p.connack.ReasonCode != packets.ConnackBadUsernameOrPassword {
		t.Fatalf("%+v, %v", p.connack, err)
	}
	if reason := p.connack.Properties.ReasonString; strings.Contains(reason, "mallory") || strings.Contains(reason, "no such") {
		t.Errorf("it is told %q", reason)
	}
	if got := await.Receive(authenticator.came); got.User != "mallory" || string(got.Password) != "secret" || got.Certified {
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
	p := connect(t, start(t, server.Options{Authorizer: authorizer}), "p", as("admin"))
	p.do("GET", "k")
	if user != "" {
		t.Errorf("the user is %q", user)
	}
}

type onlyKeys func(who access.Identity)

func (o onlyKeys) Authorize(who access.Identity, _ statestore.Verb, _ string) bool {
	o(who)
	return true
}

func TestAnAddressThatOthersCanReachNeedsTLSAndAuthentication(t *testing.T) {
	ca := newAuthority(t)
	encrypted := &tls.Config{Certificates: []tls.Certificate{ca.issue(pkix.Name{CommonName: "server"})}}
	certified := encrypted.Clone()
	certified.ClientCAs, certified.ClientAuth = ca.pool, tls.RequireAndVerifyClientCert
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
		{"authentication alone", server.Options{Addr: "0.0.0.0:0", Authenticator: rules{}}, false},
		{"TLS and authentication", server.Options{Addr: "0.0.0.0:0", TLS: encrypted, Authenticator: rules{}}, true},
		{"client certificates", server.Options{Addr: "0.0.0.0:0", TLS: certified}, true},
		{"client certificates that may be left out", server.Options{Addr: "0.0.0.0:0", TLS: optional}, false},
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
