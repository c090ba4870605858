package command

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"runtime"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/tenurelock/tenure/cmd/tenure/internal/settings"
	"github.com/tenurelock/tenure/server/journal"
	"github.com/tenurelock/tenure/server/standby"
	"github.com/tenurelock/tenure/statestore"
)

const (
	storeHelp = `A restart goes on with all keys, leases and fences in --data, and forgets them with
--memory: give --hold-off with the longest TTL in use then.`
	// inMemory is what the first line says in place of a directory.
	inMemory = "memory only"
)

// storeFlags are the flags that serve and attach share: the rules, the limits and the data of the store.
type storeFlags struct {
	statestore.Options
	dir    string // of the data
	memory bool
	flags  *pflag.FlagSet

	page        pageFlags
	replication Replication // nil: there is none
	folder      string      // below Directory, for the data by default
}

// register adds the flags. noLimit is what the zero of --max-keys and --max-bytes means.
func (s *storeFlags) register(cmd *cobra.Command, noLimit string) {
	flags := cmd.Flags()
	s.flags = flags
	if s.replication != nil {
		s.replication.Register(cmd)
	}
	s.page.register(flags)
	DirectoryFlag(flags, &s.dir, "directory for the data, made if it is missing")
	flags.BoolVar(&s.memory, "memory", false, "keep the data in memory: a restart forgets every key, lease and fence")
	flags.BoolVar(&s.Strict, "strict", false, "keep fences after deletion and expiry, refuse tokens above all versions, "+
		"and take only locks under a --lock-prefix")
	flags.StringSliceVar(&s.LockPrefixes, "lock-prefix", nil, "prefix of the keys that are locks, with --strict")
	flags.DurationVar(&s.HoldOff, "hold-off", 0, "how long a store without data, or from a backup, grants no lease")
	flags.IntVar(&s.MaxKeys, "max-keys", 0, "how many keys the store may hold; 0 means "+noLimit)
	settings.Bytes(flags, &s.MaxBytes, "max-bytes", "what keys, values and tokens may have together; 0 means "+noLimit)
	flags.IntVar(&s.MaxValue, "max-value", 0, "how many bytes a value may have; 0 means only the limit of packets applies")
	flags.IntVar(&s.MaxWatches, "max-watches", 10_000, "how many keys a client may watch")
	flags.IntVar(&s.DedupWindow, "dedup-window", statestore.DefaultDedupWindow, "requests remembered of each client")
}

// check refuses values that no flag type refuses.
func (s *storeFlags) check() error {
	switch {
	case s.HoldOff < 0 || min(s.MaxKeys, s.MaxValue, s.MaxWatches) < 0:
		return usagef("--hold-off, --max-keys, --max-value and --max-watches cannot be negative; 0: none, no limit")
	case len(s.LockPrefixes) > 0 && !s.Strict:
		return usagef("--lock-prefix needs --strict")
	case s.memory && s.flags.Changed("data"):
		return usagef("--memory keeps nothing, and --data says where to keep it; give one of them")
	}
	return nil
}

// warnOfMemory logs what a store does not promise, if it is in memory.
func (s *storeFlags) warnOfMemory(logger *slog.Logger) {
	if s.memory {
		logger.Warn("the store is in memory: a restart forgets every key, lease and fence, and grants no lease during "+
			"the hold-off only: give it the longest TTL in use, or use --data", "hold-off", s.HoldOff)
	}
}

// An openStore opens a store on a journal, which is nil for a store in memory, and says that on standard output. where
// names the place of the data. socket is nil, unless the store is to listen on it.
type openStore func(_ context.Context, where string, _ statestore.Journal, socket net.Listener) (standby.Store, error)

// A storeRun is what serve or attach runs.
type storeRun struct {
	reloads   []reload
	open      openStore
	replicate func() error // runs it with replication
}

// run runs what prepare returns until the command is interrupted. The error of prepare is about usage.
func (s *storeFlags) run(
	cmd *cobra.Command, mode string, prepare func(*cobra.Command, *process) (storeRun, error),
) error {
	process, stop := startProcess(cmd, slog.LevelInfo)
	defer stop()
	if err := s.check(); err != nil {
		return err
	}
	run, err := prepare(cmd, process)
	if err != nil {
		return Usage(err)
	}
	stopPage, err := s.page.start(cmd, process, mode)
	if err != nil {
		return err
	}
	defer stopPage()
	if s.replication != nil {
		if chosen, err := s.replication.Chosen(); err != nil {
			return Usage(err)
		} else if chosen {
			return run.replicate()
		}
	}
	return s.serve(cmd, process, run)
}

