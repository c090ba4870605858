package command

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/url"
	"path/filepath"
	"strings"
	"sync"

	"github.com/spf13/cobra"

	"github.com/tenurelock/tenure/cmd/tenure/internal/admin"
	"github.com/tenurelock/tenure/contrib/tenurews"
	"github.com/tenurelock/tenure/internal/mqtt"
	"github.com/tenurelock/tenure/server"
	"github.com/tenurelock/tenure/server/attach"
	"github.com/tenurelock/tenure/server/standby"
	"github.com/tenurelock/tenure/statestore"
)

// attachFlags are the flags of attach.
type attachFlags struct {
	credentials
	store      storeFlags
	broker     string // in place of the argument
	maxClients int
}

// attachCommand returns the command attach, with replication unless that is nil.
func attachCommand(replication Replication) *cobra.Command {
	s := attachFlags{store: storeFlags{replication: replication}}
	attach := &cobra.Command{
		Use:   "attach URL",
		Short: "Run a state store on an MQTT broker that runs already, until interrupted",
		Long: `Run a state store as a client of the MQTT 5 broker at a URL, such as mqtts://host:8883 or
wss://host/mqtt. docs/attach.md says which rules the broker needs.

` + storeHelp,
		Example: "attach mqtts://broker:8883 --username store --password-file secret",
		Args:    cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, arguments []string) error {
			if len(arguments) > 0 {
				s.broker = arguments[0]
			}
			if s.broker == "" {
				return usagef("give the URL of the broker, like mqtt://localhost:1883")
			}
			return s.store.run(cmd, "attach", s.prepare)
		},
	}
	flags := attach.Flags()
	s.store.register(attach, "no limit")
	s.credentials.register(flags)
	flags.StringVar(&s.broker, "broker", "", "the URL, for TENURE_BROKER and the file of --config")
	flags.IntVar(&s.maxClients, "max-clients", 0, "clients that the store remembers; 0 means 10000")
	return attach
}

// prepare reads the files that flags name.
func (s *attachFlags) prepare(cmd *cobra.Command, process *process) (run storeRun, err error) {
	options, err := s.options()
	if err != nil {
		return run, err
	}
	options.Logger = process.logger
	address, err := mqtt.ParseAddress(s.broker)
	if err != nil {
		return run, err
	}
	// A store that served one broker after another would show clients of the second what clients of the first wrote.
	s.store.folder = filepath.Join("attach", url.QueryEscape(strings.ToLower(address.Host+address.Path)))
	run.replicate = func() error {
		options.Shared = true
		settings := ReplicaSettings{PacketSize: options.MaxPacketSize}
		return s.store.campaign(cmd, process, run, settings, s.broker, new(standby.Replica))
	}
	// SIGHUP reloads nothing: the certificate is read for each connection anyway.
	run.open = func(ctx context.Context, where string, journal statestore.Journal, _ net.Listener) (standby.Store, error) {
		options := options
		options.Journal = journal
		store, err := attach.Open(ctx, s.broker, options)
		if err != nil {
			return nil, err
		}
		process.node.Describe(s.broker, where)
		process.node.Serve(admin.Store{
			Identity: store.Identity(), State: store.State, Attached: store.Stats,
			Usage: func() server.Usage { return server.Usage{Store: store.Usage()} },
		})
		return servedStore(func(ctx context.Context) error {
			working, cancel := context.WithCancel(ctx)
			var tasks sync.WaitGroup
			tasks.Go(func() {
				select {
				case <-store.Ready():
					process.ready(cmd, fmt.Sprintf("attached to %s with data in %s", s.broker, where))
					s.store.warnOfMemory(process.logger)
				case <-working.Done():
				}
			})
			err := store.Serve(ctx)
			cancel()
			tasks.Wait()
			if errors.Is(err, attach.ErrStaleData) {
				err = fmt.Errorf("%w. The data is in %s: move it away, or give another --data, and give --hold-off", err, where)
			}
			return err
		}), nil
	}
	return run, nil
}

// A servedStore is a store that is a function.
type servedStore func(context.Context) error

// Serve implements standby.Store.
func (s servedStore) Serve(ctx context.Context) error { return s(ctx) }

// options reads the files that flags name, and returns the options of the store.
func (s *attachFlags) options() (options attach.Options, err error) {
	options = attach.Options{
		Username: s.username, WebSocket: tenurews.Upgrade, Store: s.store.Options, MaxClients: s.maxClients,
	}
	if s.passwordFile != "" {
		if options.Password, err = mqtt.ReadSecret(s.passwordFile); err != nil {
			return options, fmt.Errorf("--password-file: %w", err)
		}
	}
	var certificate func() (*tls.Certificate, error)
	if s.certificate.given() {
		certificate = s.certificate.read
	}
	options.TLS, err = ClientTLS("--tls-ca", s.ca, certificate)
	return options, err
}
