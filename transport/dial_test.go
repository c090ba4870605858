package transport

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tenurelock/tenure/internal/await"
	"github.com/tenurelock/tenure/internal/mqttnet"
)

func TestCredentialsThatTravelInTheClearAreWarnedAbout(t *testing.T) {
	path, _ := secretFile(t, "secret")
	for _, test := range []struct {
		name, addresses string
		options         Options
		warned          bool
	}{
		{"a password", "mqtt://a", Options{Username: "user", Password: []byte("secret")}, true},
		{"a password file", "ws://a", Options{Username: "user", PasswordFile: path}, true},
		{"a token", "mqtts://a,tcp://b", Options{TokenFile: path}, true},
		{"encrypted", "mqtts://a,wss://b", Options{TokenFile: path}, false},
		{"no secret", "mqtt://a", Options{Username: "user"}, false},
	} {
		t.Run(test.name, func(t *testing.T) {
			var log strings.Builder
			test.options.Logger = slog.New(slog.NewTextHandler(&log, nil))
			if _, err := newConn(test.addresses, &test.options); err != nil {
				t.Fatal(err)
			}
			if got := log.String(); strings.Contains(got, "not encrypted") != test.warned || strings.Contains(got, "secret") {
				t.Errorf("logged %q; want a warning: %t", got, test.warned)
			}
		})
	}
}

func TestNonsensicalOptionsAreRefusedBeforeAnythingIsDialled(t *testing.T) {
	for _, test := range []struct {
		name    string
		options Options
		want    string
	}{
		{"a slash in the client id", Options{ClientID: "a/b"}, "ClientID"},
		{"a wildcard in the client id", Options{ClientID: "a+"}, "ClientID"},
		{"a control character in the client id", Options{ClientID: "a\n"}, "ClientID"},
		{"a keep-alive of a fraction of a second", Options{KeepAlive: 1500 * time.Millisecond}, "KeepAlive"},
		{"a negative keep-alive", Options{KeepAlive: -time.Second}, "KeepAlive"},
		{"a keep-alive that MQTT cannot say", Options{KeepAlive: 65536 * time.Second}, "KeepAlive"},
		{"a negative pause", Options{ReconnectMin: -1}, "ReconnectMin"},
		{"pauses in the wrong order", Options{ReconnectMin: time.Second, ReconnectMax: time.Millisecond}, "ReconnectMax"},
		{"two passwords", Options{Password: []byte("p"), PasswordFile: "dial.go"}, "Password and PasswordFile exclude"},
		{"a token and a user", Options{TokenFile: "dial.go", Username: "u"}, "TokenFile and Username"},
		{"a token and a password", Options{TokenFile: "dial.go", PasswordFile: "dial.go"}, "TokenFile and Username"},
		{"a certificate without a key", Options{TLS: TLSOptions{CertFile: "dial.go"}}, "CertFile and KeyFile"},
		{"a key without a certificate", Options{TLS: TLSOptions{KeyFile: "dial.go"}}, "CertFile and KeyFile"},
		{"the password of no key", Options{TLS: TLSOptions{KeyPasswordFile: "dial.go"}}, "KeyPasswordFile"},
		{"TLS where nothing is encrypted", Options{TLS: TLSOptions{CAFile: "dial.go"}}, "write mqtts or wss"},
		{"a password that no packet can hold", Options{Password: make([]byte, 1<<16)}, "at most 65535"},
		{"a password file that is not there", Options{PasswordFile: "missing"}, "Options.PasswordFile: open missing"},
		{"a token file that is not there", Options{TokenFile: "missing"}, "Options.TokenFile: open missing"},
		{"a negative timeout", Options{ClientOptions: ClientOptions{RequestTimeout: -1}}, "RequestTimeout"},
	} {
		t.Run(test.name, func(t *testing.T) {
			_, err := Dial(t.Context(), "mqtt://192.0.2.1", test.options)
			if err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("%v, want an error about %s", err, test.want)
			}
		})
	}
}

func TestDefaultsOfOptions(t *testing.T) {
	var first, second Options
	for _, options := range []*Options{&first, &second} {
		if err := options.complete(); err != nil {
			t.Fatal(err)
		}
	}
	if first.ClientID == second.ClientID || first.ClientID == "" {
		t.Errorf("two clients without an id are both called %q", first.ClientID)
	}
	if first.KeepAlive != 5*time.Second || first.ReconnectMin != 50*time.Millisecond || first.ReconnectMax != 2*time.Second {
		t.Errorf("%+v", first)
	}
	slow := Options{ReconnectMin: time.Minute}
	if err := slow.complete(); err != nil || slow.ReconnectMax != time.Minute {
		t.Errorf("a long shortest pause: %v, %+v", err, slow)
	}
}

func TestMessageExpiryIsTheTimeLeftInWholeSecondsRoundedUp(t *testing.T) {
	for _, test := range []struct {
		left time.Duration
		want uint32
	}{
		{time.Millisecond, 1},
		{999 * time.Millisecond, 1},
		{1500 * time.Millisecond, 2},
		{-time.Second, 1},
	} {
		ctx, cancel := context.WithDeadline(context.Background(), time.Now().Add(test.left))
		if got := messageExpiry(ctx); got != test.want {
			t.Errorf("%v left: %v, want %d", test.left, got, test.want)
		}
		cancel()
	}
	if got := messageExpiry(context.Background()); got != 0 {
		t.Errorf("no deadline: %d, want none", got)
	}
}

func TestTheDialerOpensTheConnectionBelowTLSAndWebSocket(t *testing.T) {
	for address, first := range map[string]byte{
		"mqtt://broker:1": 0x10, // CONNECT
		"mqtts://broker":  0x16, // the handshake of TLS
		"ws://broker":     'G',  // GET
	} {
		t.Run(address, func(t *testing.T) {
			broken := errors.New("no such network")
			asked := make(chan string, 1)
			var got atomic.Uint32
			dialer := func(ctx context.Context, network, address string) (net.Conn, error) {
				if ctx.Err() != nil {
					t.Error("it is called after the context ended")
				}
				select {
				case asked <- network + " " + address:
				default:
					return nil, broken
				}
				near, far := net.Pipe()
				go func() {
					defer far.Close()
					one := make([]byte, 1)
					if _, err := io.ReadFull(far, one); err == nil {
						got.Store(uint32(one[0]))
					}
				}()
				return near, nil
			}
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
				defer cancel()
				_, err := Dial(ctx, address, Options{Dialer: dialer})
				if !errors.Is(err, broken) || !errors.Is(err, context.DeadlineExceeded) {
					t.Errorf("the error of the dialer is not in %v", err)
				}
			})
			server, _ := mqttnet.ParseAddress(address)
			if what := await.Receive(asked); what != "tcp "+server.Host {
				t.Errorf("the dialer was asked for %q", what)
			}
			if got.Load() != uint32(first) {
				t.Errorf("the first byte is 0x%X, want 0x%X", got.Load(), first)
			}
		})
	}
}
