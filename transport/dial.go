package transport

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"net"
	"net/url"
	"os"
	"strings"
	"time"
	"unicode"

	"github.com/tenurelock/tenure/internal/mqtt"
	"github.com/tenurelock/tenure/internal/optionerror"
	"github.com/tenurelock/tenure/internal/protocol"
	"github.com/tenurelock/tenure/internal/random"
)

// Options configures Dial. The zero value connects under a random client id.
type Options struct {
	// ClientID is the MQTT client id. The store knows the client by it, and by default it
	// is the holder's name in leases. It must be unique on the broker. It must not contain
	// "/", "+", "#" or control characters, because topics contain it. Default: the host
	// name and a random number.
	ClientID string
	// KeepAlive is how often an idle connection is checked, in whole seconds. The client
	// notices a half-open connection after one to two keep-alives, or as soon as a request
	// of a lease times out (see Client.Probe). Default 5 s.
	KeepAlive time.Duration
	// ReconnectMin and ReconnectMax bound the exponential backoff between attempts to
	// connect. With several addresses the pauses are 250 ms at most, on average, in the first 5 s
	// after a loss, because one server may soon take the place of another. Default 50 ms and 2 s.
	ReconnectMin, ReconnectMax time.Duration
	// Username and Password authenticate the client. Empty: not sent.
	Username string
	Password []byte
	// PasswordFile holds the password, in place of Password. A newline at its end is not
	// part of the password. The client reads it for each connection, so it may be
	// replaced.
	PasswordFile string
	// TokenFile holds the token of a Kubernetes service account, for MQTT's enhanced
	// authentication with the method K8S-SAT, in place of a username and a password. The
	// client reads it for each connection, and authenticates again when the file changes
	// during a connection. Use it, like a password, with encrypted addresses only: for
	// others, Logger gets a warning.
	TokenFile string
	// TLS configures the encryption for addresses that begin with mqtts or wss.
	TLS TLSOptions

	// MaxPacketSize bounds each MQTT packet from the broker in bytes, and with it the values
	// that this client can read: from 1 KiB to 256 MiB. The client announces it: a store
	// answers a Get of a larger value with an error, and sends no notification of it. If a
	// larger packet arrives nevertheless, the client allocates no memory for it and ends the
	// connection, with an error that matches ErrPacketTooLarge. So does a packet of more than
	// 64 KiB that is no message, such as a CONNACK. Default 2 MiB, twice the limit of our server
	// for packets from a client.
	MaxPacketSize int

	// Dialer opens the connection to address, the host and port of a broker; network is
	// "tcp". TLS and WebSocket are added to the connection that it returns. It decides
	// what the address means: it may connect through a proxy, to a Unix socket or to a
	// broker in the same process. It must return when ctx ends, and its error is in the
	// error of Dial. It is called for one attempt at a time, from a goroutine of the
	// client. Default: the zero net.Dialer.
	Dialer func(ctx context.Context, network, address string) (net.Conn, error)
	// WebSocket performs the handshake of a WebSocket over conn, a connection to server that is
	// encrypted already where the address begins with wss, and returns the stream of MQTT inside.
	// It must return when ctx ends. It is called like Dialer, and its errors are treated like those
	// of Dialer; after one the client closes conn. Addresses that begin with ws or wss need it: set
	// it to Upgrade of the module contrib/tenurews. Default: none.
	WebSocket func(ctx context.Context, conn net.Conn, server *url.URL) (net.Conn, error)

	// ClientOptions configures the Client on top of the connection.
	ClientOptions
}

const (
	defaultKeepAlive    = 5 * time.Second
	defaultReconnectMin = 50 * time.Millisecond
	defaultReconnectMax = 2 * time.Second

	defaultMaxPacketSize = 2 << 20
	// minMaxPacketSize leaves space for the packets that a broker sends to any client.
	minMaxPacketSize = 1 << 10
	// maxMaxPacketSize is the size of the largest packet there can be [MQTT-2.1.4].
	maxMaxPacketSize = 1<<28 - 1 + 5
)

// Dial connects to the MQTT 5 broker at address, and returns when requests can be sent.
// From then on the client reconnects by itself until Close. An address is one of
//
//	mqtt://host:1883   TCP; tcp is another name of it
//	mqtts://host:8883  TLS over TCP; tls and ssl are other names of it
//	ws://host/path     WebSocket, with Options.WebSocket; port 80 if none is given
//	wss://host/path    WebSocket over TLS, likewise; port 443 if none is given
//
// or several, separated by commas. Each attempt to connect goes to the address after the
// latest one, in a circle. An attempt without an answer takes ten seconds; where there are
// several addresses, one second at first, and more if the server stays silent. Meanwhile the addresses that
// answer are asked more often. All addresses must
// lead to the same state store: two stores would grant the same lease twice.
//
// A broker may send its clients to another server, as a standby of our server does
// (ErrUseAnotherServer). The client then goes on at once to its next address. After each address has done so, it
// pauses. It never connects to an address that is not in the list.
//
// ctx bounds the first connection only. If it ends first, the error begins with why the last attempt failed, in one
// line with a hint. Until there is a connection, attempts that fail are logged at level Warn: the first, and then
// less and less often. They go to slog.Default if Options.Logger is nil, because a program that waits in Dial would
// seem to hang. Dial fails at once if an option makes no sense or a file cannot be read, and, with a
// [*ConnectionError], after each broker in turn has refused the credentials, the client id or the protocol version,
// except for those that send clients to another server.
//
// After the first connection only Close ends the client, or another client that takes over its
// client id (ErrSessionTakenOver). An own attempt that got no answer, and that a slow server handles
// within the next five minutes, counts as a loss. After a refusal it goes on trying, with pauses of up to
// ReconnectMax. Requests that wait meanwhile fail, when their context ends, with an error that
// matches ErrNotSent and wraps the *ConnectionError of the last attempt; [Client.Connection] shows
// it too, and a [Trace] hears of it.
func Dial(ctx context.Context, address string, options Options) (*Client, error) {
	conn, err := newConn(ctx, address, &options)
	if err != nil {
		return nil, err
	}
	client, err := NewClient(conn, options.ClientOptions)
	if err != nil {
		return nil, err
	}
	if err := conn.awaitFirst(ctx); err != nil {
		return nil, fmt.Errorf("transport: dial %s: %w", address, errors.Join(err, client.Close()))
	}
	return client, nil
}

