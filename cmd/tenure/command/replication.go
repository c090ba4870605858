package command

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"

	"github.com/spf13/cobra"

	"github.com/tenurelock/tenure/server/standby"
)

// Replication makes several processes share the data of a store. A program that has it gives it
// to its [Program].
type Replication interface {
	// Register adds flags to serve or attach, and to its texts of help. It is called for one of them.
	Register(cmd *cobra.Command)
	// Chosen reports whether the flags ask for it. The error says which contradict each other.
	Chosen() (bool, error)
	// KeepsData reports whether it keeps data below the directory of --data, rather than
	// elsewhere.
	KeepsData() bool
	// Start begins. ctx ends with the command.
	Start(ctx context.Context, settings ReplicaSettings) (Candidate, error)
}

// ReplicaSettings are what a Candidate needs.
type ReplicaSettings struct {
	Dir        string // of --data, if Replication.KeepsData
	Address    string // of clients, as host:port; empty: the store is attached to a broker
	PacketSize uint32 // of the largest packet
	Logger     *slog.Logger
	Flush      func()      // waits a moment until the log is written, for the last line of a process that does not return
	Fail       func(error) // ends the command, because the process cannot go on
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
	// Close ends it.
	Close() error
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
func (s *storeFlags) directoryFor(replication Replication) (string, error) {
	switch {
	case s.memory:
		return "", usage(errors.New("--memory is for a store of one process; leave it out"))
	case replication.KeepsData():
		return dataDirectory(s.dir, serveFolder)
	case s.flags.Changed("data"):
		return "", usage(errors.New("--data is for data on this machine, and this store has it in etcd; leave it out"))
	}
	return "", nil
}

// campaign runs a replica that stands by at url until the command is interrupted.
func (s *storeFlags) campaign(cmd *cobra.Command, process *process, replication Replication, settings ReplicaSettings,
	url string, reloads []reload, replica *standby.Replica, open openStore,
) (err error) {
	if settings.Dir, err = s.directoryFor(replication); err != nil {
		return err
	}
	ctx, fail := context.WithCancelCause(cmd.Context())
	defer fail(nil)
	settings.Logger, settings.Flush, settings.Fail = process.logger, process.flush, fail
	candidate, err := replication.Start(ctx, settings)
	if err != nil {
		return err
	}
	replica.Options.Logger, replica.Options.Active = process.logger, candidate.Active
	replica.StandByAfter = candidate.StandByAfter
	replica.Campaign = func(ctx context.Context) (standby.Journal, error) {
		process.node.Describe(url, candidate.Where())
		process.node.StandBy(candidate.Active)
		if err := candidate.Open(ctx); err != nil {
			return nil, err
		}
		process.ready(cmd, fmt.Sprintf("standing by on %s with data in %s", url, candidate.Where()))
		return candidate.Campaign(ctx)
	}
	replica.Open = func(ctx context.Context, journal standby.Journal, socket net.Listener) (standby.Store, error) {
		process.node.Loading()
		return open(ctx, candidate.Where(), journal, socket)
	}
	err = process.run(ctx, reloads, replica.Run)
	if ctx.Err() != nil && cmd.Context().Err() == nil {
		err = context.Cause(ctx) // what the candidate says
	}
	if failure := candidate.Close(); err == nil {
		err = failure
	}
	return stopped(cmd, err)
}
