package command

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"net"
	"os"
	"runtime"
	"runtime/debug"
	"sync"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/tenurelock/tenure/cmd/tenure/internal/admin"
	"github.com/tenurelock/tenure/cmd/tenure/internal/memory"
	"github.com/tenurelock/tenure/cmd/tenure/internal/settings"
	"github.com/tenurelock/tenure/internal/mqtt"
	"github.com/tenurelock/tenure/server"
	"github.com/tenurelock/tenure/server/access"
)

// serveSettings are the flags of serve. The fields Store and Logger of Options are set from store and
// from the process.
type serveSettings struct {
	server.Options
	store       storeFlags
	certificate certificateFlags
	clientCA    string
	auth        string
	advertise   string
	admin       adminFlags
	replication Replication // nil: there is none
}

// serveCommand returns the command serve, with replication unless that is nil.
func serveCommand(replication Replication) *cobra.Command {
	s := serveSettings{replication: replication}
	serve := &cobra.Command{
		Use:   "serve",
		Short: "Run an MQTT broker with a state store inside, until interrupted",
		Long: `Run an MQTT 5 broker with a state store inside, until SIGINT or SIGTERM.
Where a broker runs already, use the command attach instead.

` + dataHelp + `
An address that other machines can reach needs TLS (--tls-cert, --tls-key) and
authentication: users and rules (--auth), or client certificates (--client-ca).
--insecure lifts both requirements. On SIGHUP the users, the rules and the
certificate are read again; if a file is invalid, its previous content stays.

` + adminHelp + "\n\n" + strictHelp,
		Example: `serve
serve --addr 127.0.0.1:0          # any free port; the first line says which
serve --memory --hold-off 10s     # the longest TTL of the leases in use
serve --admin 127.0.0.1:8080      # with a status page
serve --max-memory 512MiB
serve --addr :8883 --tls-cert server.pem --tls-key server.key --auth users.yaml
serve --strict --lock-prefix locks/`,
		Args: noURL,
		RunE: func(cmd *cobra.Command, _ []string) error { return s.run(cmd) },
	}
	addReplication(serve, replication)
	s.register(serve.Flags())
	return serve
}

