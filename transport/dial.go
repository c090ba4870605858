package transport

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"math/rand/v2"
	"net"
	"net/url"
	"os"
	"strings"
	"time"
)

// Options configures Dial. The zero value connects under a random client id.
type Options struct {
	// ClientID is the MQTT client id: the name by which the store knows this
	// process, and by default the name of the holder of its leases. It must be
	// unique on the broker and may not hold "/", "+", "#" or control
	// characters, since topics contain it. Default: host name and a random
	// number.
	ClientID string
	// KeepAlive is how often an idle connection is checked; whole seconds. A
	// link that is cut without a word is noticed after one to two of them.
	// Default 5 s.
	KeepAlive time.Duration
	// ReconnectMin and ReconnectMax bound the exponential backoff between
	// attempts to connect. Default 50 ms and 2 s.
	ReconnectMin, ReconnectMax time.Duration
	// Username and Password authenticate at the broker; empty sends none.
	Username string
	Password []byte

	// ClientOptions configures the Client on top of the connection.
	ClientOptions
}

const (
	defaultKeepAlive    = 5 * time.Second
	defaultReconnectMin = 50 * time.Millisecond
	defaultReconnectMax = 2 * time.Second
	defaultPort         = "1883"
)

// Dial connects to the MQTT 5 broker at address, such as
// "mqtt://localhost:1883", and returns when requests can be sent. From then on
// the client reconnects by itself until Close.
//
// ctx bounds the first connection only. If it ends first, the error tells why
// the last attempt failed. A broker that refuses the credentials, the client id
// or the protocol version makes Dial fail at once.
func Dial(ctx context.Context, address string, options Options) (*Client, error) {
	server, err := parseAddress(address)
	if err != nil {
		return nil, err
	}
	if err := options.complete(); err != nil {
		return nil, err
	}
	conn := newMQTTConn(server, options)
	client, err := NewClient(conn, options.ClientOptions)
	if err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	if err := conn.awaitFirst(ctx); err != nil {
		return nil, fmt.Errorf("transport: dial %s: %w", server.Redacted(), errors.Join(err, client.Close()))
	}
	return client, nil
}

func parseAddress(address string) (*url.URL, error) {
	server, err := url.Parse(address)
	if err != nil {
		return nil, fmt.Errorf("transport: broker address: %w; write it like mqtt://host:1883", err)
	}
	if server.Scheme != "mqtt" && server.Scheme != "tcp" || server.Hostname() == "" {
		return nil, fmt.Errorf("transport: broker address %q: write it like mqtt://host:1883", server.Redacted())
	}
	if server.Path != "" && server.Path != "/" || server.RawQuery != "" || server.User != nil {
		return nil, fmt.Errorf("transport: broker address %q: only host and port belong here; credentials are options", server.Redacted())
	}
	if server.Port() == "" {
		server.Host = net.JoinHostPort(server.Hostname(), defaultPort)
	}
	return server, nil
}

// complete fills in defaults and rejects nonsense.
func (o *Options) complete() error {
	if o.ClientID == "" {
		host, err := os.Hostname()
		if err != nil {
			host = "tenure"
		}
		o.ClientID = fmt.Sprintf("%s-%016x", host, rand.Uint64())
	}
	if strings.ContainsAny(o.ClientID, "/+#") || strings.ContainsFunc(o.ClientID, isControl) {
		return fmt.Errorf("transport: Options.ClientID %q holds a character that topics give a meaning to: one of / + # or a control character", o.ClientID)
	}
	if o.KeepAlive == 0 {
		o.KeepAlive = defaultKeepAlive
	}
	if o.KeepAlive < time.Second || o.KeepAlive%time.Second != 0 || o.KeepAlive > math.MaxUint16*time.Second {
		return fmt.Errorf("transport: Options.KeepAlive %v is not a whole number of seconds from 1 to %d", o.KeepAlive, math.MaxUint16)
	}
	if o.ReconnectMin == 0 {
		o.ReconnectMin = defaultReconnectMin
	}
	if o.ReconnectMax == 0 {
		o.ReconnectMax = max(defaultReconnectMax, o.ReconnectMin)
	}
	if o.ReconnectMin < 0 || o.ReconnectMax < o.ReconnectMin {
		return fmt.Errorf("transport: Options.ReconnectMin %v and ReconnectMax %v must be positive and in this order", o.ReconnectMin, o.ReconnectMax)
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	return nil
}

func isControl(r rune) bool { return r < 0x20 || r >= 0x7f && r < 0xa0 }
