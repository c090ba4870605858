package standby_test

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509/pkix"
	"errors"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/eclipse/paho.golang/packets"

	"github.com/tenurelock/tenure/internal/await"
	"github.com/tenurelock/tenure/internal/certificates"
	"github.com/tenurelock/tenure/internal/logbuffer"
	"github.com/tenurelock/tenure/internal/testprocess"
	"github.com/tenurelock/tenure/server"
	"github.com/tenurelock/tenure/server/internal/testsupport"
	"github.com/tenurelock/tenure/transport"
)

func TestMain(m *testing.M) { os.Exit(testprocess.Run(m)) }

// start answers clients on a free port of this machine, as a server that stands by.
func start(t *testing.T, options server.Options, active func() string) (address string, stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	options.Listener = testsupport.Listen(t)
	ended := make(chan error, 1)
	go func() { ended <- server.StandBy(ctx, options, active) }()
	var once atomic.Bool
	stop = func() {
		if once.Swap(true) {
			return
		}
		cancel()
		if err := await.Receive(ended); err != nil {
			t.Errorf("StandBy: %v", err)
		}
	}
	t.Cleanup(stop)
	return options.Listener.Addr().String(), stop
}

func at(address string) func() string { return func() string { return address } }

func TestOurClientGoesFromAStandbyToTheActiveServer(t *testing.T) {
	active := testsupport.Start(t, server.Options{})
	far, _ := start(t, server.Options{}, nil)
	near, _ := start(t, server.Options{}, at(active))
	client := testsupport.Dial(t, strings.Join([]string{near, "mqtt://" + far, "mqtt://" + active}, ","), transport.Options{})
	if got := client.Connection(); got.Broker != "mqtt://"+active {
		t.Errorf("%+v", got)
	}
	if _, err := client.Set(t.Context(), "k", []byte("v"), transport.SetOptions{}); err != nil {
		t.Error(err)
	}
}

func TestAPlainClientIsSentToTheActiveServer(t *testing.T) {
	for _, test := range []struct{ name, active, want string }{
		{"known", "b.example:8883", "b.example:8883"},
		{"unknown", "", ""},
		{"no text", "b\xff", ""},
		{"a control character", "b\n", ""},
		{"too long", strings.Repeat("b", 301), ""},
	} {
		t.Run(test.name, func(t *testing.T) {
			address, _ := start(t, server.Options{}, at(test.active))
			p, err := testsupport.TryConnect(t, address, "a", nil)
			if err == nil || p.Connack == nil || p.Connack.ReasonCode != packets.ConnackUseAnotherServer || p.Connack.Properties.ServerReference != test.want {
				t.Fatalf("%v, %+v", err, p.Connack)
			}
			if !strings.Contains(p.Connack.Properties.ReasonString, "stands by") {
				t.Errorf("reason %q", p.Connack.Properties.ReasonString)
			}
		})
	}
	// What comes after the CONNECT does not cost the client the answer.
	address, _ := start(t, server.Options{}, nil)
	c := testsupport.ConnectPacket{ID: "a"}.Start(t, testsupport.DialTCP(t, address))
	c.Write(bytes.Repeat([]byte{0xc0, 0}, 10_000))
	if connack, err := c.TryRead(); err != nil || connack[3] != packets.ConnackUseAnotherServer {
		t.Errorf("a client that does not wait: %x, %v", connack, err)
	}
}

func TestAStandbyHasTheTLSOfItsServer(t *testing.T) {
	t.Parallel()
	authority := certificates.New(t, "authority")
	certificate := authority.Issue(pkix.Name{CommonName: "standby"})
	config := &tls.Config{Certificates: []tls.Certificate{certificate}, ClientCAs: authority.Pool, ClientAuth: tls.RequireAndVerifyClientCert}
	address, _ := start(t, server.Options{TLS: config}, at("b.example:8883"))
	client := authority.Issue(pkix.Name{CommonName: "client"})
	for _, test := range []struct {
		name         string
		certificates []tls.Certificate
		sent         bool // to the active server
	}{
		{"with a certificate", []tls.Certificate{client}, true},
		{"without one", nil, false},
	} {
		t.Run(test.name, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			options := transport.Options{TLS: transport.TLSOptions{Config: &tls.Config{RootCAs: authority.Pool, Certificates: test.certificates}}}
			_, err := transport.Dial(ctx, "mqtts://"+address, options)
			if err == nil || errors.Is(err, transport.ErrUseAnotherServer) != test.sent || strings.Contains(err.Error(), "b.example") != test.sent {
				t.Errorf("%v", err)
			}
		})
	}
}

func TestInvariant56TheNumberOfConnectionsAtAStandbyIsBounded(t *testing.T) {
	var log logbuffer.Buffer
	address, stop := start(t, server.Options{MaxUnauthenticated: 10, MaxUnauthenticatedPerAddress: 2, Logger: log.Logger()}, nil)
	silent := []*testsupport.RawClient{}
	for range 3 {
		silent = append(silent, testsupport.NewRaw(t, testsupport.DialTCP(t, address), "a"))
	}
	testsupport.MustBeClosed(t, silent[0].Conn)
	stop()
	for _, c := range silent {
		testsupport.MustBeClosed(t, c.Conn)
	}
	if !strings.Contains(log.String(), "--max-unauthenticated") {
		t.Errorf("the log: %s", &log)
	}
}

func TestInvariant55AnActiveThatPanicsEndsOneConnectionOnly(t *testing.T) {
	var calls atomic.Int32
	address, _ := start(t, server.Options{}, func() string {
		if calls.Add(1) == 1 {
			panic("at first")
		}
		return "b:1"
	})
	if _, connack := (testsupport.ConnectPacket{ID: "a"}).TryConnect(t, address); connack != nil {
		t.Errorf("CONNACK %x", connack)
	}
	if _, connack := (testsupport.ConnectPacket{ID: "a"}).TryConnect(t, address); len(connack) < 4 || connack[3] != packets.ConnackUseAnotherServer {
		t.Errorf("the next one: %x", connack)
	}
}