// register adds the flags.
func (s *serveSettings) register(flags *pflag.FlagSet) {
	if s.replication != nil {
		flags.StringVar(&s.advertise, "advertise", "",
			"host:port at which clients reach this server; servers that stand by refer them to it; "+
				"default: --addr, with the name of this machine if that is no address")
	}
	s.store.register(flags, "as --max-memory allows, or no limit", serveFolder)
	s.admin.register(flags)
	flags.Lookup("dedup-window").Usage += "; also how many it may send at once"
	flags.StringVar(&s.Addr, "addr", server.DefaultAddr, "TCP address to listen on; port 0 takes a free one")
	s.certificate.register(flags, "file with the server's certificate and its chain, in PEM")
	flags.StringVar(&s.clientCA, "client-ca", "",
		"file with the authorities that issue the accepted client certificates, in PEM; "+
			"without --auth every client needs one")
	flags.StringVar(&s.auth, "auth", "",
		"file with users and rules, in YAML; the command password makes the hashes for it")
	flags.BoolVar(&s.AllowInsecure, "insecure", false,
		"let other machines reach the server without TLS or without authentication")
	settings.Bytes(flags, &s.MaxMemory, "max-memory",
		"how much memory the server should use at most, like 512MiB; limits that are not given are derived from it; "+
			"0 means no limit")
	flags.IntVar(&s.MaxClients, "max-clients", 0,
		"how many clients may be connected or have a kept session; 0 means 10000, or fewer as --max-memory allows")
	limits := &s.Limits
	settings.Bytes(flags, &limits.OutgoingBytes, "max-outgoing-bytes",
		"how many bytes may wait to be written to one connection; 0 means 8MiB, or less as --max-memory allows")
	settings.Bytes(flags, &limits.AllOutgoingBytes, "max-all-outgoing-bytes",
		"how many bytes may wait to be written to all connections; 0 means 256MiB, or less as --max-memory allows")
	settings.Bytes(flags, &limits.SessionBytes, "max-session-bytes",
		"how many bytes of QoS 1 messages may wait for one client, connected or not; "+
			"0 means 4MiB, or less as --max-memory allows")
	flags.IntVar(&limits.SessionMessages, "max-session-messages", 0,
		"how many QoS 1 messages may wait for one client; 0 means 10000")
	settings.Bytes(flags, &limits.AllSessionBytes, "max-all-session-bytes",
		"how many bytes of QoS 1 messages may wait for all clients; 0 means 256MiB, or less as --max-memory allows")
	flags.IntVar(&limits.SessionsPerUser, "max-sessions-per-user", 0,
		"how many sessions are kept for disconnected clients of one user; 0 means 100")
	flags.IntVar(&limits.Subscriptions, "max-subscriptions", 0, "how many subscriptions a client may have; 0 means 1000")
	flags.BoolVar(&s.Retain, "retain", false, "allow retained messages")
	flags.IntVar(&limits.RetainedMessages, "max-retained", 0,
		"how many messages may be retained, with --retain; 0 means 10000")
	settings.Bytes(flags, &limits.RetainedBytes, "max-retained-bytes",
		"how many bytes retained messages may have together; 0 means 64MiB, or less as --max-memory allows")
	flags.IntVar(&s.PasswordChecks, "password-checks", 0,
		"how many passwords are checked at once; others wait, in turns by address; 0 means half of the processors")
	flags.IntVar(&s.MaxUnauthenticated, "max-unauthenticated", 256,
		"how many open connections may be unauthenticated; a new one closes the oldest; each has 5s")
	flags.IntVar(&s.MaxUnauthenticatedPerAddress, "max-unauthenticated-per-address", 0,
		"the same for one remote address; 0 means 64, and no separate limit for this machine")
	flags.DurationVar(&s.PacketTimeout, "packet-timeout", 30*time.Second,
		"how long a packet may take to arrive, from its first byte")
	flags.Uint32Var(&s.MaxPacketSize, "max-packet-size", 1<<20, "largest MQTT packet in bytes; at least 1024")
}

// serveFolder is where serve keeps its data by default, in the user's directory for state.
const serveFolder = "tenure"

// noURL refuses arguments, and names the command that takes a URL. It does not quote the argument, which may
// contain a password.
func noURL(cmd *cobra.Command, arguments []string) error {
	if len(arguments) > 0 {
		return fmt.Errorf("serve takes no arguments; to run the store on a broker that runs already: %s attach URL",
			cmd.Root().Name())
	}
	return nil
}

func (s *serveSettings) run(cmd *cobra.Command) (err error) {
	process, stop := startProcess(cmd, slog.LevelWarn)
	defer stop()
	if err := s.store.check(); err != nil {
		return err
	}
	if err := s.checkAddress(cmd.Context()); err != nil {
		return explainServe(err)
	}
	s.limitCollector()
	s.Store, s.Logger = s.store.options(), process.logger
	if err := s.checkRetained(cmd.Flags().Changed); err != nil {
		return usage(err)
	}
	reloads, err := s.readFiles()
	if err != nil {
		return usage(err)
	}
	stopPage, err := s.admin.start(cmd, process, "serve")
	if err != nil {
		return err
	}
	defer stopPage()
	replicated, err := isReplicated(s.replication)
	if err != nil {
		return err
	}
	if replicated {
		return s.serveReplicated(cmd, process, reloads)
	}
	data, where, err := s.store.data.open(serveFolder, process.logger)
	if err != nil {
		return err
	}
	if data != nil {
		defer closeJournal(data, &err)
		s.Journal = data
	}
	listening, err := s.open(cmd.Context(), process, s.Options)
	switch {
	case err != nil && cmd.Context().Err() != nil:
		return sayStopped(cmd)
	case err != nil:
		return explainServe(err)
	}
	process.node.Describe(s.url(listening.Addr()), where)
	process.ready(cmd, fmt.Sprintf("listening on %s with data in %s", s.url(listening.Addr()), where))
	s.store.warnOfMemory(s.Logger)
	err = process.run(cmd.Context(), reloads, (&monitoredServer{listening, process}).Serve)
	if err != nil {
		return err
	}
	return sayStopped(cmd)
}

