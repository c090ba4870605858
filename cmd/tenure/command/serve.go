package command

import (
	"context"
	"crypto/tls"
	"fmt"
	"math"
	"net"
	"os"
	"runtime"
	"runtime/debug"
	"sync/atomic"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/tenurelock/tenure/cmd/tenure/internal/admin"
	"github.com/tenurelock/tenure/cmd/tenure/internal/settings"
	"github.com/tenurelock/tenure/internal/mqtt"
	"github.com/tenurelock/tenure/server"
	"github.com/tenurelock/tenure/server/access"
	"github.com/tenurelock/tenure/server/standby"
	"github.com/tenurelock/tenure/statestore"
)

// serveFlags are the flags of serve. The fields Store and Logger of Options are set from store and
// from the process.
type serveFlags struct {
	server.Options
	store       storeFlags
	certificate certificateFlags
	clientCA    string
	auth        string
	advertise   string
}

// serveCommand returns the command serve, with replication unless that is nil.
func serveCommand(replication Replication) *cobra.Command {
	s := serveFlags{store: storeFlags{replication: replication}}
	serve := &cobra.Command{
		Use:   "serve",
		Short: "Run an MQTT broker with a state store inside, until interrupted",
		Long: "Run an MQTT 5 broker with a state store inside. Where a broker runs already, use attach.\n\n" + storeHelp + `

An address that other machines can reach needs TLS (--tls-cert, --tls-key) and
authentication (--auth or --client-ca), or --insecure. SIGHUP reads the files again.`,
		Example: "serve --memory --admin 127.0.0.1:8080\n" +
			"serve --addr :8883 --tls-cert server.pem --tls-key server.key --auth users.yaml",
		Args: Arguments,
		RunE: func(cmd *cobra.Command, _ []string) error { return s.store.run(cmd, "serve", s.prepare) },
	}
	s.store.register(serve, "as --max-memory allows, or no limit")
	s.register(serve.Flags())
	if replication != nil {
		serve.Flags().StringVar(&s.advertise, "advertise", "",
			"host:port at which clients reach this server; default: --addr, with the name of this machine for no address")
	}
	return serve
}

// register adds the flags.
func (s *serveFlags) register(flags *pflag.FlagSet) {
	s.certificate.register(flags, "file with the server's certificate and its chain, in PEM")
	flags.StringVar(&s.Addr, "addr", server.DefaultAddr, "TCP address to listen on; port 0 takes a free one")
	flags.StringVar(&s.clientCA, "client-ca", "", "file with the authorities of client certificates, in PEM")
	flags.StringVar(&s.auth, "auth", "", "file with users and rules, in YAML; password makes the hashes for it")
	flags.BoolVar(&s.AllowInsecure, "insecure", false, "let other machines reach the server without TLS or authentication")
	flags.Uint32Var(&s.MaxPacketSize, "max-packet-size", 1<<20, "largest MQTT packet in bytes; at least 1024")
	settings.Bytes(flags, &s.MaxMemory, "max-memory", "how much memory the server should use at most, like 512MiB; "+
		"limits that are not given are derived from it; 0 means no limit")
	number := func(at *int, name, usage string) { flags.IntVar(at, name, 0, usage) }
	number(&s.MaxClients, "max-clients", "clients connected or with a session; 0 means 10000, or as --max-memory allows")
	number(&s.MaxUnauthenticated, "max-unauthenticated", "open connections that may be unauthenticated; 0 means 256")
	number(&s.MaxUnauthenticatedPerAddress, "max-unauthenticated-per-address", "the same for one address; 0 means 64")
}

// prepare reads the files that flags name, and refuses what makes no sense.
func (s *serveFlags) prepare(cmd *cobra.Command, process *process) (run storeRun, err error) {
	// Before the data is opened: that makes a directory, and can take long.
	if _, err := net.ResolveTCPAddr("tcp", s.Addr); err != nil {
		return run, fmt.Errorf("--addr: %w; write it like :1883 or 127.0.0.1:1883", err)
	}
	s.Store, s.Logger = s.store.Options, process.logger
	if s.MaxMemory > 0 && os.Getenv("GOMEMLIMIT") == "" {
		// At the memory in use, the collector would take much of the processors: so the limit is a quarter higher.
		debug.SetMemoryLimit(s.MaxMemory + min(s.MaxMemory/4, math.MaxInt64-s.MaxMemory))
	}
	if run.reloads, err = s.readFiles(); err != nil {
		return run, err
	}
	run.replicate = func() error { return s.replicate(cmd, process, run) }
	run.open = func(
		ctx context.Context, where string, journal statestore.Journal, socket net.Listener,
	) (standby.Store, error) {
		options := s.Options
		options.Journal, options.Listener = journal, socket
		listening, err := server.Open(ctx, options)
		if err != nil {
			return nil, err
		}
		process.node.Describe(s.url(listening.Addr()), where)
		process.node.Serve(admin.Store{
			Identity: listening.Identity(), State: listening.State, Server: listening.Stats, Usage: listening.Usage,
		})
		process.ready(cmd, fmt.Sprintf("listening on %s with data in %s", s.url(listening.Addr()), where))
		s.store.warnOfMemory(s.Logger)
		return listening, nil
	}
	return run, nil
}

