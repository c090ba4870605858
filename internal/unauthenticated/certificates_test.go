package unauthenticated_test

import (
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"fmt"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/tenurelock/tenure/internal/await"
	"github.com/tenurelock/tenure/internal/certificates"
	"github.com/tenurelock/tenure/internal/unauthenticated"
)

// shake returns what the handshake of a server gives, and its error.
func shake(t *testing.T, server, client *tls.Config) (tls.ConnectionState, error) {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0") // the ends of a pipe would wait for each other with an alert
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	var ended sync.WaitGroup
	defer func() { await.Done(ended.Wait) }()
	ended.Go(func() {
		if conn, err := tls.Dial("tcp", listener.Addr().String(), client); err == nil {
			_, _ = conn.Read(make([]byte, 1)) // until the server closes it
			_ = conn.Close()
		}
	})
	socket := await.Result(func() net.Conn { conn, _ := listener.Accept(); return conn })
	defer socket.Close()
	conn := tls.Server(socket, server)
	err = await.Result(conn.Handshake)
	return conn.ConnectionState(), err
}

func TestAServerAgreesOnNoCostlyCurve(t *testing.T) {
	ca := certificates.New(t, "authority")
	for _, test := range []struct {
		name   string
		offers []tls.CurveID
		works  bool
	}{
		{"what Go offers", nil, true},
		{"X25519", []tls.CurveID{tls.X25519}, true},
		{"X25519 with ML-KEM", []tls.CurveID{tls.X25519MLKEM768}, true},
		{"P-256", []tls.CurveID{tls.CurveP256}, true},
		{"P-384", []tls.CurveID{tls.CurveP384}, false},
		{"P-521", []tls.CurveID{tls.CurveP521}, false},
		{"P-521 before X25519", []tls.CurveID{tls.CurveP521, tls.X25519}, true},
	} {
		for _, version := range []uint16{tls.VersionTLS12, tls.VersionTLS13} {
			if version == tls.VersionTLS12 && test.name == "X25519 with ML-KEM" {
				continue // of TLS 1.3 only
			}
			t.Run(test.name+" "+tls.VersionName(version), func(t *testing.T) {
				server := &tls.Config{Certificates: []tls.Certificate{ca.Own}}
				unauthenticated.RestrictTLS(server)
				state, err := shake(t, server, &tls.Config{RootCAs: ca.Pool, ServerName: "127.0.0.1", CurvePreferences: test.offers, MaxVersion: version})
				if (err == nil) != test.works || err == nil && (state.CurveID == tls.CurveP384 || state.CurveID == tls.CurveP521) {
					t.Errorf("%v: %v", state.CurveID, err)
				}
			})
		}
	}
	chosen := &tls.Config{CurvePreferences: []tls.CurveID{tls.CurveP521}}
	if unauthenticated.RestrictTLS(chosen); len(chosen.CurvePreferences) != 1 {
		t.Errorf("what was chosen became %v", chosen.CurvePreferences)
	}
}

// showing returns a certificate that is shown together with others.
func showing(own tls.Certificate, others ...tls.Certificate) []tls.Certificate {
	for _, other := range others {
		own.Certificate = append(own.Certificate, other.Certificate[0])
	}
	return []tls.Certificate{own}
}

func TestTheChainOfAClientIsBoundedBeforeItIsVerified(t *testing.T) {
	root := certificates.New(t, "root")
	first := root.Subordinate("one")
	second := first.Subordinate("two")
	third := second.Subordinate("three")
	one, two, three := first.Own, second.Own, third.Own
	name := pkix.Name{CommonName: "client"}
	client, direct := third.Issue(name), root.Issue(name)
	expired := root.Issue(name, func(c *x509.Certificate) { c.NotAfter = time.Now().Add(-time.Minute) })
	ofServers := root.Issue(name, func(c *x509.Certificate) { c.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth} })
	stranger := certificates.New(t, "root").Own
	bogus := []tls.Certificate{one}
	for i := range 100 {
		bogus = append(bogus, certificates.New(t, fmt.Sprint("bogus ", i)).Own)
	}
	for _, test := range []struct {
		name     string
		shown    []tls.Certificate
		failure  string // "": none
		optional bool
	}{
		{name: "its own", shown: showing(direct)},
		{name: "its own, where none is needed", shown: showing(direct), optional: true},
		{name: "none, where none is needed", optional: true},
		{name: "none", failure: "didn't provide a certificate"},
		{name: "three authorities", shown: showing(client, three, two, one)},
		{name: "in another order, and the root", shown: showing(client, root.Own, one, three, two)},
		{name: "one authority is missing", shown: showing(client, three, one), failure: "unknown authority"},
		{name: "another root", shown: showing(stranger), failure: "unknown authority"},
		{name: "another root, where none is needed", shown: showing(stranger), optional: true, failure: "unknown authority"},
		{name: "expired", shown: showing(expired), failure: "expired"},
		{name: "not for clients", shown: showing(ofServers), failure: "incompatible key usage"},
		{name: "six", shown: showing(client, three, two, one, root.Own, stranger), failure: "shows 6 certificates, and may show 5"},
		{name: "a hundred", shown: showing(client, bogus...), failure: "shows 102 certificates, and may show 5"},
		{name: "two of one name", shown: showing(client, three, two, certificates.New(t, "two").Own), failure: "two authorities of the same name"},
	} {
		for _, version := range []uint16{tls.VersionTLS12, tls.VersionTLS13} {
			t.Run(test.name+" "+tls.VersionName(version), func(t *testing.T) {
				config := &tls.Config{Certificates: []tls.Certificate{root.Own}, ClientCAs: root.Pool, ClientAuth: tls.RequireAndVerifyClientCert}
				if test.optional {
					config.ClientAuth = tls.VerifyClientCertIfGiven
				}
				if !unauthenticated.RestrictTLS(config) {
					t.Error("certificates are not verified")
				}
				state, err := shake(t, config, &tls.Config{InsecureSkipVerify: true, MaxVersion: version,
					GetClientCertificate: func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
						if test.shown == nil {
							return new(tls.Certificate), nil
						}
						return &test.shown[0], nil // even if the server has named another authority
					}})
				switch {
				case test.failure == "" && err != nil, test.failure != "" && (err == nil || !strings.Contains(err.Error(), test.failure)):
					t.Errorf("%v, want %q", err, test.failure)
				case err == nil && test.shown != nil && state.PeerCertificates[0].Subject.CommonName != "client":
					t.Errorf("the client is %v", state.PeerCertificates[0].Subject)
				}
			})
		}
	}
}