// serve runs a store with its data in the directory of the flags, or in memory.
func (s *storeFlags) serve(cmd *cobra.Command, process *process, run storeRun) (err error) {
	where, data := inMemory, statestore.Journal(nil)
	if !s.memory {
		if where, err = Directory(s.dir, s.folder); err != nil {
			return err
		}
		if _, err := os.Stat(filepath.Join(where, "member")); err == nil {
			return usagef("%s has a member of etcd, with data that this store would not read: it would begin empty; "+
				"start tenure-cluster serve with --member and --cluster, or give --data with another directory", where)
		}
		var file *journal.File
		if file, err = journal.Open(where, journal.Options{Logger: process.logger}); err != nil {
			return err
		}
		defer func() { err = cmp.Or(err, file.Close()) }()
		data = file
	}
	store, err := run.open(cmd.Context(), where, data, nil)
	if err == nil {
		err = process.run(cmd.Context(), run.reloads, store.Serve)
	} else if cmd.Context().Err() != nil {
		err = nil // interrupted while the data was loaded
	}
	return stopped(cmd, err)
}

// stopped ends the output of a store that was asked to stop, if there was no error.
func stopped(cmd *cobra.Command, err error) error {
	if err == nil {
		fmt.Fprintln(cmd.OutOrStdout(), "stopped")
	}
	return err
}

// Directory returns where a store keeps its data: what --data says, or a default, which has folders.
func Directory(dir string, folders ...string) (string, error) {
	if dir != "" {
		return filepath.Abs(dir)
	}
	if dirs := filepath.SplitList(os.Getenv("STATE_DIRECTORY")); len(dirs) > 0 && filepath.IsAbs(dirs[0]) {
		return dirs[0], nil // of several, systemd names the first one first
	}
	state, err := os.Getenv("XDG_STATE_HOME"), error(nil)
	switch {
	case runtime.GOOS == "windows":
		state, err = os.UserCacheDir() // %LocalAppData%
	case !filepath.IsAbs(state): // which the XDG Base Directory Specification says to ignore
		state, err = os.UserHomeDir()
		state = filepath.Join(state, ".local", "state")
	}
	if err != nil {
		return "", usagef("no directory for the data: %w; give --data, or --memory to keep nothing", err)
	}
	return filepath.Join(append([]string{state, "tenure"}, folders...)...), nil
}

// DirectoryFlag adds the flag --data, for Directory. usage says what is in the directory.
func DirectoryFlag(flags *pflag.FlagSet, dir *string, usage string) {
	flags.StringVar(dir, "data", "", usage+"; default: $STATE_DIRECTORY, or tenure in the user's state")
}

// BytesFlag adds a flag for a number of bytes, like 512MiB. What is at the pointer is the default.
func BytesFlag(flags *pflag.FlagSet, at *int64, name, usage string) {
	settings.Bytes(flags, at, name, usage)
}

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

// replicaDirectory returns the directory for what replication keeps, or an empty string if it keeps
// nothing on this machine.
func (s *storeFlags) replicaDirectory() (string, error) {
	switch {
	case s.memory:
		return "", usagef("--memory is for a store of one process; leave it out")
	case s.replication.KeepsData():
		return Directory(s.dir)
	case s.flags.Changed("data"):
		return "", usagef("--data is for data on this machine, and this store has it in etcd; leave it out")
	}
	return "", nil
}

// campaign runs a replica that stands by at url until the command is interrupted.
func (s *storeFlags) campaign(
	cmd *cobra.Command, process *process, run storeRun, settings ReplicaSettings, url string, replica *standby.Replica,
) (err error) {
	if settings.Dir, err = s.replicaDirectory(); err != nil {
		return err
	}
	ctx, fail := context.WithCancelCause(cmd.Context())
	defer fail(nil)
	settings.Logger, settings.Flush, settings.Fail = process.logger, process.flush, fail
	candidate, err := s.replication.Start(ctx, settings)
	if err != nil {
		return err
	}
	replica.Options.Logger, replica.Active = process.logger, candidate.Active
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
		return run.open(ctx, candidate.Where(), journal, socket)
	}
	err = process.run(ctx, run.reloads, replica.Run)
	if ctx.Err() != nil && cmd.Context().Err() == nil {
		err = context.Cause(ctx) // what the candidate says
	}
	if failure := candidate.Close(); err == nil {
		err = failure
	}
	return stopped(cmd, err)
}
