package command

import (
	"bufio"
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/tenurelock/tenure/contrib/tenurews"
	"github.com/tenurelock/tenure/internal/mqtt"
	"github.com/tenurelock/tenure/internal/optionerror"
	"github.com/tenurelock/tenure/transport"
)

const (
	defaultBroker  = "mqtt://localhost:1883"
	defaultTimeout = 10 * time.Second
	// maxValue is the largest packet that a command takes from a broker, in bytes. Servers allow less.
	maxValue = 64 << 20
	// timeLayout is RFC 3339 with milliseconds.
	timeLayout = "2006-01-02T15:04:05.000Z07:00"
)

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
	flags.StringVar(&c.broker, "broker", defaultBroker, "address of the broker (mqtt, mqtts, ws or wss), or several with "+
		"commas; without it the variables of Azure IoT Operations count (AIO_BROKER_HOSTNAME)")
	flags.StringVar(&c.clientID, "client-id", "", "MQTT client id, for one process at a time; default: a random one")
	c.credentials.register(flags)
	flags.DurationVar(&c.timeout, "timeout", defaultTimeout, "how long to wait for the broker, and then for each answer")
}

// options returns what the flags and the environment say, for transport.Dial.
func (c *connection) options(logger *slog.Logger) (address string, options transport.Options, err error) {
	address = c.broker
	if !c.flags.Changed("broker") && os.Getenv("AIO_BROKER_HOSTNAME") != "" {
		// A broker ends the older of two connections with one id, and the workload of this pod has that id.
		address, options, err = transport.FromEnv(fmt.Sprintf("-tenure-%08x", rand.Uint32()))
		if err != nil {
			return "", options, Usage(err)
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
	options.Logger = logger
	options.Trace = &transport.Trace{Request: func(ctx context.Context, info transport.RequestInfo) { // as the store does
		logger.DebugContext(ctx, "request", "verb", info.Verb, "key", fmt.Sprintf("%.256s", info.Key),
			"outcome", transport.OutcomeText(info.Err), "took", info.Duration, "error", info.Err)
	}}
	return address, options, nil
}

// dial connects to the broker within --timeout. It waits for one to start if waits is set, and fails at once
// otherwise if nothing listens at any address.
func (c *connection) dial(
	ctx context.Context, address string, options transport.Options, waits bool,
) (*transport.Client, error) {
	dialing, cancel := within(ctx, "timeout", c.timeout)
	defer cancel()
	dialing, giveUp := context.WithCancelCause(dialing)
	defer giveUp(nil)
	if !waits {
		missing := 0 // addresses without a server, one after the other
		options.Trace.ConnectFailed = func(failed transport.ConnectionStatus) {
			if missing++; !mqtt.IsNoServer(failed.Err) {
				missing = 0
			}
			if missing > strings.Count(address, ",") {
				giveUp(exitWith(exitUnreachable, errors.New("there is no server at any address")))
			}
		}
	}
	client, err := transport.Dial(dialing, address, options)
	if err == nil || dialing.Err() != nil || errors.As(err, new(*transport.ConnectionError)) {
		return client, err // the text has the latest refusal
	}
	// Before the first attempt. An option has a flag of its own.
	if !errors.As(err, new(*optionerror.Error)) {
		err = fmt.Errorf("--broker: %s", strings.TrimPrefix(err.Error(), "transport: "))
	}
	return nil, Usage(err)
}

// A clientRun is what a command does when it is connected. Each request has the time of --timeout.
type clientRun func(cmd *cobra.Command, client *transport.Client, arguments []string) error

// clientCommand returns cmd as a command that connects, and then calls run.
func clientCommand(cmd *cobra.Command, c *connection, run clientRun) *cobra.Command {
	c.register(cmd.Flags())
	cmd.Args = Arguments
	cmd.RunE = func(cmd *cobra.Command, arguments []string) error {
		logger, _, stop := startLog(cmd, slog.LevelWarn)
		defer stop()
		address, options, err := c.options(logger)
		if err != nil {
			return err
		}
		options.MaxPacketSize = maxValue
		client, err := c.dial(cmd.Context(), address, options, false)
		if err != nil {
			return err
		}
		defer client.Close() // the answer is there; a DISCONNECT that fails changes nothing
		return run(cmd, client, arguments)
	}
	return cmd
}

// credentials are the flags of a client of a broker: how the two know each other.
type credentials struct {
	username, passwordFile, ca string
	certificate                certificateFlags
}

func (c *credentials) register(flags *pflag.FlagSet) {
	flags.StringVar(&c.username, "username", "", "user name at the broker")
	flags.StringVar(&c.passwordFile, "password-file", "", "file with the password for the broker, without a last newline")
	flags.StringVar(&c.ca, "tls-ca", "", "file with the authorities to trust, in PEM; default: the system's")
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

// read reads the files. The error names the flag.
func (f *certificateFlags) read() (*tls.Certificate, error) {
	if f.certificate == "" || f.key == "" {
		return nil, errors.New("a certificate needs both --tls-cert and --tls-key")
	}
	pair, err := mqtt.ReadCertificate(f.certificate, f.key)
	return &pair, explain(err)
}

// ClientTLS returns the configuration for connections to a server. ca is the file with the
// authorities to trust, and caFlag the flag that gives it, which begins the error; an empty ca means
// the authorities of the system. read reads the certificate to show; nil means none. It is called now, so
// that its errors come at the start, and for each connection, because certificates are replaced
// before they expire. ClientTLS returns nil if there is neither ca nor read.
func ClientTLS(caFlag, ca string, read func() (*tls.Certificate, error)) (config *tls.Config, err error) {
	if ca == "" && read == nil {
		return nil, nil
	}
	config = &tls.Config{MinVersion: tls.VersionTLS12}
	if ca != "" {
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

// fromInput returns what read reads from standard input, or the cause of ctx when that ends. The goroutine
// that reads stays blocked then, because a read from a terminal cannot be cancelled; the process ends next.
func fromInput(ctx context.Context, read func() ([]byte, error)) ([]byte, error) {
	var content []byte
	var failed error
	reading, done := context.WithCancel(ctx)
	go func() {
		defer done()
		content, failed = read()
	}()
	<-reading.Done()
	switch {
	case ctx.Err() != nil:
		return nil, context.Cause(ctx)
	case failed != nil:
		return nil, fmt.Errorf("standard input: %w", failed)
	}
	return content, nil
}

// readLine reads the first line of standard input, without its line break.
func readLine(cmd *cobra.Command) ([]byte, error) {
	return fromInput(cmd.Context(), func() ([]byte, error) {
		lines := bufio.NewScanner(cmd.InOrStdin())
		lines.Scan()
		return lines.Bytes(), lines.Err()
	})
}

// readValue returns the value that an argument names: itself, or standard input for "-".
func readValue(cmd *cobra.Command, argument string) ([]byte, error) {
	if argument != "-" {
		return []byte(argument), nil
	}
	return fromInput(cmd.Context(), func() ([]byte, error) { return io.ReadAll(cmd.InOrStdin()) })
}
