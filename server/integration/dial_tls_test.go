package integration_test

import (
	"crypto/tls"
	"crypto/x509/pkix"
	"io"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/tenurelock/tenure/contrib/tenurews"
	"github.com/tenurelock/tenure/internal/await"
	"github.com/tenurelock/tenure/internal/certificates"
	"github.com/tenurelock/tenure/server"
	"github.com/tenurelock/tenure/server/access"
	"github.com/tenurelock/tenure/server/internal/testsupport"
	"github.com/tenurelock/tenure/transport"
)

func TestTheClientSpeaksTLS(t *testing.T) {
	ca, other := certificates.New(t, "authority"), certificates.New(t, "authority")
	files := newFolder(t)
	caFile, otherCA := files.write("ca.pem", certificates.PEM(ca.Own)), files.write("other.pem", certificates.PEM(other.Own))
	address := testsupport.Start(t, server.Options{TLS: &tls.Config{Certificates: []tls.Certificate{ca.Issue(pkix.Name{CommonName: "server"})}}})
	_, port, err := net.SplitHostPort(address)
	if err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct {
		name, address string
		options       transport.TLSOptions
		want          string // "": it connects
	}{
		{"with the authority in a file", "mqtts://" + address, transport.TLSOptions{CAFile: caFile}, ""},
		{"under the other name of the scheme", "tls://" + address, transport.TLSOptions{CAFile: caFile}, ""},
		{"with the authority in a Config", "mqtts://" + address, transport.TLSOptions{Config: &tls.Config{RootCAs: ca.Pool}}, ""},
		{"with the name that the certificate has", "mqtts://localhost:" + port, transport.TLSOptions{CAFile: caFile, Config: &tls.Config{ServerName: "127.0.0.1"}}, ""},
		{"with a name that the certificate does not have", "mqtts://localhost:" + port, transport.TLSOptions{CAFile: caFile}, "localhost"},
		{"with a wrong ServerName", "mqtts://" + address, transport.TLSOptions{CAFile: caFile, Config: &tls.Config{ServerName: "broker.example"}}, "broker.example"},
		{"with another authority", "mqtts://" + address, transport.TLSOptions{CAFile: otherCA}, "unknown authority"},
		{"with the authorities of this machine", "mqtts://" + address, transport.TLSOptions{}, "unknown authority"},
		{"to a server without TLS", "mqtts://" + testsupport.Start(t, server.Options{}), transport.TLSOptions{CAFile: caFile}, "TLS: "},
	} {
		t.Run(test.name, func(t *testing.T) {
			if test.want == "" {
				mustWork(t, mustDial(t, test.address, transport.Options{TLS: test.options, WebSocket: tenurews.Upgrade}))
				return
			}
			err := whyNot(t, test.address, transport.Options{TLS: test.options})
			if !strings.Contains(err.Error(), test.want) || !strings.Contains(err.Error(), "TLS: ") {
				t.Errorf("%v, want an error of TLS that says %q", err, test.want)
			}
		})
	}
}

func TestTheClientShowsItsCertificate(t *testing.T) {
	ca := certificates.New(t, "authority")
	authenticator := testsupport.Credentials{Came: make(chan access.Credentials, 1)}
	address := testsupport.Start(t, server.Options{
		TLS: &tls.Config{
			Certificates: []tls.Certificate{ca.Issue(pkix.Name{CommonName: "server"})},
			ClientCAs:    ca.Pool, ClientAuth: tls.RequireAndVerifyClientCert,
		},
		Authenticator: authenticator,
	})
	files := newFolder(t)
	options := transport.TLSOptions{CAFile: files.write("ca.pem", certificates.PEM(ca.Own))}
	options.CertFile, options.KeyFile = files.writePair(ca.Issue(pkix.Name{CommonName: "press-7"}))
	mustWork(t, mustDial(t, "mqtts://"+address, transport.Options{TLS: options}))
	if credentials := await.Receive(authenticator.Came); credentials.User != "CN=press-7" || !credentials.Certified {
		t.Errorf("the server sees %+v", credentials)
	}
}

func TestTheErrorWithoutACertificateSaysThatTheServerAsksForOne(t *testing.T) {
	ca := certificates.New(t, "authority")
	address := testsupport.Start(t, server.Options{TLS: &tls.Config{
		Certificates: []tls.Certificate{ca.Issue(pkix.Name{CommonName: "server"})},
		ClientCAs:    ca.Pool, ClientAuth: tls.RequireAndVerifyClientCert,
	}})
	err := whyNot(t, "mqtts://"+address, transport.Options{TLS: transport.TLSOptions{CAFile: newFolder(t).write("ca.pem", certificates.PEM(ca.Own))}})
	if !strings.Contains(err.Error(), "it asked for a client certificate, and this client has none") {
		t.Errorf("%v, want an error that says what the server asks for", err)
	}
}

