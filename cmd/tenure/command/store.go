package command

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"runtime"
	"slices"

	"github.com/spf13/pflag"

	"github.com/tenurelock/tenure/cmd/tenure/internal/settings"
	"github.com/tenurelock/tenure/server/journal"
	"github.com/tenurelock/tenure/statestore"
)

// storeFlags are the flags that serve and attach share: the rules, the limits and the data of the store.
type storeFlags struct {
	statestore.Options
	dialect string
	data    dataFlags
}

const strictHelp = `--strict closes gaps that the protocol leaves open: the fence of a protected
key survives its deletion and expiry, a fencing token above every version that
was issued is refused, and keys under a --lock-prefix need an expiry and a
value that is the client id, a colon and a text without a colon.`

// dialects are the names of the dialects, in the order of their values; the first one is the default.
var dialects = []string{statestore.Auto.String(), statestore.Deployed.String(), statestore.Documented.String()}

// register adds the flags. noLimit is what the zero of --max-keys and --max-bytes means; folder is
// where the data is by default, in the user's directory for state.
func (s *storeFlags) register(flags *pflag.FlagSet, noLimit, folder string) {
	s.data.register(flags, folder)
	s.dialect = dialects[0]
	flags.BoolVar(&s.Strict, "strict", false, "refuse requests that weaken fences, see above")
	flags.StringSliceVar(&s.LockPrefixes, "lock-prefix", nil, "prefix of the keys that are locks, with --strict; may be repeated")
	flags.DurationVar(&s.HoldOff, "hold-off", 0, "how long a store that starts without data, or from a restored backup, grants no lease, so that leases of the previous store expire first; give it the longest TTL in use")
	flags.IntVar(&s.MaxKeys, "max-keys", 0, "how many keys the store may hold; 0 means "+noLimit)
	settings.Bytes(flags, &s.MaxBytes, "max-bytes", "how many bytes keys, values and fencing tokens may have together; 0 means "+noLimit)
	flags.IntVar(&s.MaxValue, "max-value", 0, "how many bytes a value may have; 0 means only the limit of packets applies")
	flags.IntVar(&s.MaxWatches, "max-watches", 10_000, "how many keys a client may watch")
	flags.IntVar(&s.DedupWindow, "dedup-window", statestore.DefaultDedupWindow, "how many of its last requests are kept for each client, so that none is applied twice")
	settings.Choice(flags, &s.dialect, "dialect", dialects, "how to write replies where deployed stores differ from their documentation; auto: as each client does")
}

// check refuses values that no flag type refuses.
func (s *storeFlags) check() error {
	if s.HoldOff < 0 {
		return usage(fmt.Errorf("--hold-off %v is negative; 0 means none", s.HoldOff))
	}
	for name, value := range map[string]int{"max-keys": s.MaxKeys, "max-value": s.MaxValue, "max-watches": s.MaxWatches} {
		if value < 0 {
			return usage(fmt.Errorf("--%s %d is negative; 0 means no limit", name, value))
		}
	}
	if len(s.LockPrefixes) > 0 && !s.Strict {
		return usage(errors.New("--lock-prefix needs --strict"))
	}
	return usage(s.data.check())
}

// options returns what the flags say.
func (s *storeFlags) options() statestore.Options {
	options := s.Options
	options.Dialect = statestore.Dialect(slices.Index(dialects, s.dialect))
	return options
}

// warnOfMemory logs what a store does not promise, if it is in memory.
func (s *storeFlags) warnOfMemory(logger *slog.Logger) {
	const forgets = "the store is in memory: a restart forgets every key, lease and fence"
	switch {
	case !s.data.memory:
	case s.HoldOff > 0:
		logger.Warn(forgets+"; it grants no lease during the hold-off", "hold-off", s.HoldOff)
	default:
		logger.Warn(forgets + ", and may then grant a lease before its previous holder has stopped; " +
			"--hold-off with the longest TTL in use prevents that, and so does --data")
	}
}

// dataFlags are the flags that say where a store keeps its data.
type dataFlags struct {
	dir    string
	memory bool
	flags  *pflag.FlagSet
}

