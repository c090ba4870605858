package command

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/tenurelock/tenure/contrib/tenurews"
	"github.com/tenurelock/tenure/internal/mqtt"
	"github.com/tenurelock/tenure/transport"
)

const (
	defaultBroker  = "mqtt://localhost:1883"
	defaultTimeout = 10 * time.Second
)

// connectionHelp is for the help of commands that are clients.
const connectionHelp = `Where nothing gives --broker, and AIO_BROKER_HOSTNAME is set, the variables of
Azure IoT Operations (AIO_...) count; other flags of the connection go before them.`

// connection is the flags of commands that are clients of a store.
type connection struct {
	credentials
	broker, clientID string
	timeout          time.Duration
	flags            *pflag.FlagSet
}

// register adds the flags.
func (c *connection) register(flags *pflag.FlagSet) {
	c.flags = flags
	flags.StringVar(&c.broker, "broker", defaultBroker, "address of the broker, or several with commas between them: mqtt, mqtts, ws or wss")
	flags.StringVar(&c.clientID, "client-id", "", "MQTT client id, which one process at a time may use; default: the host name and a random number")
	c.credentials.register(flags)
	flags.DurationVar(&c.timeout, "timeout", defaultTimeout, "how long to wait for the broker, and then for each answer of the store")
}

// options returns what the flags and the environment say, for transport.Dial.
func (c *connection) options(p *process) (address string, options transport.Options, err error) {
	if c.timeout <= 0 {
		return "", options, usage(fmt.Errorf("--timeout %v is not positive", c.timeout))
	}
	address = c.broker
	if !c.flags.Changed("broker") && os.Getenv("AIO_BROKER_HOSTNAME") != "" {
		if address, options, err = transport.FromEnv(""); err != nil {
			return "", options, usage(err)
		}
		if options.ClientID != "" {
			// A broker ends the older of two connections with one id, and the workload of this
			// pod has that id.
			options.ClientID += fmt.Sprintf("-tenure-%08x", rand.Uint32())
		}
	}
	options.ClientID = cmp.Or(c.clientID, options.ClientID)
	if c.username != "" || c.passwordFile != "" {
		options.Username, options.PasswordFile, options.TokenFile = c.username, c.passwordFile, ""
	}
	options.TLS.CAFile = cmp.Or(c.ca, options.TLS.CAFile)
	if c.certificate.given() {
		options.TLS.CertFile, options.TLS.KeyFile = c.certificate.certificate, c.certificate.key
	}
	options.WebSocket = tenurews.Upgrade
	options.RequestTimeout = c.timeout
	options.Logger = p.logger
	if p.logger.Enabled(context.Background(), slog.LevelDebug) {
		options.Trace = &transport.Trace{Request: logRequest(p.logger)}
	}
	return address, options, nil
}

// logRequest returns a hook that logs each request, as the store does.
func logRequest(logger *slog.Logger) func(context.Context, transport.RequestInfo) {
	return func(ctx context.Context, info transport.RequestInfo) {
		attributes := []any{"verb", info.Verb, "key", fmt.Sprintf("%.256s", info.Key), "outcome", transport.OutcomeText(info.Err), "took", info.Duration}
		if info.Err != nil {
			attributes = append(attributes, "error", info.Err)
		}
		logger.DebugContext(ctx, "request", attributes...)
	}
}

// dial connects to the broker within --timeout. It waits for one to start if waits is set, and fails at once
// otherwise if nothing listens at any address.
func (c *connection) dial(ctx context.Context, address string, options transport.Options, waits bool) (*transport.Client, error) {
	dialing, cancel := context.WithTimeoutCause(ctx, c.timeout, fmt.Errorf("gave up after --timeout %v", c.timeout))
	defer cancel()
	dialing, giveUp := context.WithCancelCause(dialing)
	defer giveUp(nil)
	if !waits {
		options.Trace = withoutServer(address, options.Trace, func() { giveUp(errors.New("there is no server at any address")) })
	}
	client, err := transport.Dial(dialing, address, options)
	var refused *transport.ConnectionError
	switch {
	case err == nil:
		return client, nil
	case ctx.Err() != nil:
		return nil, signalCause(ctx, err)
	case dialing.Err() != nil && exitCode(err) == exitFailure:
		return nil, exitWith(exitUnreachable, err)
	case dialing.Err() != nil, errors.As(err, &refused):
		return nil, err // the text has the latest refusal
	}
	// Before the first attempt. An option has a flag of its own.
	if option := (*transport.OptionError)(nil); !errors.As(err, &option) {
		err = fmt.Errorf("--broker: %s", strings.TrimPrefix(err.Error(), "transport: "))
	}
	return nil, usage(err)
}

// withoutServer returns trace with a call of giveUp when nothing listens at any address.
func withoutServer(address string, trace *transport.Trace, giveUp func()) *transport.Trace {
	servers, _ := mqtt.ParseAddresses(address) // Dial reports an error
	missing := make(map[string]bool)
	traced := *cmp.Or(trace, &transport.Trace{})
	traced.ConnectFailed = func(failed transport.ConnectionStatus) {
		missing[failed.Broker] = mqtt.IsNoServer(failed.Err)
		if len(missing) == len(servers) && !slices.Contains(slices.Collect(maps.Values(missing)), false) {
			giveUp()
		}
	}
	return &traced
}