// replicate stands by and serves until the command is interrupted.
func (s *serveFlags) replicate(cmd *cobra.Command, process *process, run storeRun) (err error) {
	if err := s.Check(); err != nil {
		return err
	}
	socket, err := standby.Listen(s.Addr)
	if err != nil {
		return err
	}
	defer socket.Close()
	settings := ReplicaSettings{PacketSize: s.MaxPacketSize}
	if settings.Address, err = s.clientAddress(socket.Addr()); err != nil {
		return err
	}
	replica := &standby.Replica{Listener: socket, Options: s.Options}
	return s.store.campaign(cmd, process, run, settings, s.url(socket.Addr()), replica)
}

// clientAddress returns where other processes refer clients to: --advertise, or where the server
// listens.
func (s *serveFlags) clientAddress(listening net.Addr) (string, error) {
	if s.advertise != "" {
		if _, _, err := net.SplitHostPort(s.advertise); err != nil {
			return "", usagef("--advertise %q is not host:port", s.advertise)
		}
		return s.advertise, nil
	}
	host, port, err := net.SplitHostPort(listening.String())
	if ip := net.ParseIP(host); err == nil && ip != nil && ip.IsUnspecified() {
		host, err = os.Hostname()
	}
	return net.JoinHostPort(host, port), err
}

// url returns the URL of a server at an address.
func (s *serveFlags) url(address net.Addr) string {
	if s.TLS != nil {
		return "mqtts://" + address.String()
	}
	return "mqtt://" + address.String()
}

// readFiles reads the files that flags name, and returns how to read them again.
func (s *serveFlags) readFiles() (reloads []reload, err error) {
	if s.auth != "" {
		file, err := access.Open(s.auth)
		if err != nil {
			return nil, fmt.Errorf("--auth: %w", err)
		}
		s.Authenticator, s.Authorizer = file, file
		s.warnOfReaders()
		reloads = append(reloads, reload{"--auth", file.Reload})
	}
	if !s.certificate.given() && s.clientCA == "" {
		return reloads, nil
	}
	var current atomic.Pointer[tls.Certificate]
	readCertificate := func() error {
		certificate, err := s.certificate.read()
		if err == nil {
			current.Store(certificate)
		}
		return err
	}
	if err := readCertificate(); err != nil {
		return nil, err
	}
	s.TLS = &tls.Config{
		MinVersion:     tls.VersionTLS12,
		GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return current.Load(), nil },
	}
	if s.clientCA != "" {
		if s.TLS.ClientCAs, err = mqtt.ReadCertPool(s.clientCA); err != nil {
			return nil, fmt.Errorf("--client-ca: %w", err)
		}
		s.TLS.ClientAuth = tls.RequireAndVerifyClientCert
		if s.auth != "" { // a client may log in with a password instead
			s.TLS.ClientAuth = tls.VerifyClientCertIfGiven
		}
	}
	return append(reloads, reload{"--tls-cert", readCertificate}), nil
}

// warnOfReaders warns if other users of the machine may read the file of --auth, and guess
// passwords from its hashes, or may change it. Windows has no mode bits for that.
func (s *serveFlags) warnOfReaders() {
	info, err := os.Stat(s.auth)
	if err != nil || runtime.GOOS == "windows" || info.Mode().Perm()&0o066 == 0 {
		return // reading a missing file is an error elsewhere
	}
	s.Logger.Warn("other users of this machine may read or change the file with password hashes; chmod 600 prevents that",
		"flag", "--auth", "file", s.auth, "mode", fmt.Sprintf("%04o", info.Mode().Perm()))
}