// limitCollector makes the garbage collector work harder near --max-memory. The limit is a quarter higher: at
// the memory in use, the collector would take much of the processors.
func (s *serveSettings) limitCollector() {
	if s.MaxMemory > 0 && os.Getenv("GOMEMLIMIT") == "" {
		debug.SetMemoryLimit(s.MaxMemory + min(s.MaxMemory/4, math.MaxInt64-s.MaxMemory))
	}
}

// monitoredServer is a server that logs its usage, and that the status page and the watchdog of systemd know.
type monitoredServer struct {
	*server.Server
	process *process
}

// Serve serves until ctx ends.
func (m *monitoredServer) Serve(ctx context.Context) error {
	working, cancel := context.WithCancel(ctx)
	var tasks sync.WaitGroup
	tasks.Go(func() { reportUsage(working, m.process.logger, m.Usage, m.Stats) })
	tasks.Go(func() { memory.Release(working) })
	m.process.node.Serve(admin.Store{Identity: m.Identity(), State: m.State, Server: m.Stats, Usage: m.Usage})
	err := m.Server.Serve(ctx)
	cancel()
	tasks.Wait()
	return err
}

// open opens a server, and logs the loading of its data, which may take long, unless --log-level says
// otherwise.
func (s *serveSettings) open(ctx context.Context, process *process, options server.Options) (*server.Server, error) {
	if level := process.level.Level(); !process.isGiven {
		process.level.Set(min(level, slog.LevelInfo))
		defer process.level.Set(level)
	}
	return server.Open(ctx, options)
}

// checkAddress refuses what is no address before the data is opened: that makes a directory, and can take
// long.
func (s *serveSettings) checkAddress(ctx context.Context) error {
	if s.Addr == "" { // the default
		return nil
	}
	_, port, err := net.SplitHostPort(s.Addr)
	if err == nil {
		_, err = net.DefaultResolver.LookupPort(ctx, "tcp", port)
	}
	return err
}

// url returns the URL of a server at an address.
func (s *serveSettings) url(address net.Addr) string {
	if s.TLS != nil {
		return "mqtts://" + address.String()
	}
	return "mqtt://" + address.String()
}

// explainServe adds to why a server cannot run what to do about it.
func explainServe(err error) error {
	var address *net.AddrError
	var lookup *net.DNSError
	switch {
	case errors.As(err, &address), errors.As(err, &lookup) && lookup.Err == "unknown port":
		return usage(fmt.Errorf("--addr: %w; write it like :1883 or 127.0.0.1:1883", err))
	case errors.Is(err, syscall.EADDRINUSE):
		return fmt.Errorf("%w; choose another with --addr, or stop the program that uses it", err)
	case errors.Is(err, server.ErrInsecure):
		return usage(fmt.Errorf("%w; give --tls-cert and --tls-key with --auth or --client-ca, or say --insecure", err))
	}
	return err
}

// sayStopped ends the output of a store that was asked to stop.
func sayStopped(cmd *cobra.Command) error {
	fmt.Fprintln(cmd.OutOrStdout(), "stopped")
	return nil
}

// checkRetained refuses limits of retained messages where none are allowed.
func (s *serveSettings) checkRetained(changed func(name string) bool) error {
	for _, name := range []string{"max-retained", "max-retained-bytes"} {
		if changed(name) && !s.Retain {
			return fmt.Errorf("--%s limits retained messages; give --retain too", name)
		}
	}
	return nil
}

