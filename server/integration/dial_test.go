package integration_test

import (
	"context"
	"crypto/tls"
	"crypto/x509/pkix"
	"errors"
	"net"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/tenurelock/tenure/contrib/tenurews"
	"github.com/tenurelock/tenure/internal/await"
	"github.com/tenurelock/tenure/internal/certificates"
	"github.com/tenurelock/tenure/internal/mosquitto"
	"github.com/tenurelock/tenure/server"
	"github.com/tenurelock/tenure/server/access"
	"github.com/tenurelock/tenure/server/internal/testsupport"
	"github.com/tenurelock/tenure/transport"
)

func TestTheErrorNamesMosquittoWithoutAStore(t *testing.T) {
	client := testsupport.Dial(t, mosquitto.Start(t, "").Address, transport.Options{})
	_, err := client.Get(t.Context(), "k")
	if !errors.Is(err, transport.ErrNoStore) || errors.Is(err, transport.ErrOutcomeUnknown) || !strings.Contains(err.Error(), "no state store answers on this broker") {
		t.Errorf("%v, want ErrNoStore", err)
	}
}

func TestInvariant42DialThatIsCancelledWhileSomethingHangsLeavesNothing(t *testing.T) {
	for _, scheme := range []string{"mqtt", "mqtts", "ws", "wss"} {
		t.Run(scheme, func(t *testing.T) {
			address, taken := answering(t, "")
			before := runtime.NumGoroutine()
			ctx, cancel := context.WithCancelCause(t.Context())
			why := errors.New("no more patience")
			go func() {
				await.Receive(taken)
				cancel(why)
			}()
			if _, err := transport.Dial(ctx, scheme+"://"+address, transport.Options{WebSocket: tenurews.Upgrade}); !errors.Is(err, why) {
				t.Errorf("%v, want %v", err, why)
			}
			testsupport.MustEndGoroutines(t, before)
		})
	}
}

// The next broker takes the connection and hangs, or the present one no longer reads.
func TestInvariant42CloseWhileTheBrokerNoLongerReadsLeavesNothing(t *testing.T) {
	config, caFile := certified(t)
	plain, encrypted := testsupport.Start(t, server.Options{}), testsupport.Start(t, server.Options{TLS: config})
	for scheme, target := range map[string]string{
		"mqtt": plain, "mqtts": encrypted, "ws": startWebSocket(t, plain, nil), "wss": startWebSocket(t, plain, config),
	} {
		for _, reads := range []bool{true, false} {
			t.Run(scheme, func(t *testing.T) {
				through := testsupport.NewProxy(t, target)
				hung, taken := answering(t, "")
				// A write must not time out before Close.
				options := transport.Options{KeepAlive: time.Hour, WebSocket: tenurews.Upgrade, ClientOptions: transport.ClientOptions{RequestTimeout: time.Hour}}
				if strings.HasSuffix(scheme, "s") && scheme != "ws" {
					options.TLS.CAFile = caFile
				}
				before := runtime.NumGoroutine()
				client := testsupport.Dial(t, scheme+"://"+through.Address()+","+scheme+"://"+hung, options)
				mustWork(t, client)
				if reads {
					through.Refuse(true)
					through.Cut()
					await.Receive(taken)
				} else {
					through.Hold(testsupport.ToServer)
				}
				const requests = 30 // with more bytes than sockets hold
				failed := make(chan error, requests)
				for range requests {
					go func() {
						_, err := client.Set(t.Context(), "k", make([]byte, 1_000_000), transport.SetOptions{})
						failed <- err
					}()
				}
				time.Sleep(100 * time.Millisecond) // no state shows that a write is stuck
				if err := await.Result(client.Close); err != nil {
					t.Error(err)
				}
				for range requests {
					if err := await.Receive(failed); !errors.Is(err, transport.ErrClosed) {
						t.Errorf("a request: %v, want ErrClosed", err)
					}
				}
				if !reads {
					through.Release(testsupport.ToServer)
				}
				through.Cut()
				testsupport.MustEndGoroutines(t, before)
			})
		}
	}
}

func TestTheClientSpeaksTLS(t *testing.T) {
	ca := certificates.New(t, "authority")
	caFile := writePair(t, t.TempDir(), ca.Own).CertFile
	address := testsupport.Start(t, server.Options{TLS: &tls.Config{Certificates: []tls.Certificate{ca.Issue(pkix.Name{CommonName: "server"})}}})
	_, port, _ := net.SplitHostPort(address)
	for _, test := range []struct {
		address string
		options transport.TLSOptions
		want    string // "": it connects
	}{
		{"mqtts://" + address, transport.TLSOptions{CAFile: caFile}, ""},
		{"tls://" + address, transport.TLSOptions{Config: &tls.Config{RootCAs: ca.Pool}}, ""},
		{"mqtts://localhost:" + port, transport.TLSOptions{CAFile: caFile, Config: &tls.Config{ServerName: "127.0.0.1"}}, ""},
		{"mqtts://" + address, transport.TLSOptions{CAFile: caFile, Config: &tls.Config{ServerName: "broker.example"}}, "broker.example"},
	} {
		if test.want == "" {
			mustWork(t, testsupport.Dial(t, test.address, transport.Options{TLS: test.options}))
		} else if err := whyNot(t, test.address, transport.Options{TLS: test.options}); !strings.Contains(err.Error(), test.want) {
			t.Errorf("%v, want an error that says %q", err, test.want)
		}
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
	through := testsupport.NewProxy(t, address)
	authority, own := t.TempDir(), t.TempDir()
	options := writePair(t, own, first.Issue(pkix.Name{CommonName: "first"}))
	options.CAFile = writePair(t, authority, first.Own).CertFile
	client := testsupport.Dial(t, "mqtts://"+through.Address(), transport.Options{TLS: options})
	if credentials := await.Receive(authenticator.Came); credentials.User != "CN=first" || !credentials.Certified {
		t.Errorf("the server sees %+v", credentials)
	}

	present.Store(second)
	through.Cut()
	testsupport.Eventually(t, "the client refuses the new certificate", func() bool {
		status := client.Connection()
		return !status.Connected && status.Err != nil && strings.Contains(status.Err.Error(), "unknown authority")
	})
	writePair(t, authority, second.Own)
	writePair(t, own, second.Issue(pkix.Name{CommonName: "second"}))
	if credentials := await.Receive(authenticator.Came); credentials.User != "CN=second" {
		t.Errorf("the server sees %+v", credentials)
	}
	mustWork(t, client)
}
