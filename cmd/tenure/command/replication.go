package command

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"sync"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/tenurelock/tenure/server/attach"
	"github.com/tenurelock/tenure/server/standby"
)

// Replication makes several processes share the data of a store. A program that has it gives it
// to its [Program].
type Replication interface {
	// Register adds flags to serve, or to attach. It is called for one of them.
	Register(flags *pflag.FlagSet)
	// Chosen reports whether the flags ask for it. The error says which contradict each other.
	Chosen() (bool, error)
	// KeepsData reports whether it keeps data below the directory of --data, rather than
	// elsewhere.
	KeepsData() bool
	// Start begins. ctx ends with the command.
	Start(ctx context.Context, settings ReplicaSettings) (Candidate, error)
	// Help is text for --help, and Examples are lines for it.
	Help() string
	Examples() string
}

// ReplicaSettings are what a Candidate needs.
type ReplicaSettings struct {
	Dir        string // of --data, if Replication.KeepsData
	Address    string // of clients, as host:port; empty: the store is attached to a broker
	PacketSize uint32 // of the largest packet
	Logger     *slog.Logger
	Flush      func() // waits a moment until the log is written, for the last line of a process that does not return
}

// Candidate is a process that may become the active one.
type Candidate interface {
	// Open waits until it could: it has joined the others, and has the data that they have. Later calls
	// return at once.
	Open(ctx context.Context) error
	// Campaign waits until it is, and returns its journal.
	Campaign(ctx context.Context) (standby.Journal, error)
	// Active returns the address of the active one, or an empty string if it is unknown. It
	// returns at once.
	Active() string
	// StandByAfter reports whether the process stands by again after a journal has ended with err.
	StandByAfter(err error) bool
	// Where says where the data is.
	Where() string
	// Failed receives why the process cannot go on, at most once.
	Failed() <-chan error
	// Close ends it.
	Close() error
}

// addReplication adds the texts and flags of replication to a command, unless it is nil.
func addReplication(cmd *cobra.Command, replication Replication) {
	if replication == nil {
		return
	}
	cmd.Long += "\n\n" + replication.Help()
	cmd.Example += "\n" + replication.Examples()
	replication.Register(cmd.Flags())
}

// isReplicated reports whether the flags ask for replication, which may be nil.
func isReplicated(replication Replication) (bool, error) {
	if replication == nil {
		return false, nil
	}
	chosen, err := replication.Chosen()
	return chosen, usage(err)
}

// directoryFor returns the directory for what replication keeps, or an empty string if it keeps
// nothing on this machine.
func (d *dataFlags) directoryFor(replication Replication, flags *pflag.FlagSet, folder string) (string, error) {
	switch {
	case flags.Changed("memory") && d.memory:
		return "", usage(errors.New("--memory is for a store of one process; leave it out"))
	case replication.KeepsData():
		return d.directory(folder)
	case flags.Changed("data"):
		return "", usage(errors.New("--data is for data on this machine, and this store has it in etcd; leave it out"))
	}
	return "", nil
}

// campaign runs a replica that stands by at url until the command is interrupted. prepare says how it opens a
// store, and explain adds to why it cannot.
func campaign(cmd *cobra.Command, process *process, replication Replication, settings ReplicaSettings, url string, reloads []reload,
	prepare func(Candidate, *standby.Replica), explain func(error) error,
) error {
	settings.Logger, settings.Flush = process.logger, process.flush
	candidate, err := replication.Start(cmd.Context(), settings)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancelCause(cmd.Context())
	var tasks sync.WaitGroup
	tasks.Go(func() {
		select {
		case err := <-candidate.Failed():
			cancel(err)
		case <-ctx.Done():
		}
	})
	replica := &standby.Replica{StandByAfter: candidate.StandByAfter, Campaign: func(ctx context.Context) (standby.Journal, error) {
		process.node.Describe(url, candidate.Where())
		process.node.StandBy(candidate.Active)
		if err := candidate.Open(ctx); err != nil {
			return nil, err
		}
		process.ready(cmd, fmt.Sprintf("standing by on %s with data in %s", url, candidate.Where()))
		return candidate.Campaign(ctx)
	}}
	prepare(candidate, replica)
	if err = process.run(ctx, reloads, replica.Run); err != nil {
		err = explain(err)
	}
	cancel(nil)
	tasks.Wait()
	if failure := context.Cause(ctx); failure != nil && !errors.Is(failure, context.Canceled) {
		err = failure // what ends the candidate is not about the flags of the store
	}
	if failure := candidate.Close(); err == nil {
		err = failure
	}
	if err != nil {
		return err
	}
	return sayStopped(cmd)
}

