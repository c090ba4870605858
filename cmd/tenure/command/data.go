package command

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"runtime"

	"github.com/spf13/pflag"

	"github.com/tenurelock/tenure/server/journal"
)

// dataFlags are the flags that say where a store keeps its data.
type dataFlags struct {
	dir    string
	memory bool
	flags  *pflag.FlagSet
}

const (
	dataHelp = `The store keeps its keys, leases and fences on disk: it answers a request after
the disk has what the request changed. After a restart it goes on with all of
it, and each lease gets its whole TTL again. --data names the directory. Without
it the store uses $STATE_DIRECTORY, which systemd sets, or else a directory below
the user's directory for state; the first line on standard output says which. One
process at a time can use it. docs/operate.md says what is promised, and how to
back up.

With --memory the store is in memory: after a restart it knows no key, no lease
and no fence. Tenures that it granted end as soon as their holders notice.
--hold-off keeps a store that starts without data from granting leases until
they must have noticed: give it the longest TTL in use.
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
	if HasMember(where) {
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

// HasMember reports whether a directory is one of --data with a member of etcd, or a part of its data.
func HasMember(dir string) bool {
	for _, part := range []string{"member/etcd", "etcd/member", "member/wal"} {
		if info, err := os.Stat(filepath.Join(dir, filepath.FromSlash(part))); err == nil && info.IsDir() {
			return true
		}
	}
	return false
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
