package mqtt

import (
	"strings"
	"testing"
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
		{"another alias of TLS", "ssl://broker:8884", "broker:8884", ""},
		{"a final slash after an IPv6 address", "mqtt://[::1]:1883/", "[::1]:1883", ""},
		{"the default port of WebSocket", "ws://broker/mqtt?a=b", "broker:80", ""},
		{"the default port of WebSocket over TLS", "wss://broker", "broker:443", ""},
		{"a final slash", "mqtt://broker/", "broker:1883", ""},
		{"no scheme", "broker:1884", "broker:1884", ""},
		{"neither scheme nor port", "broker", "broker:1883", ""},
		{"IPv6 without a scheme", "[::1]:1884", "[::1]:1884", ""},
		{"a port that is none, without a scheme", "broker:port", "", "write it like mqtt://host:1883"},
		{"a scheme that lacks a slash", "mqtts:/broker:8883", "", "only host and port"},
		{"nothing", "", "", "write it like mqtt://host:1883"},
		{"a scheme that is not spoken", "http://broker", "", "write it like mqtt://host:1883"},
		{"no host", "mqtt://:1883", "", "write it like mqtt://host:1883"},
		{"a port that is none", "mqtt://broker:port", "", "write it like mqtt://host:1883"},
		{"a port that no host has", "mqtt://broker:65536", "", "there is no port 65536"},
		{"a host with a colon", "mqtt://::", "", "is not a host"},
		{"a zone that a URL cannot contain", "mqtt://[::%25\xcb]", "", "is not a host"},
		{"a path", "mqtt://broker/topic", "", "only host and port"},
		{"a query", "mqtt://broker?a=b", "", "only host and port"},
		{"credentials", "mqtt://user:secret@broker", "", "credentials are options"},
		{"a path with TLS", "mqtts://broker/topic", "", "only host and port"},
		{"a fragment", "ws://broker/mqtt#1", "", "never sees"},
	} {
		t.Run(test.name, func(t *testing.T) {
			got, err := ParseAddress(test.address)
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
		_, err := ParseAddresses(list)
		if err == nil || strings.Contains(err.Error(), "secret") || !strings.Contains(err.Error(), "credentials are options") {
			t.Errorf("%q: %v", list, err)
		}
	}
	if _, err := ParseAddresses("ws://broker/mqtt@1"); err != nil {
		t.Error(err)
	}
}

func TestAnAddressMayBeAListAndEachOfItMustBeRight(t *testing.T) {
	servers, err := ParseAddresses("mqtt://a, mqtts://b:1")
	if err != nil || len(servers) != 2 || servers[0].Host != "a:1883" || servers[1].Host != "b:1" {
		t.Errorf("%v, %v", servers, err)
	}
	for _, list := range []string{"mqtt://a,", ",mqtt://a", "mqtt://a,b c"} {
		if servers, err := ParseAddresses(list); err == nil {
			t.Errorf("%q is taken for %v", list, servers)
		}
	}
}

// Each accepted address can be dialled: it has a known scheme, a host and a port, and its
// String is accepted again.
func FuzzAddresses(f *testing.F) {
	for _, list := range []string{
		"mqtt://broker:1884", "mqtts://a, wss://b/mqtt?a=b", "tcp://[::1]", "tls://[fe80::1%25eth0]:1", "mqtt://user:secret@broker", "ws://broker/#1", ",", "mqtt://a,",
	} {
		f.Add(list)
	}
	f.Fuzz(func(t *testing.T, list string) {
		servers, err := ParseAddresses(list)
		if err != nil {
			return
		}
		for _, server := range servers {
			if schemeOf(server) == (scheme{}) || server.Hostname() == "" || server.Port() == "" || server.User != nil {
				t.Errorf("%q yields %q", list, server)
			}
			again, err := ParseAddresses(strings.ReplaceAll(server.String(), ",", "%2C"))
			if err != nil || len(again) != 1 || again[0].Host != server.Host {
				t.Errorf("%q yields %q, which yields %v, %v", list, server, again, err)
			}
		}
	})
}
