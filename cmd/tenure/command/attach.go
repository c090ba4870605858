package command

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"path/filepath"
	"strings"
	"sync"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/tenurelock/tenure/cmd/tenure/internal/admin"
	"github.com/tenurelock/tenure/cmd/tenure/internal/memory"
	"github.com/tenurelock/tenure/contrib/tenurews"
	"github.com/tenurelock/tenure/internal/mqtt"
	"github.com/tenurelock/tenure/server"
	"github.com/tenurelock/tenure/server/attach"
)

// attachSettings are the flags of attach.
type attachSettings struct {
	credentials
	store       storeFlags
	broker      string // in place of the argument
	maxClients  int
	wait        bool
	admin       adminFlags
	replication Replication // nil: there is none
}

// attachCommand returns the command attach, with replication unless that is nil.
func attachCommand(replication Replication) *cobra.Command {
	s := attachSettings{replication: replication}
	attach := &cobra.Command{
		Use:   "attach URL",
		Short: "Run a state store on an MQTT broker that runs already, until interrupted",
		Long: `Run a state store as a client of the MQTT 5 broker at a URL, until SIGINT or
SIGTERM. The URL is mqtt://host:1883, or mqtts://host:8883 for TLS, or
ws://host/mqtt or wss://host/mqtt for WebSocket.

The store does not learn which user sent a request, so users and rules are the
broker's; docs/attach.md says which it needs, and how long its queues must be. One
broker has one store: the command ends with an error when another one answers.
With --wait it stands by in that case, and answers when the other store is gone. It
begins empty then and in memory, with a hold-off of 10 s unless --hold-off gives
the longest TTL in use. SIGHUP does not stop a store.

` + dataHelp + `
By default each broker has a directory of its own. If another store has answered on
the broker since, begin with an empty one, and with --hold-off.

` + adminHelp + "\n\n" + strictHelp,
		Example: `attach mqtt://localhost:1883
attach mqtt://localhost:1883 --data /var/lib/tenure
attach mqtt://localhost:1883 --memory --hold-off 10s   # the longest TTL of the leases in use
attach mqtts://broker:8883 --username store --password-file secret
attach mqtts://broker:8883 --tls-ca ca.pem --tls-cert store.pem --tls-key store.key`,
		Args: oneURL,
		RunE: func(cmd *cobra.Command, arguments []string) error {
			if len(arguments) > 0 {
				s.broker = arguments[0]
			}
			if s.broker == "" {
				return usage(errors.New("give the URL of the broker, like mqtt://localhost:1883"))
			}
			return s.run(cmd)
		},
	}
	addReplication(attach, replication)
	s.register(attach.Flags())
	return attach
}

// register adds the flags.
func (s *attachSettings) register(flags *pflag.FlagSet) {
	s.store.register(flags, "no limit", filepath.Join(attachFolder, "HOST_PORT"))
	s.admin.register(flags)
	flags.StringVar(&s.broker, "broker", "", "the URL, where no argument gives it: for TENURE_BROKER and the file of --config")
	s.credentials.register(flags)
	flags.BoolVar(&s.wait, "wait", false, "stand by while another store answers on the broker, and answer when it is gone; its data is gone with it")
	flags.IntVar(&s.maxClients, "max-clients", 0, "for how many clients the store remembers requests and watches; 0 means 10000")
}

// oneURL accepts one argument at most. It does not quote them: a URL may have a password.
func oneURL(_ *cobra.Command, arguments []string) error {
	if len(arguments) > 1 {
		return fmt.Errorf("give one URL, not %d arguments: one store serves one broker", len(arguments))
	}
	return nil
}

// attachFolder is where attach keeps its data by default, in the user's directory for state, with
// a folder for each broker.
var attachFolder = filepath.Join(serveFolder, "attach")

// brokerFolder is where attach keeps its data for a broker by default: a store that served one
// broker after another would show clients of the second what clients of the first wrote.
func brokerFolder(broker string) (string, error) {
	address, err := mqtt.ParseAddress(broker)
	if err != nil {
		return "", usage(err)
	}
	name := url.QueryEscape(strings.ToLower(address.Hostname())) + "_" + address.Port()
	return filepath.Join(attachFolder, name+url.QueryEscape(strings.TrimSuffix(address.Path, "/"))), nil
}

