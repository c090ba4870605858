package integration_test

import (
	"context"
	"crypto/tls"
	"crypto/x509/pkix"
	"errors"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/tenurelock/tenure/contrib/tenurews"
	"github.com/tenurelock/tenure/internal/await"
	"github.com/tenurelock/tenure/internal/certificates"
	"github.com/tenurelock/tenure/server"
	"github.com/tenurelock/tenure/server/access"
	"github.com/tenurelock/tenure/server/internal/testsupport"
	"github.com/tenurelock/tenure/transport"
)

// answering listens, and answers what a client sends first with bytes. It then closes the
// connection, or leaves it open if answer is empty. taken has each connection.
func answering(t *testing.T, answer string) (address string, taken <-chan struct{}) {
	t.Helper()
	listener := testsupport.Listen(t)
	ended, accepted := make(chan struct{}), make(chan struct{}, 100)
	go func() {
		defer close(ended)
		var open []net.Conn
		for {
			conn, err := listener.Accept()
			if err != nil {
				for _, conn := range open {
					_ = conn.Close()
				}
				return
			}
			open = append(open, conn)
			accepted <- struct{}{}
			if answer == "" {
				continue
			}
			_ = conn.SetDeadline(time.Now().Add(testsupport.Patience))
			_, _ = conn.Read(make([]byte, 4096))
			_, _ = conn.Write([]byte(answer))
			_ = conn.Close()
		}
	}()
	t.Cleanup(func() {
		_ = listener.Close()
		await.Receive(ended)
	})
	return listener.Addr().String(), accepted
}

// A first user reads one line: the cause, and what to do about it.
func TestTheErrorOfAFirstContactIsOneLineWithTheCauseFirstAndAHint(t *testing.T) {
	t.Parallel()
	ca := certificates.New(t, "authority")
	caFile := writePair(t, t.TempDir(), ca.Own).CertFile
	_, otherCA := certified(t)
	plain := testsupport.Start(t, server.Options{})
	config := &tls.Config{Certificates: []tls.Certificate{ca.Issue(pkix.Name{CommonName: "server"})}}
	encrypted := testsupport.Start(t, server.Options{TLS: config})
	_, port, err := net.SplitHostPort(encrypted)
	if err != nil {
		t.Fatal(err)
	}
	certified := config.Clone()
	certified.ClientCAs, certified.ClientAuth = ca.Pool, tls.RequireAndVerifyClientCert
	withCertificates := testsupport.Start(t, server.Options{TLS: certified})
	web := httptest.NewServer(http.NotFoundHandler())
	defer web.Close()
	webAddress := web.Listener.Addr().String()
	closed, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	free := closed.Addr().String()
	_ = closed.Close()
	silent, _ := answering(t, "")
	alert, _ := answering(t, "\x15\x03\x01\x00\x02\x02\x46")
	hasty, _ := answering(t, "HTTP/1.1 400 Bad Request\r\n\r\n") // net/http waits for a whole line
	ssh, _ := answering(t, "SSH-2.0-OpenSSH_9.9\r\n")
	old, _ := answering(t, "\x20\x02\x00\x01")
	refuses := testsupport.Credentials{Came: make(chan access.Credentials, 1), Refuse: errors.New("not this one")}
	secret := testsupport.Start(t, server.Options{Authenticator: refuses})

	for _, test := range []struct {
		name, address string
		options       transport.Options
		want          string // what the error begins with, after the address
	}{
		{"no program listens", "mqtt://" + free, transport.Options{}, "connection refused by " + free + ": is `tenure serve` running there, and is this its port?"},
		{"a server that says nothing", "mqtt://" + silent, transport.Options{}, "no MQTT answer from " + silent + ": is this a TLS port (then write mqtts://" + silent + "), the port of a web server, or a broker that speaks MQTT 3 only?"},
		{"a server that says nothing, with TLS", "mqtts://" + silent, transport.Options{}, "TLS: no answer from " + silent + ": is this a port without TLS? Then write mqtt://" + silent},
		{"a server that says nothing, with WebSocket", "ws://" + silent, transport.Options{WebSocket: tenurews.Upgrade}, "no MQTT answer from " + silent + ": is a broker that speaks MQTT 5 behind this port?"},
		{"a TLS port", "mqtt://" + encrypted, transport.Options{}, "no MQTT answer from " + encrypted + ": is this a TLS port (then write mqtts://" + encrypted},
		{"a TLS port that says so", "mqtt://" + alert, transport.Options{}, alert + " answers with TLS: write mqtts://" + alert},
		{"a port without TLS", "mqtts://" + plain, transport.Options{}, "TLS: no answer from " + plain + ": is this a port without TLS? Then write mqtt://" + plain},
		{"a web server", "mqtt://" + hasty, transport.Options{}, hasty + " answers HTTP: is this a web server?"},
		{"a web server, with TLS", "mqtts://" + webAddress, transport.Options{}, webAddress + " answers HTTP: is this a web server?"},
		{"a web server, with WebSocket", "ws://" + webAddress + "/mqtt", transport.Options{WebSocket: tenurews.Upgrade}, `websocket handshake: the server answers "HTTP/1.1 404 Not Found"; check the path`},
		{"another protocol", "mqtt://" + ssh, transport.Options{}, ssh + ` does not speak MQTT: its answer begins with "SSH-2.0-OpenSSH_9.9\r\n"`},
		{"a broker of MQTT 3", "mqtt://" + old, transport.Options{}, old + " answers with MQTT 3: this client needs a broker that speaks MQTT 5"},
		{"another authority", "mqtts://" + encrypted, transport.Options{TLS: transport.TLSOptions{CAFile: otherCA}},
			"TLS: the certificate of " + encrypted + " is signed by an unknown authority: name the file with the authority's certificate (TLS.CAFile, --tls-ca)"},
		{"another name", "mqtts://localhost:" + port, transport.Options{TLS: transport.TLSOptions{CAFile: caFile}},
			"TLS: the certificate of localhost:" + port + " is valid for 127.0.0.1, not for localhost: "},
		{"a clock that is wrong", "mqtts://" + encrypted, transport.Options{TLS: transport.TLSOptions{CAFile: caFile, Config: &tls.Config{
			Time: func() time.Time { return time.Now().AddDate(50, 0, 0) }}}},
			"TLS: the certificate of " + encrypted + " is valid from "},
		{"no certificate", "mqtts://" + withCertificates, transport.Options{TLS: transport.TLSOptions{CAFile: caFile}},
			"TLS: " + withCertificates + " closed the connection: it asked for a client certificate, and this client has none"},
		{"a wrong password", "mqtt://" + secret, transport.Options{Username: "u", Password: []byte("wrong")},
			"the broker refused the connection (MQTT reason code 0x86); check the username, the password"},
	} {
		t.Run(test.name, func(t *testing.T) {
			var err error
			if strings.Contains(test.address, silent) { // nothing happens before the time is up
				ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
				defer cancel()
				_, err = transport.Dial(ctx, test.address, test.options)
			} else {
				err = whyNot(t, test.address, test.options)
			}
			if want := "transport: dial " + test.address + ": " + test.want; !strings.HasPrefix(err.Error(), want) || strings.Contains(err.Error(), "\n") {
				t.Errorf("%v\nwant\n%s", err, want)
			}
		})
	}
}
