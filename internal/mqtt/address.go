package mqtt

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"strconv"
	"strings"
)

// scheme is how an address carries MQTT.
type scheme struct {
	port      string // if the address names none
	encrypted bool
	websocket bool
}

var schemes = map[string]scheme{
	"mqtt":  {port: "1883"},
	"tcp":   {port: "1883"},
	"mqtts": {port: "8883", encrypted: true},
	"tls":   {port: "8883", encrypted: true},
	"ssl":   {port: "8883", encrypted: true},
	"ws":    {port: "80", websocket: true},
	"wss":   {port: "443", encrypted: true, websocket: true},
}

// schemeOf returns the scheme of an address that ParseAddress has accepted.
func schemeOf(server *url.URL) scheme { return schemes[server.Scheme] }

// IsEncrypted reports whether connections to an address from [ParseAddress] use TLS.
func IsEncrypted(server *url.URL) bool { return schemeOf(server).encrypted }

// CheckWebSocket returns an error if connections to an address from [ParseAddress] use WebSocket, and
// the program gives no function for that.
func CheckWebSocket(server *url.URL, given bool) error {
	if given || !schemeOf(server).websocket {
		return nil
	}
	return fmt.Errorf("broker address %q needs Options.WebSocket: set it to tenurews.Upgrade, "+
		"of the module github.com/tenurelock/tenure/contrib/tenurews", server)
}

const addressForm = "write it like mqtt://host:1883, mqtts://host:8883, ws://host/mqtt or wss://host/mqtt"

// ParseAddresses parses a list of broker addresses, separated by commas, each as
// [ParseAddress] does.
func ParseAddresses(list string) ([]*url.URL, error) {
	var servers []*url.URL
	for address := range strings.SplitSeq(list, ",") {
		server, err := ParseAddress(strings.TrimSpace(address))
		if err != nil {
			return nil, withoutCredentials(list, err)
		}
		servers = append(servers, server)
	}
	return servers, nil
}

// withoutCredentials replaces an error that might quote a password in text. Nothing can
// cut the password out: a "/", "#" or comma in it splits the text in the wrong place.
func withoutCredentials(text string, err error) error {
	if err != nil && strings.Contains(text, "@") {
		return errCredentials
	}
	return err
}

var errCredentials = errors.New("broker address: remove the @ and the text before it: " +
	"credentials are options; " + addressForm)

// ParseAddress parses the address of one broker, such as mqtts://host:8883, and adds the
// default port of its scheme. An address without a scheme is one of mqtt. The error says how to
// write an address and never quotes credentials, which do not belong in one.
func ParseAddress(address string) (*url.URL, error) {
	server, err := parse(address)
	return server, withoutCredentials(address, err)
}

// parse may quote a password in its error.
func parse(address string) (*url.URL, error) {
	if address != "" && !strings.Contains(address, "//") {
		address = "mqtt://" + address
	}
	server, err := url.Parse(address)
	if err != nil {
		var parse *url.Error // it would quote the address
		if errors.As(err, &parse) {
			err = parse.Err
		}
		return nil, fmt.Errorf("broker address: %w; %s", err, addressForm)
	}
	scheme, spoken := schemes[server.Scheme]
	if !spoken || server.Hostname() == "" {
		return nil, fmt.Errorf("broker address %q: %s", address, addressForm)
	}
	if host := server.Hostname(); strings.Contains(host, ":") {
		_, wrong := netip.ParseAddr(host) // a second colon, without brackets
		if wrong == nil {
			_, wrong = url.Parse(server.String()) // a zone that no URL can contain
		}
		if wrong != nil {
			return nil, fmt.Errorf("broker address %q: %q is not a host; %s", address, host, addressForm)
		}
	}
	if server.User != nil {
		return nil, errCredentials
	}
	if !scheme.websocket && (server.Path != "" && server.Path != "/" || server.RawQuery != "") {
		return nil, fmt.Errorf("broker address %q: only host and port belong here", address)
	}
	if server.Fragment != "" {
		return nil, fmt.Errorf("broker address %q: a broker never sees what follows the #", address)
	}
	if port := server.Port(); port == "" {
		server.Host = net.JoinHostPort(server.Hostname(), scheme.port)
	} else if _, err := strconv.ParseUint(port, 10, 16); err != nil {
		return nil, fmt.Errorf("broker address %q: there is no port %s; the largest one is 65535", address, port)
	}
	return server, nil
}