// readFiles reads the files that flags name, and returns how to read them again.
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
	if !s.certificate.given() && s.clientCA == "" {
		return reloads, nil
	}
	if err := s.certificate.check(); err != nil {
		return nil, usage(err)
	}
	certificate := &serverCertificate{flags: &s.certificate}
	if err := certificate.reload(); err != nil {
		return nil, err
	}
	var clients *x509.CertPool
	if s.clientCA != "" {
		var err error
		if clients, err = mqtt.ReadCertPool(s.clientCA); err != nil {
			return nil, fmt.Errorf("--client-ca: %w", err)
		}
	}
	s.TLS = certificate.config(clients, s.auth == "")
	return append(reloads, reload{"--tls-cert", certificate.reload}), nil
}

// warnOfReaders warns if other users of the machine may read the file of --auth, and guess
// passwords from its hashes, or may change it. Windows has no mode bits for that.
func (s *serveSettings) warnOfReaders() {
	info, err := os.Stat(s.auth)
	if err != nil || runtime.GOOS == "windows" || info.Mode().Perm()&0o066 == 0 {
		return // reading a missing file is an error elsewhere
	}
	s.Logger.Warn("the group or all users of this machine may read or change the file with users and password hashes; "+
		"chmod 600 prevents that",
		"flag", "--auth", "file", s.auth, "mode", fmt.Sprintf("%04o", info.Mode().Perm()))
}

const (
	// usageInterval is how often the log reports what the server holds, at level info.
	usageInterval = time.Minute
	// dropInterval is how often the log reports dropped messages. One line for many
	// messages needs no rate limit.
	dropInterval = 10 * time.Second
)

// dropFlags gives the flags that raise the limit behind a reason to drop messages.
var dropFlags = map[server.MessageDropReason]string{
	server.MessageConnectionFull: "--max-outgoing-bytes, --max-all-outgoing-bytes",
	server.MessageSessionFull:    "--max-session-bytes, --max-session-messages",
	server.MessageSessionsFull:   "--max-all-session-bytes",
	server.MessageNotRetained:    "--max-retained, --max-retained-bytes",
}

// reportUsage logs what a server holds and which messages it dropped because of a limit,
// until ctx ends.
func reportUsage(ctx context.Context, logger *slog.Logger, usage func() server.Usage, stats func() server.Stats) {
	holds, drops := time.NewTicker(usageInterval), time.NewTicker(dropInterval)
	defer holds.Stop()
	defer drops.Stop()
	reported := make(map[server.MessageDropReason]uint64)
	for {
		select {
		case <-ctx.Done():
			reportDrops(logger, stats(), reported)
			return
		case <-drops.C:
			reportDrops(logger, stats(), reported)
		case <-holds.C:
			if logger.Enabled(ctx, slog.LevelInfo) {
				reportHeld(logger, usage())
			}
		}
	}
}

// reportDrops logs the drops that are not in reported yet, and adds them.
func reportDrops(logger *slog.Logger, s server.Stats, reported map[server.MessageDropReason]uint64) {
	for reason, flags := range dropFlags {
		if dropped := s.DroppedMessages[reason]; dropped > reported[reason] {
			logger.Warn("messages were dropped: "+string(reason), "messages", dropped-reported[reason], "flag", flags)
			reported[reason] = dropped
		}
	}
}

func reportHeld(logger *slog.Logger, u server.Usage) {
	logger.Info("usage",
		"keys", u.Store.Keys, "key-bytes", u.Store.Bytes,
		"watches", u.Store.Watches, "watch-bytes", u.Store.WatchBytes,
		"dedup-entries", u.Store.DedupEntries,
		"sessions", u.Sessions, "subscriptions", u.Subscriptions, "subscription-bytes", u.SubscriptionBytes,
		"session-messages", u.WaitingMessages, "session-bytes", u.WaitingBytes,
		"outgoing-bytes", u.OutgoingBytes, "arriving-bytes", u.ArrivingBytes,
		"retained", u.RetainedMessages, "retained-bytes", u.RetainedBytes)
}
