package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math"
	"os"
	"os/signal"
	"runtime"
	"runtime/debug"
	"sync"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/tenurelock/tenure/cmd/tenure/internal/logwriter"
	"github.com/tenurelock/tenure/cmd/tenure/internal/memory"
	"github.com/tenurelock/tenure/server"
	"github.com/tenurelock/tenure/server/access"
	"github.com/tenurelock/tenure/statestore"
)

// serveSettings are the flags of serve that are no options of the server as they are.
type serveSettings struct {
	server.Options
	dialect     string
	certificate certificateFiles
	auth        string
	attach      attachSettings
	verbose     bool
}

func serveCommand() *cobra.Command {
	var settings serveSettings
	serve := &cobra.Command{
		Use:   "serve",
		Short: "Run a broker with a state store inside, until interrupted",
		Long: `Run an MQTT 5 broker with a state store inside, until SIGINT or SIGTERM.

With --attach there is no broker inside: the store is a client of one that runs
already. Such a store does not know who asks, so users and rules are the
broker's; docs/attach.md says which it needs. It ends with an error when
another store answers on the same broker.

The store is in memory: after a restart it knows no key, no lease and no fence.
Tenures that it granted end as soon as their holders notice. --hold-off keeps a
store that has just started from granting leases until they must have noticed:
give it the longest TTL in use.

An address that other machines can reach needs TLS (--tls-cert, --tls-key) and
somebody who checks who connects: users and rules (--auth), or client
certificates (--client-ca), whose subject is then the user. --insecure does
without. A warning says so where other users of the machine may read the file
of --auth. On SIGHUP the users, the rules and the certificate are read again; if
one of the files is not good, what was read before stays in force. SIGHUP never
stops a server, nor does a terminal that is closed.

--max-memory derives limits for all that clients can make the server hold;
--verbose logs them at start, and what is used once a minute. A limit that is
given is taken as it is. Where messages are dropped for a limit, a warning names
its flag.

--strict closes holes that the protocol leaves open: the fence of a protected
key survives its deletion and expiry, a fencing token that was never issued is
refused, and keys under a --lock-prefix need an expiry and a value that begins
with the client id and a colon.`,
		Example: `  tenure serve
  tenure serve --addr 127.0.0.1:0          # any free port; the first line says which
  tenure serve --hold-off 10s              # the longest TTL of the leases in use
  tenure serve --max-keys 10000 --verbose
  tenure serve --max-memory 512MiB
  tenure serve --addr :8883 --tls-cert server.pem --tls-key server.key --auth users.yaml
  tenure serve --strict --lock-prefix locks/
  tenure serve --attach mqtt://localhost:1883
  tenure serve --attach mqtts://broker:8883 --attach-user store --attach-password-file secret`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return settings.run(cmd) },
	}
	flags := serve.Flags()
	flags.StringVar(&settings.Addr, "addr", server.DefaultAddr, "TCP address to listen on; port 0 takes a free one")
	flags.StringVar(&settings.certificate.certificate, "tls-cert", "", "file with the server's certificate and its chain, in PEM")
	flags.StringVar(&settings.certificate.key, "tls-key", "", "file with the key of the certificate, in PEM")
	flags.StringVar(&settings.certificate.clientCA, "client-ca", "", "file with the authorities whose client certificates are accepted, in PEM; without --auth every client needs one")
	flags.StringVar(&settings.auth, "auth", "", "file with users and rules, in YAML; \"tenure password\" makes the hashes for it")
	flags.BoolVar(&settings.AllowInsecure, "insecure", false, "let other machines reach the server without TLS or without authentication")
	flags.BoolVar(&settings.Store.Strict, "strict", false, "refuse what weakens fences, see above")
	flags.StringSliceVar(&settings.Store.LockPrefixes, "lock-prefix", nil, "beginning of the keys that are locks, with --strict; may be repeated")
	flags.DurationVar(&settings.Store.HoldOff, "hold-off", 0, "how long after its start the store grants no lease, so that leases of the store before it run out first; give it the longest TTL in use")
	byteSizeFlag(flags, &settings.MaxMemory, "max-memory", "how much memory the server should get by with, like 512MiB; the limits below that are not given follow from it; 0 means no limit")
	flags.IntVar(&settings.Store.MaxKeys, "max-keys", 0, "how many keys the store may hold; 0 means as --max-memory allows, or no limit")
	byteSizeFlag(flags, &settings.Store.MaxBytes, "max-bytes", "how many bytes keys and values may have together; 0 means as --max-memory allows, or no limit")
	flags.IntVar(&settings.Store.MaxValue, "max-value", 0, "how many bytes a value may have; 0 means no limit but that of packets")
	flags.IntVar(&settings.Store.MaxWatches, "max-watches", 10_000, "how many keys a client may watch")
	flags.IntVar(&settings.Store.Remembered, "remembered", statestore.DefaultRemembered, "how many requests of a client are remembered, so that none is applied twice; also how many it may send at once")
	flags.IntVar(&settings.MaxClients, "max-clients", 0, "how many clients may be connected or have a session that is kept; 0 means 10000, or fewer as --max-memory allows")
	limits := &settings.Limits
	byteSizeFlag(flags, &limits.OutgoingBytes, "max-outgoing-bytes", "how many bytes may wait to be written to one connection; 0 means 8MiB, or less as --max-memory allows")
	byteSizeFlag(flags, &limits.AllOutgoingBytes, "max-all-outgoing-bytes", "how many bytes may wait to be written to all connections; 0 means 256MiB, or less as --max-memory allows")
	byteSizeFlag(flags, &limits.SessionBytes, "max-session-bytes", "how many bytes of QoS 1 messages may wait for one client, connected or not; 0 means 4MiB, or less as --max-memory allows")
	flags.IntVar(&limits.SessionMessages, "max-session-messages", 0, "how many QoS 1 messages may wait for one client; 0 means 10000")
	byteSizeFlag(flags, &limits.AllSessionBytes, "max-all-session-bytes", "how many bytes of QoS 1 messages may wait for all clients; 0 means 256MiB, or less as --max-memory allows")
	flags.IntVar(&limits.SessionsPerUser, "max-sessions-per-user", 0, "how many sessions are kept for clients of one user that are not connected; 0 means 100")
	flags.IntVar(&limits.Subscriptions, "max-subscriptions", 0, "how many subscriptions a client may have; 0 means 1000")
	flags.BoolVar(&settings.Retain, "retain", false, "allow retained messages")
	flags.IntVar(&limits.RetainedMessages, "max-retained", 0, "how many messages may be retained, with --retain; 0 means 10000")
	byteSizeFlag(flags, &limits.RetainedBytes, "max-retained-bytes", "how many bytes they may have; 0 means 64MiB, or less as --max-memory allows")
	flags.IntVar(&settings.PasswordChecks, "password-checks", 0, "how many passwords are compared at once; others wait, in turns by address; 0 means half of the processors")
	flags.IntVar(&settings.MaxUnauthenticated, "max-unauthenticated", 256, "how many connections may be open that have not authenticated; the oldest is closed for a new one; each has 5s")
	flags.IntVar(&settings.MaxUnauthenticatedPerAddress, "max-unauthenticated-per-address", 0, "the same for one remote address; 0 means 64, and no limit of its own for this machine")
	flags.Uint32Var(&settings.MaxPacketSize, "max-packet-size", 1<<20, "largest MQTT packet in bytes")
	flags.StringVar(&settings.dialect, "dialect", "deployed", "how to write replies where deployed stores and their documentation differ: deployed or documented")
	flags.StringVar(&settings.attach.broker, "attach", "", "URL of a broker to serve instead of running one, mqtt://host:1883 or mqtts://host:8883")
	flags.StringVar(&settings.attach.user, "attach-user", "", "user name at that broker")
	flags.StringVar(&settings.attach.passwordFile, "attach-password-file", "", "file with the password for that broker; a line end at its end is not part of it")
	flags.StringVar(&settings.attach.ca, "attach-ca", "", "file with the authorities whose certificates that broker may show, in PEM; default: the system's")
	flags.StringVar(&settings.attach.certificate, "attach-cert", "", "file with a certificate to show that broker, in PEM; read for each connection")
	flags.StringVar(&settings.attach.key, "attach-key", "", "file with the key of that certificate, in PEM")
	flags.IntVar(&settings.attach.probe, "attach-probe", 5000, "how many messages the store sends to itself at its start, to warn of a broker that loses requests when so many clients send at once; 0 means none")
	flags.BoolVar(&settings.verbose, "verbose", false, "log every request and connection")
	return serve
}

