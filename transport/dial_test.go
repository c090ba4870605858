package transport

import (
	"context"
	"log/slog"
	"strings"
	"testing"
	"time"
)

func TestParseAddress(t *testing.T) {
	for _, test := range []struct {
		name, address string
		host          string // empty: refused
		want          string // in the error
	}{
		{"scheme, host and port", "mqtt://broker:1884", "broker:1884", ""},
		{"the default port", "mqtt://broker", "broker:1883", ""},
		{"an alias", "tcp://127.0.0.1", "127.0.0.1:1883", ""},
		{"IPv6", "mqtt://[::1]", "[::1]:1883", ""},
		{"the default port of TLS", "mqtts://broker", "broker:8883", ""},
		{"an alias of TLS", "tls://broker", "broker:8883", ""},
		{"the default port of WebSocket", "ws://broker/mqtt?a=b", "broker:80", ""},
		{"the default port of WebSocket over TLS", "wss://broker", "broker:443", ""},
		{"a final slash", "mqtt://broker/", "broker:1883", ""},
		{"no scheme", "broker:1883", "", "write it like mqtt://host:1883"},
		{"nothing", "", "", "write it like mqtt://host:1883"},
		{"a scheme that is not spoken", "http://broker", "", "write it like mqtt://host:1883"},
		{"no host", "mqtt://:1883", "", "write it like mqtt://host:1883"},
		{"a port that is none", "mqtt://broker:port", "", "write it like mqtt://host:1883"},
		{"a host with a colon", "mqtt://::", "", "is no host"},
		{"a path", "mqtt://broker/topic", "", "only host and port"},
		{"a query", "mqtt://broker?a=b", "", "only host and port"},
		{"credentials", "mqtt://user:secret@broker", "", "credentials are options"},
		{"a path with TLS", "mqtts://broker/topic", "", "only host and port"},
		{"a fragment", "ws://broker/mqtt#1", "", "never sees"},
	} {
		t.Run(test.name, func(t *testing.T) {
			got, err := parseAddress(test.address)
			switch {
			case test.host != "" && (err != nil || got.Host != test.host):
				t.Errorf("%v, %v; want %s", got, err, test.host)
			case test.host == "" && (err == nil || !strings.Contains(err.Error(), test.want)):
				t.Errorf("%v, want an error that says %q", err, test.want)
			}
		})
	}
}

func TestAPasswordInAnAddressIsNotRepeated(t *testing.T) {
	for _, list := range []string{
		"mqtt://user:secret@broker", "mqtt://user:secret/2@broker", "mqtt://user:secret?2@broker", "mqtt://user:secret#2@broker",
		"mqtt://user:2#secret@broker", "mqtt://user:%secret@broker", "mqtt://user:secret,2@broker", "mqtt://user:2,secret@broker",
		"mqtt://a,mqtt://user:secret,2@broker", "user:secret@broker", "mqtt//user:secret@broker", "mqtt:user:secret@broker",
		"mqtt://user:secret@bro ker",
	} {
		_, err := parseAddresses(list)
		if err == nil || strings.Contains(err.Error(), "secret") || !strings.Contains(err.Error(), "credentials are options") {
			t.Errorf("%q: %v", list, err)
		}
	}
	if _, err := parseAddresses("ws://broker/mqtt@1"); err != nil {
		t.Error(err)
	}
}

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
			if _, err := NewConn(test.addresses, test.options); err != nil {
				t.Fatal(err)
			}
			if got := log.String(); strings.Contains(got, "not encrypted") != test.warned || strings.Contains(got, "secret") {
				t.Errorf("logged %q; want a warning: %t", got, test.warned)
			}
		})
	}
}

func TestAnAddressMayBeAListAndEachOfItMustBeRight(t *testing.T) {
	servers, err := parseAddresses("mqtt://a, mqtts://b:1")
	if err != nil || len(servers) != 2 || servers[0].Host != "a:1883" || servers[1].Host != "b:1" {
		t.Errorf("%v, %v", servers, err)
	}
	for _, list := range []string{"mqtt://a,", ",mqtt://a", "mqtt://a,b"} {
		if servers, err := parseAddresses(list); err == nil {
			t.Errorf("%q is taken for %v", list, servers)
		}
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

// Whatever a list of addresses is, each that is accepted can be dialled: it has a scheme
// that is spoken, a host and a port, and is accepted again as it is shown.
func FuzzAddresses(f *testing.F) {
	for _, list := range []string{
		"mqtt://broker:1884", "mqtts://a, wss://b/mqtt?a=b", "tcp://[::1]", "tls://[fe80::1%25eth0]:1", "mqtt://user:secret@broker", "ws://broker/#1", ",", "mqtt://a,",
	} {
		f.Add(list)
	}
	f.Fuzz(func(t *testing.T, list string) {
		servers, err := parseAddresses(list)
		if err != nil {
			return
		}
		for _, server := range servers {
			if schemeOf(server) == (scheme{}) || server.Hostname() == "" || server.Port() == "" || server.User != nil {
				t.Errorf("%q yields %q", list, server)
			}
			again, err := parseAddresses(strings.ReplaceAll(server.String(), ",", "%2C"))
			if err != nil || len(again) != 1 || again[0].Host != server.Host {
				t.Errorf("%q yields %q, which yields %v, %v", list, server, again, err)
			}
		}
	})
}