const (
	dataHelp = `The store keeps its keys, leases and fences on disk, in the directory of --data: it
answers a request after the disk has what the request changed. After a restart it
goes on with all of it, and each lease gets its whole TTL again. One process at a
time can use the directory. docs/operate.md says more.

With --memory a restart forgets every key, lease and fence. --hold-off keeps a
store that starts without data from granting leases until the holders of earlier
ones must have noticed: give it the longest TTL in use.
`
	// inMemory is what the first line says in place of a directory.
	inMemory = "memory only"
)

func (d *dataFlags) register(flags *pflag.FlagSet, folder string) {
	d.flags = flags
	directoryFlag(flags, &d.dir, "directory for the data, made if it is missing", folder)
	flags.BoolVar(&d.memory, "memory", false, "keep the data in memory: a restart forgets every key, lease and fence")
}

// directoryFlag adds the flag --data, with usage and what dataFlags.directory takes by default.
func directoryFlag(flags *pflag.FlagSet, dir *string, usage, folder string) {
	flags.StringVar(dir, "data", "", usage+"; default: $STATE_DIRECTORY, else "+folder+" in the user's directory for state")
}

// check refuses flags that contradict each other.
func (d *dataFlags) check() error {
	switch {
	case d.memory && d.flags.Changed("data"):
		return errors.New("--memory keeps nothing, and --data says where to keep it; give one of them")
	case d.flags.Changed("data") && d.dir == "":
		return errors.New("--data is empty; give a directory, or --memory to keep nothing")
	}
	return nil
}

// open opens the journal in the directory of the flags, and returns what the first line says about
// it. Without an error, the journal is nil for a store in memory; the caller closes any other.
func (d *dataFlags) open(folder string, logger *slog.Logger) (data *journal.File, where string, err error) {
	if d.memory {
		return nil, inMemory, nil
	}
	if where, err = d.directory(folder); err != nil {
		return nil, "", err
	}
	if hasMember(where) {
		return nil, "", usage(fmt.Errorf("%s has a member of etcd, with the data of a replicated store, which this one would not read: it would begin empty; "+
			"start tenure-cluster serve with --member and --cluster, or give --data with another directory", where))
	}
	if data, err = journal.Open(where, journal.Options{Logger: logger}); err != nil {
		if inFile(where) {
			err = usage(err) // until the flag is another one
		}
		return nil, "", err
	}
	return data, where, nil
}

// hasMember reports whether a directory is one of --data with a member of etcd, or a part of its data. A member that
// has not found the others yet has only its name.
func hasMember(dir string) bool {
	parts := []string{"member/name", "member/etcd", "etcd/member", "member/wal"}
	return slices.ContainsFunc(parts, func(part string) bool {
		_, err := os.Stat(filepath.Join(dir, filepath.FromSlash(part)))
		return err == nil
	})
}

// inFile reports whether a path cannot be a directory, because it or a part of it is a file.
func inFile(path string) bool {
	for ; path != filepath.Dir(path); path = filepath.Dir(path) {
		if info, err := os.Stat(path); err == nil {
			return !info.IsDir()
		}
	}
	return false
}

// closeJournal closes a journal, and sets err if that is the first failure.
func closeJournal(data *journal.File, err *error) {
	if failure := data.Close(); *err == nil {
		*err = failure
	}
}

// directory returns where the data is: what --data says, or the default, which is folder in a
// directory that programs share.
func (d *dataFlags) directory(folder string) (string, error) {
	if d.dir != "" {
		return filepath.Abs(d.dir)
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
	switch runtime.GOOS {
	case "windows":
		return os.UserCacheDir() // %LocalAppData%
	case "darwin", "ios":
		return os.UserConfigDir() // ~/Library/Application Support
	}
	// The XDG Base Directory Specification: a relative path is to be ignored.
	if dir := os.Getenv("XDG_STATE_HOME"); filepath.IsAbs(dir) {
		return dir, nil
	}
	home, err := os.UserHomeDir()
	if err == nil && !filepath.IsAbs(home) {
		err = errors.New("$HOME is a relative path")
	}
	return filepath.Join(home, ".local", "state"), err
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
func Directory(dir string) (string, error) {
	return (&dataFlags{dir: dir}).directory(serveFolder)
}