const (
	// logRoom is how many bytes of the log may wait for the program that reads it.
	logRoom = 1 << 20
	// lastWords bounds how long the end waits for the log to be read.
	lastWords = time.Second
)

func (s *serveSettings) run(cmd *cobra.Command) error {
	// A reader of the log that stops must not stop the store.
	for _, stream := range []struct {
		writer io.Writer
		set    func(io.Writer)
	}{{cmd.OutOrStdout(), cmd.SetOut}, {cmd.ErrOrStderr(), cmd.SetErr}} {
		writer := logwriter.New(stream.writer, logRoom)
		defer writer.Close(lastWords)
		stream.set(writer)
	}
	switch s.dialect {
	case "deployed":
		s.Dialect = statestore.Deployed
	case "documented":
		s.Dialect = statestore.Documented
	default:
		return fmt.Errorf("--dialect %q: choose deployed or documented", s.dialect)
	}
	level := slog.LevelWarn
	if s.verbose {
		level = slog.LevelDebug
	}
	s.Logger = slog.New(slog.NewTextHandler(cmd.ErrOrStderr(), &slog.HandlerOptions{Level: level}))
	if err := s.attach.check(cmd.Flags().Changed); err != nil {
		return err
	}
	if s.Store.HoldOff < 0 {
		return fmt.Errorf("--hold-off %v is negative; 0 means none", s.Store.HoldOff)
	}
	hangups := catchHangups()
	defer signal.Stop(hangups)
	if s.attach.broker != "" {
		return s.runAttached(cmd, hangups)
	}
	if err := s.checkRetained(cmd.Flags().Changed); err != nil {
		return err
	}
	reloads, err := s.readFiles()
	if err != nil {
		return err
	}
	listening, err := server.New(s.Options)
	switch {
	case errors.Is(err, syscall.EADDRINUSE):
		return fmt.Errorf("%w; choose another with --addr, or stop the program that has it", err)
	case errors.Is(err, server.ErrInsecure):
		return fmt.Errorf("%w; give --tls-cert and --tls-key with --auth or --client-ca, or say --insecure", err)
	case err != nil:
		return err
	}
	scheme := "mqtt"
	if s.TLS != nil {
		scheme = "mqtts"
	}
	fmt.Fprintf(cmd.OutOrStdout(), "listening on %s://%s\n", scheme, listening.Addr())
	s.warnOfMemory()
	ctx, stop := context.WithCancel(cmd.Context())
	var tasks sync.WaitGroup
	tasks.Go(func() { s.reloadOnSignal(ctx, hangups, reloads) })
	tasks.Go(func() { reportUsage(ctx, s.Logger, listening.Usage) })
	tasks.Go(func() { memory.Release(ctx, func() int64 { return heldBy(listening.Usage()) }) })
	if s.MaxMemory > 0 && os.Getenv("GOMEMLIMIT") == "" {
		// The collector works harder before that is used up. It needs room besides what is in
		// use, or it would take half of all processor time for good.
		debug.SetMemoryLimit(s.MaxMemory + min(s.MaxMemory/4, math.MaxInt64-s.MaxMemory))
	}
	err = listening.Serve(ctx)
	stop()
	tasks.Wait()
	if err != nil {
		return err
	}
	fmt.Fprintln(cmd.OutOrStdout(), "stopped")
	return nil
}

