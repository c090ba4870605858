package command

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"runtime"
	"sync"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/tenurelock/tenure/cmd/tenure/internal/admin"
	"github.com/tenurelock/tenure/cmd/tenure/internal/flagvalue"
	"github.com/tenurelock/tenure/cmd/tenure/internal/memory"
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
	settings := serveSettings{replication: replication}
	serve := &cobra.Command{
		Use:   "serve",
		Short: "Run an MQTT broker with a state store inside, until interrupted",
		Long: `Run an MQTT 5 broker with a state store inside, until SIGINT or SIGTERM.
Where a broker runs already, use "tenure attach" instead.

` + dataHelp + `
An address that other machines can reach needs TLS (--tls-cert, --tls-key) and
authentication: users and rules (--auth), or client certificates (--client-ca);
the subject of a certificate is then the user. --insecure lifts both
requirements. If other users of the machine may read the file of --auth, a
warning says so. On SIGHUP the users, the rules and the certificate are read
again; if a file is invalid, its previous content stays in force. Neither SIGHUP
nor closing the terminal stops a server.

--max-memory derives limits for everything that clients can make the server
hold; the status page may take 150 MB beside that. The log has the limits at the
start, and the usage once a minute, with --log-level info or --verbose. A limit
given by its own flag is not derived. When messages are dropped because of a
limit, a warning names its flag.

` + adminHelp + `

` + strictHelp,
		Example: `  tenure serve
  tenure serve --addr 127.0.0.1:0          # any free port; the first line says which
  tenure serve --data /var/lib/tenure
  tenure serve --memory --hold-off 10s     # the longest TTL of the leases in use
  tenure serve --max-keys 10000 --verbose
  tenure serve --admin 127.0.0.1:8080      # with a status page
  tenure serve --max-memory 512MiB
  tenure serve --addr :8883 --tls-cert server.pem --tls-key server.key --auth users.yaml
  tenure serve --strict --lock-prefix locks/`,
		Args: noURL,
		RunE: func(cmd *cobra.Command, _ []string) error { return settings.run(cmd) },
	}
	explainFlags(serve, replication, explainServeFlag)
	flags := serve.Flags()
	addReplication(serve, replication)
	if replication != nil {
		flags.StringVar(&settings.advertise, "advertise", "", "host:port at which clients reach this server; servers that stand by refer them to it; default: --addr, with the name of this machine if that is no address")
	}
	settings.store.register(flags, "as --max-memory allows, or no limit", serveFolder)
	settings.admin.register(flags)
	flags.Lookup("dedup-window").Usage += "; also how many it may send at once"
	flags.StringVar(&settings.Addr, "addr", server.DefaultAddr, "TCP address to listen on; port 0 takes a free one")
	settings.certificate.register(flags, "file with the server's certificate and its chain, in PEM")
	flags.StringVar(&settings.clientCA, "client-ca", "", "file with the authorities that issue the accepted client certificates, in PEM; without --auth every client needs one")
	flags.StringVar(&settings.auth, "auth", "", "file with users and rules, in YAML; \"tenure password\" makes the hashes for it")
	flags.BoolVar(&settings.AllowInsecure, "insecure", false, "let other machines reach the server without TLS or without authentication")
	flagvalue.Bytes(flags, &settings.MaxMemory, "max-memory", "how much memory the server should use at most, like 512MiB; limits that are not given are derived from it; 0 means no limit")
	flags.IntVar(&settings.MaxClients, "max-clients", 0, "how many clients may be connected or have a kept session; 0 means 10000, or fewer as --max-memory allows")
	limits := &settings.Limits
	flagvalue.Bytes(flags, &limits.OutgoingBytes, "max-outgoing-bytes", "how many bytes may wait to be written to one connection; 0 means 8MiB, or less as --max-memory allows")
	flagvalue.Bytes(flags, &limits.AllOutgoingBytes, "max-all-outgoing-bytes", "how many bytes may wait to be written to all connections; 0 means 256MiB, or less as --max-memory allows")
	flagvalue.Bytes(flags, &limits.SessionBytes, "max-session-bytes", "how many bytes of QoS 1 messages may wait for one client, connected or not; 0 means 4MiB, or less as --max-memory allows")
	flags.IntVar(&limits.SessionMessages, "max-session-messages", 0, "how many QoS 1 messages may wait for one client; 0 means 10000")
	flagvalue.Bytes(flags, &limits.AllSessionBytes, "max-all-session-bytes", "how many bytes of QoS 1 messages may wait for all clients; 0 means 256MiB, or less as --max-memory allows")
	flags.IntVar(&limits.SessionsPerUser, "max-sessions-per-user", 0, "how many sessions are kept for disconnected clients of one user; 0 means 100")
	flags.IntVar(&limits.Subscriptions, "max-subscriptions", 0, "how many subscriptions a client may have; 0 means 1000")
	flags.BoolVar(&settings.Retain, "retain", false, "allow retained messages")
	flags.IntVar(&limits.RetainedMessages, "max-retained", 0, "how many messages may be retained, with --retain; 0 means 10000")
	flagvalue.Bytes(flags, &limits.RetainedBytes, "max-retained-bytes", "how many bytes retained messages may have together; 0 means 64MiB, or less as --max-memory allows")
	flags.IntVar(&settings.PasswordChecks, "password-checks", 0, "how many passwords are checked at once; others wait, in turns by address; 0 means half of the processors")
	flags.IntVar(&settings.MaxUnauthenticated, "max-unauthenticated", 256, "how many open connections may be unauthenticated; a new one closes the oldest; each has 5s")
	flags.IntVar(&settings.MaxUnauthenticatedPerAddress, "max-unauthenticated-per-address", 0, "the same for one remote address; 0 means 64, and no separate limit for this machine")
	flags.DurationVar(&settings.PacketTimeout, "packet-timeout", 30*time.Second, "how long a packet may take to arrive, from its first byte")
	flags.Uint32Var(&settings.MaxPacketSize, "max-packet-size", 1<<20, "largest MQTT packet in bytes; at least 1024")
	return serve
}

