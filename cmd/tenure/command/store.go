package command

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"sync"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/tenurelock/tenure/cmd/tenure/internal/memory"
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
	// serveFolder is where serve keeps its data by default, in the user's directory for state.
	serveFolder = "tenure"
)

// storeFlags are the flags that serve and attach share: the rules, the limits and the data of the store.
type storeFlags struct {
	statestore.Options
	dialect string
	dir     string // of the data
	memory  bool
	flags   *pflag.FlagSet
}

// dialects are the names of the dialects, in the order of their values; the first one is the default.
var dialects = []string{statestore.Auto.String(), statestore.Deployed.String(), statestore.Documented.String()}

// register adds the flags. noLimit is what the zero of --max-keys and --max-bytes means; folder is
// where the data is by default, in the user's directory for state.
func (s *storeFlags) register(flags *pflag.FlagSet, noLimit, folder string) {
	s.flags, s.dialect = flags, dialects[0]
	directoryFlag(flags, &s.dir, "directory for the data, made if it is missing", folder)
	flags.BoolVar(&s.memory, "memory", false, "keep the data in memory: a restart forgets every key, lease and fence")
	flags.BoolVar(&s.Strict, "strict", false, "keep fences after deletion and expiry, refuse tokens above all versions, "+
		"and take only locks under a --lock-prefix")
	flags.StringSliceVar(&s.LockPrefixes, "lock-prefix", nil, "prefix of the keys that are locks, with --strict")
	flags.DurationVar(&s.HoldOff, "hold-off", 0, "how long a store without data, or from a backup, grants no lease")
	flags.IntVar(&s.MaxKeys, "max-keys", 0, "how many keys the store may hold; 0 means "+noLimit)
	settings.Bytes(flags, &s.MaxBytes, "max-bytes", "what keys, values and tokens may have together; 0 means "+noLimit)
	flags.IntVar(&s.MaxValue, "max-value", 0, "how many bytes a value may have; 0 means only the limit of packets applies")
	flags.IntVar(&s.MaxWatches, "max-watches", 10_000, "how many keys a client may watch")
	flags.IntVar(&s.DedupWindow, "dedup-window", statestore.DefaultDedupWindow, "requests of each client that are remembered")
	settings.Choice(flags, &s.dialect, "dialect", dialects, "how to write replies where deployed stores differ")
}

// check refuses values that no flag type refuses.
func (s *storeFlags) check() error {
	switch {
	case s.HoldOff < 0 || min(s.MaxKeys, s.MaxValue, s.MaxWatches) < 0:
		return usage(errors.New("--hold-off, --max-keys, --max-value and --max-watches cannot be negative; 0 means none, or no limit"))
	case len(s.LockPrefixes) > 0 && !s.Strict:
		return usage(errors.New("--lock-prefix needs --strict"))
	case s.memory && s.flags.Changed("data"):
		return usage(errors.New("--memory keeps nothing, and --data says where to keep it; give one of them"))
	case s.flags.Changed("data") && s.dir == "":
		return usage(errors.New("--data is empty; give a directory, or --memory to keep nothing"))
	}
	return nil
}