// checkRetained refuses limits of retained messages where there are none.
func (s *serveSettings) checkRetained(changed func(name string) bool) error {
	for _, name := range []string{"max-retained", "max-retained-bytes"} {
		if changed(name) && !s.Retain {
			return fmt.Errorf("--%s is about retained messages; give --retain too", name)
		}
	}
	return nil
}

// warnOfMemory says at start what a store in memory does not promise.
func (s *serveSettings) warnOfMemory() {
	if s.Store.HoldOff > 0 {
		s.Logger.Warn("the store is in memory: a restart forgets every key, lease and fence; it grants no lease during the hold-off",
			"hold-off", s.Store.HoldOff)
		return
	}
	s.Logger.Warn("the store is in memory: a restart forgets every key, lease and fence, and may then grant a lease " +
		"whose old holder has not noticed yet; --hold-off with the longest TTL in use prevents that")
}

// A reload reads a file again. On an error what was read before stays in force.
type reload struct {
	name string
	read func() error
}

// readFiles reads what the flags name, and returns how to read it again.
func (s *serveSettings) readFiles() ([]reload, error) {
	var reloads []reload
	if s.auth != "" {
		file, err := access.Open(s.auth)
		if err != nil {
			return nil, fmt.Errorf("--auth: %w", err)
		}
		s.Authenticator, s.Authorizer = file, file
		s.warnOfReaders()
		reloads = append(reloads, reload{"--auth", func() error {
			s.warnOfReaders()
			return file.Reload()
		}})
	}
	if s.certificate == (certificateFiles{}) {
		return reloads, nil
	}
	pair, err := s.certificate.open()
	if err != nil {
		return nil, err
	}
	s.TLS = pair.config(s.auth == "")
	return append(reloads, reload{"--tls-cert", pair.reload}), nil
}

