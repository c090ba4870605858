package transport

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"strings"
)

// A scheme says how MQTT travels.
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
	"ws":    {port: "80", websocket: true},
	"wss":   {port: "443", encrypted: true, websocket: true},
}

// schemeOf returns the scheme of an address that parseAddress has accepted.
func schemeOf(server *url.URL) scheme { return schemes[server.Scheme] }

const addressForm = "write it like mqtt://host:1883, mqtts://host:8883, ws://host/mqtt or wss://host/mqtt"

// parseAddresses reads a list that is separated by commas.
func parseAddresses(list string) ([]*url.URL, error) {
	var servers []*url.URL
	for address := range strings.SplitSeq(list, ",") {
		server, err := parseAddress(strings.TrimSpace(address))
		if err != nil {
			return nil, withoutCredentials(list, err)
		}
		servers = append(servers, server)
	}
	return servers, nil
}

// withoutCredentials returns an error that does not quote text if that may hold a
// password. Where it ends cannot be told: a "/", "#" or comma in it takes the text apart.
func withoutCredentials(text string, err error) error {
	if strings.Contains(text, "@") {
		return errCredentials
	}
	return err
}

var errCredentials = errors.New("transport: broker address: an @, and what is before it, does not belong there: credentials are options; " + addressForm)

func parseAddress(address string) (*url.URL, error) {
	server, err := url.Parse(address)
	if err != nil {
		var parse *url.Error // it would quote the address
		if errors.As(err, &parse) {
			err = parse.Err
		}
		return nil, fmt.Errorf("transport: broker address: %w; %s", err, addressForm)
	}
	scheme, spoken := schemes[server.Scheme]
	if !spoken || server.Hostname() == "" {
		return nil, fmt.Errorf("transport: broker address %q: %s", address, addressForm)
	}
	if host := server.Hostname(); strings.Contains(host, ":") {
		if _, err := netip.ParseAddr(host); err != nil { // a second colon, without brackets
			return nil, fmt.Errorf("transport: broker address %q: %q is no host; %s", address, host, addressForm)
		}
	}
	if server.User != nil {
		return nil, errCredentials
	}
	if !scheme.websocket && (server.Path != "" && server.Path != "/" || server.RawQuery != "") {
		return nil, fmt.Errorf("transport: broker address %q: only host and port belong here", address)
	}
	if server.Fragment != "" {
		return nil, fmt.Errorf("transport: broker address %q: a broker never sees what follows the #", address)
	}
	if server.Port() == "" {
		server.Host = net.JoinHostPort(server.Hostname(), scheme.port)
	}
	return server, nil
}