// with connects, and calls do with the client. Each request has the time of --timeout. The client
// is closed when do has returned.
func (c *connection) with(cmd *cobra.Command, do func(ctx context.Context, client *transport.Client) error) error {
	process, stop := startClient(cmd, slog.LevelWarn)
	defer stop()
	address, options, err := c.options(process)
	if err != nil {
		return err
	}
	options.MaxPacketSize = maxValue
	ctx := cmd.Context()
	client, err := c.dial(ctx, address, options, false)
	if err != nil {
		return err
	}
	err = c.explainSilence(do(ctx, client), client.ClientID())
	_ = client.Close() // the answer is there; a DISCONNECT that fails changes nothing
	if err != nil && ctx.Err() != nil {
		return signalCause(ctx, err)
	}
	return err
}

// explainSilence adds to an error without an answer that the broker may have given this client another
// id: replies go to a topic with the id, so the broker, which knows the client by its user name, drops
// them without a word.
func (c *connection) explainSilence(err error, clientID string) error {
	isSilence := errors.Is(err, transport.ErrNoStore) || errors.Is(err, transport.ErrOutcomeUnknown) || errors.Is(err, context.DeadlineExceeded)
	if !isSilence || c.username == "" || c.username == clientID {
		return err
	}
	return fmt.Errorf("%w; if the broker makes the user name the client id (mosquitto: use_username_as_clientid), give --client-id %s, but not while another process has it", err, c.username)
}

// timeLayout is RFC 3339 with milliseconds.
const timeLayout = "2006-01-02T15:04:05.000Z07:00"

// credentials are the flags of a client of a broker: how the two know each other.
type credentials struct {
	username, passwordFile, ca string
	certificate                certificateFlags
}

func (c *credentials) register(flags *pflag.FlagSet) {
	flags.StringVar(&c.username, "username", "", "user name at the broker")
	flags.StringVar(&c.passwordFile, "password-file", "",
		"file with the password for the broker; a newline at its end is not part of it")
	flags.StringVar(&c.ca, "tls-ca", "",
		"file with the authorities to trust for the broker's certificate, in PEM; default: the system's")
	c.certificate.register(flags, "file with the certificate to show the broker, in PEM")
}

// certificateFlags are the flags for a certificate to show: of serve to its clients, and of attach and of
// the commands that are clients to their broker.
type certificateFlags struct{ certificate, key string }

func (f *certificateFlags) register(flags *pflag.FlagSet, certificate string) {
	flags.StringVar(&f.certificate, "tls-cert", "", certificate)
	flags.StringVar(&f.key, "tls-key", "", "file with the key of the certificate, in PEM and not encrypted")
}

// given reports whether any of the flags is.
func (f *certificateFlags) given() bool { return *f != certificateFlags{} }

// check refuses one without the other.
func (f *certificateFlags) check() error {
	if f.certificate == "" || f.key == "" {
		return errors.New("a certificate needs both --tls-cert and --tls-key")
	}
	return nil
}

// read reads the files. The error names the flag.
func (f *certificateFlags) read() (*tls.Certificate, error) {
	if err := f.check(); err != nil {
		return nil, err
	}
	pair, err := mqtt.ReadCertificate(f.certificate, f.key)
	return &pair, nameFlag(err, nil)
}

// ClientTLS returns the configuration for connections to a server. ca is the file with the
// authorities to trust, and caFlag the flag that gives it, which begins the error; an empty ca means
// the authorities of the system. read reads the certificate to show; nil means none. It is called now, so
// that its errors come at the start, and for each connection, because certificates are replaced
// before they expire. ClientTLS returns nil if there is neither ca nor read.
func ClientTLS(caFlag, ca string, read func() (*tls.Certificate, error)) (*tls.Config, error) {
	if ca == "" && read == nil {
		return nil, nil
	}
	config := &tls.Config{MinVersion: tls.VersionTLS12}
	if ca != "" {
		var err error
		if config.RootCAs, err = mqtt.ReadCertPool(ca); err != nil {
			return nil, fmt.Errorf("%s: %w", caFlag, err)
		}
	}
	if read != nil {
		if _, err := read(); err != nil {
			return nil, err
		}
		config.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return read() }
	}
	return config, nil
}

// serverCertificate is a certificate that can be read again while connections use it.
type serverCertificate struct {
	flags   *certificateFlags
	current atomic.Pointer[tls.Certificate]
}

func (c *serverCertificate) reload() error {
	certificate, err := c.flags.read()
	if err == nil {
		c.current.Store(certificate)
	}
	return err
}

// config returns the TLS configuration of a server. clients are the authorities of client
// certificates; nil asks for none. A client needs a certificate if required is true, and
// may log in with a password instead if it is false.
func (c *serverCertificate) config(clients *x509.CertPool, required bool) *tls.Config {
	config := &tls.Config{
		MinVersion:     tls.VersionTLS12,
		GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return c.current.Load(), nil },
		ClientCAs:      clients,
	}
	switch {
	case clients == nil:
	case required:
		config.ClientAuth = tls.RequireAndVerifyClientCert
	default:
		config.ClientAuth = tls.VerifyClientCertIfGiven
	}
	return config
}
