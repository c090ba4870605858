package transport

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"math/rand/v2"
	"net"
	"os"
	"strings"
	"time"

	"github.com/tenurelock/tenure/internal/mqttnet"
	"github.com/tenurelock/tenure/internal/testhook"
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
	// half-open link is noticed after one to two of them, or as soon as a lease misses an
	// answer (see Client.Probe).
	// Default 5 s.
	KeepAlive time.Duration
	// ReconnectMin and ReconnectMax bound the exponential backoff between
	// attempts to connect. Default 50 ms and 2 s.
	ReconnectMin, ReconnectMax time.Duration
	// Username and Password authenticate at the broker; empty sends none.
	Username string
	Password []byte
	// PasswordFile holds the password, in place of Password; a newline at its end is
	// not part of it. It is read for each connection, so that it may be replaced.
	PasswordFile string
	// TokenFile holds the token of a Kubernetes service account, which the broker
	// takes by MQTT's enhanced authentication, method K8S-SAT, in place of a user name
	// and a password. It is read for each connection, and shown anew when it changes
	// while one lasts. Keep it, like a password, to encrypted addresses: of others, Logger
	// gets a warning.
	TokenFile string
	// TLS says whom to trust and what to show at addresses that encrypt.
	TLS TLSOptions

	// MaxPacketSize bounds each MQTT packet from the broker in bytes, and with it the values
	// that this client can read: from 1 KiB to 256 MiB. The broker is told, and is to send
	// nothing larger: a store answers a Get of such a value with an error, and leaves out
	// notifications of it. A packet that is larger all the same ends the connection before
	// any memory is set aside for it, with an error that matches ErrPacketTooLarge.
	// Default 2 MiB, twice what our server takes from a client.
	MaxPacketSize int

	// Dialer opens the connection to address, the host and port of a broker; network is
	// "tcp". TLS and WebSocket are added to the connection that it returns. It decides
	// what the address means: it may connect through a proxy, to a Unix socket or to a
	// broker in the same process. It must return when ctx ends, and its error is in the
	// error of Dial. It is called for one attempt at a time, from a goroutine of the
	// client. Default: the zero net.Dialer.
	Dialer func(ctx context.Context, network, address string) (net.Conn, error)

	// OnConnectionChange, if not nil, is told of each change of the connection, from
	// one goroutine, in order. The connection does not wait for it: while it runs,
	// newer changes replace older ones, so that it is always told the latest, but not
	// each (see ConnectionStatus.Connections). Close waits until it was told of Ended;
	// it may not call Close.
	OnConnectionChange func(ConnectionStatus)

	// ClientOptions configures the Client on top of the connection.
	ClientOptions
}

const (
	defaultKeepAlive    = 5 * time.Second
	defaultReconnectMin = 50 * time.Millisecond
	defaultReconnectMax = 2 * time.Second

	defaultMaxPacketSize = 2 << 20
	// minMaxPacketSize leaves room for what a broker says to any client.
	minMaxPacketSize = 1 << 10
	// maxMaxPacketSize is the size of the largest packet there can be [MQTT-2.1.4].
	maxMaxPacketSize = 1<<28 - 1 + 5
)

// Dial connects to the MQTT 5 broker at address, and returns when requests can be sent.
// From then on the client reconnects by itself until Close. An address is one of
//
//	mqtt://host:1883   TCP; tcp is another name of it
//	mqtts://host:8883  TLS over TCP; tls and ssl are other names of it
//	ws://host/path     WebSocket; port 80 if none is given
//	wss://host/path    WebSocket over TLS; port 443 if none is given
//
// or several, with commas between them. Each attempt to connect, and so the first after a
// loss, goes to the one after that of the last, in a circle; where nobody answers, it takes
// up to ten seconds. All must lead to the same state store: each of two stores would grant
// the same lease.
//
// ctx bounds the first connection only. If it ends first, the error tells why the last
// attempt failed. Dial fails at once where an option makes no sense or a file cannot be
// read, and, with a *ConnectError, when every broker in turn has refused the
// credentials, the client id or the protocol version.
//
// After the first connection no refusal ends the client: it goes on trying, with pauses of
// up to ReconnectMax, since a refusal of what was taken before passes. Requests that wait
// meanwhile fail, when their context ends, with an error that matches ErrNotSent and holds
// the *ConnectError of the last attempt; Client.Connection and OnConnectionChange show it
// too. Only Close ends the client then, and another that takes over its client id
// (ErrSessionTakenOver).
func Dial(ctx context.Context, address string, options Options) (*Client, error) {
	conn, err := newConn(address, &options)
	if err != nil {
		return nil, err
	}
	client, err := NewClient(conn, options.ClientOptions)
	if err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	if err := conn.awaitFirst(ctx); err != nil {
		return nil, fmt.Errorf("transport: dial %s: %w", address, errors.Join(err, client.Close()))
	}
	return client, nil
}

func init() {
	testhook.NewConn = func(address string, options Options) (Conn, error) { return newConn(address, &options) }
}

// newConn returns a connection that does nothing until Start. The error says what is wrong
// with the address or an option; defaults are filled in.
func newConn(address string, options *Options) (*mqttConn, error) {
	servers, err := mqttnet.ParseAddresses(address)
	if err != nil {
		return nil, fmt.Errorf("transport: %w", err)
	}
	if err := options.complete(); err != nil {
		return nil, err
	}
	if err := options.checkCredentials(servers); err != nil {
		return nil, err
	}
	options.warnOfPlainText(servers)
	return newMQTTConn(servers, *options), nil
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
	if bad := badClientID(o.ClientID); bad != "" {
		return fmt.Errorf("transport: Options.ClientID %q %s", o.ClientID, bad)
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
	if o.MaxPacketSize == 0 {
		o.MaxPacketSize = defaultMaxPacketSize
	}
	if o.MaxPacketSize < minMaxPacketSize || o.MaxPacketSize > maxMaxPacketSize {
		return fmt.Errorf("transport: Options.MaxPacketSize %d is not from %d to %d; 0 means %d", o.MaxPacketSize, minMaxPacketSize, maxMaxPacketSize, defaultMaxPacketSize)
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	return nil
}

// badClientID says what is wrong with a client id, if anything is.
func badClientID(id string) string {
	if strings.ContainsAny(id, "/+#") || strings.ContainsFunc(id, isControl) {
		return "holds a character that topics give a meaning to: one of / + # or a control character"
	}
	return ""
}

func isControl(r rune) bool { return r < 0x20 || r >= 0x7f && r < 0xa0 }
