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
			return nil, err
		}
		servers = append(servers, server)
	}
	return servers, nil
}

func parseAddress(address string) (*url.URL, error) {
	server, err := url.Parse(address)
	if err != nil {
		var parse *url.Error // it would quote the address, and with it a password
		if errors.As(err, &parse) {
			err = parse.Err
		}
		return nil, fmt.Errorf("transport: broker address: %w; %s", err, addressForm)
	}
	scheme, spoken := schemes[server.Scheme]
	if !spoken || server.Hostname() == "" {
		return nil, fmt.Errorf("transport: broker address %q: %s", server.Redacted(), addressForm)
	}
	if host := server.Hostname(); strings.Contains(host, ":") {
		if _, err := netip.ParseAddr(host); err != nil { // a second colon, without brackets
			return nil, fmt.Errorf("transport: broker address %q: %q is no host; %s", server.Redacted(), host, addressForm)
		}
	}
	if server.User != nil {
		return nil, fmt.Errorf("transport: broker address %q: credentials are options, and do not belong here", server.Redacted())
	}
	if !scheme.websocket && (server.Path != "" && server.Path != "/" || server.RawQuery != "") {
		return nil, fmt.Errorf("transport: broker address %q: only host and port belong here", server.Redacted())
	}
	if server.Fragment != "" {
		return nil, fmt.Errorf("transport: broker address %q: a broker never sees what follows the #", server.Redacted())
	}
	if server.Port() == "" {
		server.Host = net.JoinHostPort(server.Hostname(), scheme.port)
	}
	return server, nil
}