// warnOfReaders warns when other users of the machine may read the file of --auth, whose
// hashes they could try to guess the passwords of, or change it. Windows has no mode bits
// that say so.
func (s *serveSettings) warnOfReaders() {
	info, err := os.Stat(s.auth)
	if err != nil || runtime.GOOS == "windows" || info.Mode().Perm()&0o066 == 0 {
		return // a file that is missing is an error elsewhere
	}
	s.Logger.Warn("the group or all users of this machine may read or change the file with users and password hashes; chmod 600 prevents that",
		"flag", "--auth", "file", s.auth, "mode", fmt.Sprintf("%04o", info.Mode().Perm()))
}

// catchHangups keeps the process alive when its terminal is closed, and returns where each
// SIGHUP then goes. The reader of the log may be gone too: SIGPIPE is ignored, so that a
// line which cannot be written is lost and does not end the process.
func catchHangups() chan os.Signal {
	signal.Ignore(syscall.SIGPIPE)
	hangups := make(chan os.Signal, 1)
	signal.Notify(hangups, syscall.SIGHUP)
	return hangups
}

// reloadOnSignal reads the files again on SIGHUP, until ctx ends.
func (s *serveSettings) reloadOnSignal(ctx context.Context, hangups <-chan os.Signal, reloads []reload) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-hangups:
		}
		if len(reloads) == 0 {
			s.Logger.Warn("SIGHUP: there is nothing to read again; SIGINT or SIGTERM stops this process")
		}
		for _, r := range reloads {
			if err := r.read(); err != nil {
				s.Logger.Error("what was read before stays in force", "flag", r.name, "error", err)
				continue
			}
			s.Logger.Warn("read again", "flag", r.name)
		}
	}
}