// serveReplicated stands by and serves until the command is interrupted.
func (s *serveSettings) serveReplicated(cmd *cobra.Command, process *process, reloads []reload) (err error) {
	settings := ReplicaSettings{PacketSize: s.MaxPacketSize}
	if err := s.Check(); err != nil {
		return explainServe(err)
	}
	if settings.Dir, err = s.store.data.directoryFor(s.replication, cmd.Flags(), serveFolder); err != nil {
		return err
	}
	socket, err := standby.Listen(s.Addr)
	if err != nil {
		return explainServe(err)
	}
	defer socket.Close()
	if settings.Address, err = s.clientAddress(socket.Addr()); err != nil {
		return err
	}
	url := s.url(socket.Addr())
	return campaign(cmd, process, s.replication, settings, url, reloads, func(candidate Candidate, replica *standby.Replica) {
		replica.Listener = socket
		replica.Options = standby.Options{
			TLS: s.TLS, Active: candidate.Active, Logger: s.Logger,
			MaxUnauthenticated: s.MaxUnauthenticated, MaxUnauthenticatedPerAddress: s.MaxUnauthenticatedPerAddress,
		}
		replica.Open = func(ctx context.Context, journal standby.Journal, socket net.Listener) (standby.Store, error) {
			process.node.Loading()
			options := s.Options
			options.Journal, options.Listener = journal, socket
			listening, err := s.open(ctx, process, options)
			if err != nil {
				return nil, err
			}
			process.ready(cmd, fmt.Sprintf("listening on %s with data in %s", url, candidate.Where()))
			return &monitoredServer{listening, process}, nil
		}
	}, explainServe)
}

// clientAddress returns where other processes refer clients to: --advertise, or where the server
// listens.
func (s *serveSettings) clientAddress(listening net.Addr) (string, error) {
	host, port, err := net.SplitHostPort(listening.String())
	if err != nil {
		return "", err
	}
	if s.advertise != "" {
		if _, _, err := net.SplitHostPort(s.advertise); err != nil {
			return "", usage(fmt.Errorf("--advertise %q is not host:port", s.advertise))
		}
		return s.advertise, nil
	}
	if ip := net.ParseIP(host); ip != nil && ip.IsUnspecified() {
		if host, err = os.Hostname(); err != nil {
			return "", fmt.Errorf("%w; give --advertise with the host and port at which clients reach this server", err)
		}
	}
	return net.JoinHostPort(host, port), nil
}

// serveReplicated stands by and serves until the command is interrupted.
func (s *attachSettings) serveReplicated(cmd *cobra.Command, process *process, options attach.Options) (err error) {
	settings := ReplicaSettings{PacketSize: options.MaxPacketSize}
	if settings.Dir, err = s.store.data.directoryFor(s.replication, cmd.Flags(), serveFolder); err != nil {
		return err
	}
	return campaign(cmd, process, s.replication, settings, s.broker, nil, func(candidate Candidate, replica *standby.Replica) {
		replica.Options = standby.Options{Logger: process.logger}
		replica.Open = func(ctx context.Context, journal standby.Journal, _ net.Listener) (standby.Store, error) {
			process.node.Loading()
			options := options
			options.Journal, options.Shared = journal, true
			store, err := attach.Open(ctx, s.broker, options)
			if err != nil {
				return nil, err
			}
			return &monitoredStore{Store: store, process: process, broker: s.broker, where: candidate.Where(), onReady: func() {
				process.ready(cmd, fmt.Sprintf("attached to %s with data in %s", s.broker, candidate.Where()))
			}}, nil
		}
	}, func(err error) error {
		if errors.Is(err, attach.ErrAnotherStore) {
			return fmt.Errorf("%w, which does not share the data of this one; one broker has one store", err)
		}
		return err
	})
}