// options returns what the flags say.
func (s *storeFlags) options() statestore.Options {
	options := s.Options
	options.Dialect = statestore.Dialect(slices.Index(dialects, s.dialect))
	return options
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
type openStore func(ctx context.Context, where string, journal statestore.Journal, socket net.Listener) (standby.Store, error)

// serve runs a store with its data in the directory of the flags, or in memory, until the command is interrupted.
func (s *storeFlags) serve(cmd *cobra.Command, process *process, folder string, reloads []reload, open openStore) (err error) {
	where, data := inMemory, statestore.Journal(nil)
	if !s.memory {
		if where, err = dataDirectory(s.dir, folder); err != nil {
			return err
		}
		if _, err := os.Stat(filepath.Join(where, "member")); err == nil {
			return usage(fmt.Errorf("%s has a member of etcd, with data that this store would not read: it would begin empty; "+
				"start tenure-cluster serve with --member and --cluster, or give --data with another directory", where))
		}
		var file *journal.File
		if file, err = journal.Open(where, journal.Options{Logger: process.logger}); err != nil {
			return err
		}
		defer func() { err = cmp.Or(err, file.Close()) }()
		data = file
	}
	store, err := open(cmd.Context(), where, data, nil)
	if err == nil {
		err = process.run(cmd.Context(), reloads, store.Serve)
	} else if cmd.Context().Err() != nil {
		err = nil // interrupted while the data was loaded
	}
	return stopped(cmd, err)
}

// A servedStore is a store that is a function.
type servedStore func(context.Context) error

// Serve implements standby.Store.
func (s servedStore) Serve(ctx context.Context) error { return s(ctx) }

// withMemory calls serve, and returns unused memory to the system meanwhile.
func withMemory(ctx context.Context, serve func(context.Context) error, held func() int64) error {
	working, cancel := context.WithCancel(ctx)
	var tasks sync.WaitGroup
	tasks.Go(func() { memory.Release(working, held) })
	err := serve(ctx)
	cancel()
	tasks.Wait()
	return err
}

// stopped ends the output of a store that was asked to stop, if there was no error.
func stopped(cmd *cobra.Command, err error) error {
	if err == nil {
		fmt.Fprintln(cmd.OutOrStdout(), "stopped")
	}
	return err
}

// dataDirectory returns where the data is: what --data says, or the default, which is folder in a
// directory that programs share.
func dataDirectory(dir, folder string) (string, error) {
	if dir != "" {
		return filepath.Abs(dir)
	}
	if dirs := filepath.SplitList(os.Getenv("STATE_DIRECTORY")); len(dirs) > 0 && filepath.IsAbs(dirs[0]) {
		return dirs[0], nil // of several, systemd names the first one first
	}
	state, err := userStateDirectory()
	if err != nil {
		return "", usage(fmt.Errorf("no directory for the data: %w; give --data, or --memory to keep nothing", err))
	}
	return filepath.Join(state, folder), nil
}

// userStateDirectory returns where programs keep what must outlive them and is neither
// configuration nor cache: package os knows only these two.
func userStateDirectory() (string, error) {
	if runtime.GOOS == "windows" {
		return os.UserCacheDir() // %LocalAppData%
	}
	// The XDG Base Directory Specification: a relative path is to be ignored.
	if dir := os.Getenv("XDG_STATE_HOME"); filepath.IsAbs(dir) {
		return dir, nil
	}
	home, err := os.UserHomeDir()
	return filepath.Join(home, ".local", "state"), err
}

// directoryFlag adds the flag --data, with usage and what dataDirectory takes by default.
func directoryFlag(flags *pflag.FlagSet, dir *string, usage, folder string) {
	flags.StringVar(dir, "data", "", usage+"; default: $STATE_DIRECTORY, else "+folder+" in the user's directory for state")
}

// BytesFlag adds a flag for a number of bytes, like 512MiB. What is at the pointer is the default.
func BytesFlag(flags *pflag.FlagSet, at *int64, name, usage string) {
	settings.Bytes(flags, at, name, usage)
}

// DirectoryFlag adds the flag --data, for Directory. usage says what is in the directory.
func DirectoryFlag(flags *pflag.FlagSet, dir *string, usage string) {
	directoryFlag(flags, dir, usage, serveFolder)
}

// Directory returns where a store keeps its data: dir, or the default if that is empty.
func Directory(dir string) (string, error) { return dataDirectory(dir, serveFolder) }

// goroutineMemory is roughly the memory that one goroutine of a connection accounts for.
const goroutineMemory = 16 << 10

// heldBy estimates how many bytes a store and the goroutines of connections hold.
func heldBy(u statestore.Usage) int64 {
	return u.Bytes + u.WatchBytes + u.DedupBytes + int64(runtime.NumGoroutine())*goroutineMemory
}