func (s *attachSettings) run(cmd *cobra.Command) (err error) {
	process, stop := startProcess(cmd, slog.LevelInfo) // a probe that takes seconds says so
	defer stop()
	if err := s.store.check(); err != nil {
		return err
	}
	options, err := s.options()
	if err != nil {
		return usage(err)
	}
	options.Logger = process.logger
	stopPage, err := s.admin.start(cmd, process, "attach")
	if err != nil {
		return err
	}
	defer stopPage()
	replicated, err := isReplicated(s.replication)
	if err != nil {
		return err
	}
	if replicated {
		return s.serveReplicated(cmd, process, options)
	}
	folder, err := brokerFolder(s.broker)
	if err != nil {
		return err
	}
	data, where, err := s.store.data.open(folder, process.logger)
	if err != nil {
		return err
	}
	if data != nil {
		defer closeJournal(data, &err)
		options.Journal = data
	}
	for {
		err = s.serve(cmd, process, where, options)
		if !s.wait || !errors.Is(err, attach.ErrAnotherStore) {
			break
		}
		process.logger.Warn("another store has taken the place of this one, so the data of this one is void; standing by again, with an empty store", "reason", err)
	}
	if errors.Is(err, attach.ErrAnotherStore) {
		return fmt.Errorf("%w; one broker has one store; with --wait this one stands by until the other is gone", err)
	}
	if errors.Is(err, attach.ErrStaleData) {
		return fmt.Errorf("%w. The data is in %s: move it away, or give another directory with --data, and give --hold-off", err, where)
	}
	if err != nil {
		return err
	}
	return sayStopped(cmd)
}

// serve runs one store, with its data in the place that where names, until the command is
// interrupted or the store cannot go on.
func (s *attachSettings) serve(cmd *cobra.Command, process *process, where string, options attach.Options) error {
	store, err := attach.Open(cmd.Context(), s.broker, options)
	switch {
	case err != nil && cmd.Context().Err() != nil:
		return nil // interrupted while the data was loaded
	case err != nil:
		return err
	}
	monitored := &monitoredStore{
		Store:     store,
		process:   process,
		where:     where,
		broker:    s.broker,
		onWaiting: func() { process.ready(cmd, "standing by on "+s.broker) },
		onReady: func() {
			process.ready(cmd, fmt.Sprintf("attached to %s with data in %s", s.broker, where))
			s.store.warnOfMemory(process.logger)
		},
	}
	// SIGHUP reloads nothing: the certificate is read for each connection anyway.
	return process.run(cmd.Context(), nil, monitored.Serve)
}

// monitoredStore is an attached store that says when it stands by and when it answers.
type monitoredStore struct {
	*attach.Store
	process       *process
	broker, where string
	onWaiting     func() // with attach.Options.Wait
	onReady       func()
}

// Serve serves until ctx ends.
func (m *monitoredStore) Serve(ctx context.Context) error {
	working, cancel := context.WithCancel(ctx)
	node := m.process.node
	status := admin.Store{Identity: m.Identity(), State: m.State, Attached: m.Stats, Usage: func() server.Usage { return server.Usage{Store: m.Usage()} }}
	node.Describe(m.broker, m.where)
	node.Serve(status)
	var tasks sync.WaitGroup
	tasks.Go(func() { memory.Release(working) })
	tasks.Go(func() {
		select {
		case <-m.Waiting():
			node.StandBy(nil)
			m.onWaiting()
		case <-m.Ready():
		case <-working.Done():
		}
		select {
		case <-m.Ready():
			node.Serve(status)
			m.onReady()
		case <-working.Done():
		}
	})
	err := m.Store.Serve(ctx)
	cancel()
	tasks.Wait()
	return err
}

// options reads the files that flags name, and returns the options of the store.
func (s *attachSettings) options() (attach.Options, error) {
	options := attach.Options{
		Username:   s.username,
		WebSocket:  tenurews.Upgrade,
		Store:      s.store.options(),
		MaxClients: s.maxClients,
		Wait:       s.wait,
	}
	if s.wait && s.store.data.dir != "" {
		return options, usage(errors.New("--wait begins without data, because what the other store has granted is not in --data; give one of them"))
	}
	s.store.data.memory = s.store.data.memory || s.wait
	if s.wait && options.Store.HoldOff == 0 {
		s.store.HoldOff = attach.SpareHoldOff
		options.Store = s.store.options()
	}
	var err error
	if s.passwordFile != "" {
		if options.Password, err = mqtt.ReadSecret(s.passwordFile); err != nil {
			return options, fmt.Errorf("--password-file: %w", err)
		}
	}
	var certificate func() (*tls.Certificate, error)
	if s.certificate.given() {
		if err := s.certificate.check(); err != nil {
			return options, usage(err)
		}
		certificate = s.certificate.read
	}
	options.TLS, err = ClientTLS("--tls-ca", s.ca, certificate)
	return options, err
}