// serveFolder is where serve keeps its data by default, in the user's directory for state.
const serveFolder = "tenure"

// noURL refuses arguments, and names the command that takes a URL. It does not quote the argument,
// which may contain a password.
func noURL(cmd *cobra.Command, arguments []string) error {
	if len(arguments) > 0 {
		return fmt.Errorf("%s takes no arguments; to run the store on a broker that runs already: tenure attach URL", cmd.Name())
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
	memory.Configure(s.MaxMemory)
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
	process.page.describe(s.url(listening.Addr()), where)
	process.ready(cmd, fmt.Sprintf("listening on %s with data in %s", s.url(listening.Addr()), where))
	s.store.warnOfMemory(s.Logger)
	err = process.run(cmd.Context(), reloads, (&monitoredServer{listening, process}).Serve)
	if err != nil {
		return err
	}
	return sayStopped(cmd)
}

// monitoredServer is a server with the tasks that go on beside it: it logs the usage, and returns
// memory to the system.
type monitoredServer struct {
	*server.Server
	process *process
}

// Serve serves until ctx ends.
func (m *monitoredServer) Serve(ctx context.Context) error {
	working, cancel := context.WithCancel(ctx)
	var tasks sync.WaitGroup
	tasks.Go(func() { reportUsage(working, m.process.logger, m.Usage, m.Stats) })
	tasks.Go(func() { memory.Release(working, func() int64 { return heldBy(m.Usage()) }) })
	defer m.process.serves(func() { _ = m.Usage() })()
	m.process.page.serve(admin.Store{Identity: m.Identity(), State: m.State, Server: m.Stats, Usage: m.Usage})
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
	s.Logger.Warn("the group or all users of this machine may read or change the file with users and password hashes; chmod 600 prevents that",
		"flag", "--auth", "file", s.auth, "mode", fmt.Sprintf("%04o", info.Mode().Perm()))
}