// newConn returns a connection that does nothing until Start. The error says what is wrong
// with the address or an option; defaults are filled in.
func newConn(ctx context.Context, address string, options *Options) (*mqttConn, error) {
	servers, err := mqtt.ParseAddresses(address)
	if err != nil {
		return nil, fmt.Errorf("transport: %w", err)
	}
	if err := options.complete(); err != nil {
		return nil, err
	}
	if err := options.checkCredentials(servers); err != nil {
		return nil, err
	}
	return newMQTTConn(ctx, servers, *options), nil
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
	if strings.ContainsAny(o.ClientID, "/+#") || strings.ContainsFunc(o.ClientID, unicode.IsControl) {
		return optionError("ClientID", o.ClientID,
			"contains a character with a meaning in topics: one of / + # or a control character")
	}
	if !protocol.CanNotify(o.ClientID, "+") { // paho v0.23.0 would cut the topic filter off
		return optionError("ClientID", o.ClientID, "is too long for the topic of its notifications")
	}
	o.KeepAlive = cmp.Or(o.KeepAlive, defaultKeepAlive)
	if o.KeepAlive < time.Second || o.KeepAlive%time.Second != 0 || o.KeepAlive > math.MaxUint16*time.Second {
		return optionError("KeepAlive", o.KeepAlive,
			fmt.Sprintf("is not a whole number of seconds from 1 to %d", math.MaxUint16))
	}
	o.ReconnectMin = cmp.Or(o.ReconnectMin, defaultReconnectMin)
	o.ReconnectMax = cmp.Or(o.ReconnectMax, max(defaultReconnectMax, o.ReconnectMin))
	if o.ReconnectMin < 0 || o.ReconnectMax < o.ReconnectMin {
		return optionError("ReconnectMin", o.ReconnectMin,
			fmt.Sprintf("and ReconnectMax %v must be positive and in this order", o.ReconnectMax))
	}
	o.MaxPacketSize = cmp.Or(o.MaxPacketSize, defaultMaxPacketSize)
	if o.MaxPacketSize < minMaxPacketSize || o.MaxPacketSize > maxMaxPacketSize {
		return optionError("MaxPacketSize", o.MaxPacketSize,
			fmt.Sprintf("is not from %d to %d; 0 means %d", minMaxPacketSize, maxMaxPacketSize, defaultMaxPacketSize))
	}
	o.program = new(dispatcher)
	return nil
}

func optionError(field string, value any, problem string) error {
	return fmt.Errorf("transport: %w", &optionerror.Error{Package: "transport", Field: field, Value: value,
		Problem: problem})
}

// pauses are the times that a client waits between attempts to connect.
//
// With several addresses, a server that stands by may take the place of the lost one after about a
// second. So the client asks often at first. That costs each server that stands by up to four TLS
// handshakes a second for each client, for soonFor at most: some 4,000 a second with 1,000 clients. How
// many are under way at once has a limit there (server.Options.MaxUnauthenticated). A server that was
// elected and loads has none of this: connections wait for it in the queue of its socket.
type pauses struct {
	least, most time.Duration
	soonUntil   time.Time     // until then soonMax bounds the average of a pause
	average     time.Duration // of the latest pause
}

const (
	// soonFor is how long after a loss a client with several addresses makes pauses of soonMax at
	// most, on average.
	soonFor = 5 * time.Second
	soonMax = 250 * time.Millisecond
)

func newPauses(options *Options, servers int) pauses {
	p := pauses{least: options.ReconnectMin, most: options.ReconnectMax}
	if servers > 1 {
		p.soonUntil = time.Now().Add(soonFor)
	}
	return p
}

// next returns how long to wait now.
func (p *pauses) next() time.Duration {
	most := p.most
	if time.Now().Before(p.soonUntil) {
		most = min(soonMax, most)
	}
	p.average = max(min(p.average*3/2, most), p.least)
	return p.average/2 + random.Duration(p.average)
}

// TLSOptions configures the encryption for addresses that begin with mqtts or wss. The zero
// value trusts the authorities of the operating system and presents no certificate.
//
// The files are in PEM. The client reads them again for each connection, so a replaced file
// is in use from the next connection on. Replace a certificate and its key at the same
// moment, for example with a directory behind a symbolic link: while they do not match,
// attempts to connect fail, and the client repeats them.
type TLSOptions struct {
	// CAFile holds the certificates of the authorities to trust, instead of the
	// certificates of the operating system.
	CAFile string
	// CertFile holds the certificate that the client presents, followed by the intermediate
	// ones, and KeyFile its private key, which must not be encrypted. Set both or neither. A program that
	// decrypts a key sets Config.
	CertFile, KeyFile string
	// Config is the base, for settings that have no field here; the fields above replace
	// the corresponding ones. Its ServerName is the name that the broker's certificate must
	// contain; empty means the host of the address. It must not be changed afterwards. If its CipherSuites is
	// nil, TLS 1.2 is limited to suites with ECDHE and AEAD. Default: the zero value.
	Config *tls.Config
}