func TestCertificatesThatAreReplacedCountFromTheNextConnection(t *testing.T) {
	first, second := certificates.New(t, "authority"), certificates.New(t, "authority")
	var present atomic.Pointer[certificates.Authority]
	present.Store(first)
	authenticator := testsupport.Credentials{Came: make(chan access.Credentials, 10)}
	address := testsupport.Start(t, server.Options{
		Authenticator: authenticator,
		TLS: &tls.Config{
			// So that the listener takes it for one that has certificates.
			Certificates: []tls.Certificate{first.Issue(pkix.Name{CommonName: "server"})},
			ClientAuth:   tls.RequireAndVerifyClientCert,
			ClientCAs:    first.Pool,
			GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) {
				a := present.Load()
				return &tls.Config{
					Certificates: []tls.Certificate{a.Issue(pkix.Name{CommonName: "server"})},
					ClientAuth:   tls.RequireAndVerifyClientCert, ClientCAs: a.Pool,
				}, nil
			},
		},
	})
	through := newStreamProxy(t, address)
	files := newFolder(t)
	options := transport.TLSOptions{CAFile: files.write("ca.pem", certificates.PEM(first.Own))}
	options.CertFile, options.KeyFile = files.writePair(first.Issue(pkix.Name{CommonName: "first"}))
	client := mustDial(t, "mqtts://"+through.address(), transport.Options{TLS: options})
	if credentials := await.Receive(authenticator.Came); credentials.User != "CN=first" {
		t.Errorf("the server sees %+v", credentials)
	}

	present.Store(second)
	through.cut()
	status := awaitStatus(t, client, "kept out by the new certificate", func(status transport.ConnectionStatus) bool {
		return status.State == transport.Connecting && status.Err != nil && strings.Contains(status.Err.Error(), "unknown authority")
	})
	files.write("ca.pem", certificates.PEM(second.Own))
	files.writePair(second.Issue(pkix.Name{CommonName: "second"}))
	mustReconnect(t, client, status.Connections)
	if credentials := await.Receive(authenticator.Came); credentials.User != "CN=second" {
		t.Errorf("the server sees %+v", credentials)
	}
	mustWork(t, client)
}

func TestTheClientSpeaksWebSocket(t *testing.T) {
	t.Parallel()
	target := testsupport.Start(t, server.Options{})
	ca := certificates.New(t, "authority")
	encrypted := startWebSocket(t, target, &tls.Config{Certificates: []tls.Certificate{ca.Issue(pkix.Name{CommonName: "server"})}})
	caFile := newFolder(t).write("ca.pem", certificates.PEM(ca.Own))
	for _, test := range []struct {
		name, address string
		options       transport.TLSOptions
	}{
		{"over TCP", "ws://" + startWebSocket(t, target, nil) + "/mqtt", transport.TLSOptions{}},
		{"over TLS", "wss://" + encrypted + "/mqtt", transport.TLSOptions{CAFile: caFile}},
	} {
		t.Run(test.name, func(t *testing.T) {
			client := mustDial(t, test.address, transport.Options{TLS: test.options, WebSocket: tenurews.Upgrade})
			mustWork(t, client)
			var group sync.WaitGroup
			for range 20 {
				group.Go(func() {
					if _, err := client.Get(t.Context(), "k"); err != nil {
						t.Error(err)
					}
				})
			}
			await.Done(group.Wait)
			if status := client.Connection(); status.Broker != test.address || status.Connections != 1 {
				t.Errorf("%+v", status)
			}
		})
	}
}

func TestTheErrorQuotesAServerWithoutWebSocket(t *testing.T) {
	// The plain port of a broker closes a WebSocket handshake; a web server replies with an error.
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			_, _ = conn.Read(make([]byte, 4096))
			_, _ = io.WriteString(conn, "HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n")
			_ = conn.Close()
		}
	}()
	for address, want := range map[string]string{
		"ws://" + listener.Addr().String() + "/nowhere":  "check the path",
		"ws://" + testsupport.Start(t, server.Options{}): "websocket handshake",
	} {
		err := whyNot(t, address, transport.Options{WebSocket: tenurews.Upgrade})
		if !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want an error that says %q", address, err, want)
		}
	}
}
