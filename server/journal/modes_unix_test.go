//go:build unix

package journal_test

import (
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/tenurelock/tenure/internal/await"
	"github.com/tenurelock/tenure/server/journal"
	"github.com/tenurelock/tenure/statestore"
)

func TestTheFilesAreForTheirOwnerOnly(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "new")
	former := syscall.Umask(0)
	defer syscall.Umask(former)
	file := open(t, dir)
	commit(t, file, statestore.Group{key("a", "1")})
	entries, err := os.ReadDir(dir)
	if err != nil || len(entries) != 4 {
		t.Errorf("the directory has %v, error %v", entries, err)
	}
	for _, entry := range entries {
		if info, err := entry.Info(); err != nil || info.Mode().Perm() != 0o600 {
			t.Errorf("%s has mode %v, error %v", entry.Name(), info.Mode(), err)
		}
	}
	if info, err := os.Stat(dir); err != nil || info.Mode().Perm() != 0o700 {
		t.Errorf("the directory has mode %v, error %v", info.Mode(), err)
	}
}

// Opening a named pipe would wait for ever.
func TestANamedPipeInTheDirectoryIsRefused(t *testing.T) {
	for _, name := range []string{"tenure.lock", "tenure.db"} {
		dir := t.TempDir()
		if err := syscall.Mkfifo(filepath.Join(dir, name), 0o600); err != nil {
			t.Fatal(err)
		}
		for action, do := range map[string]func() error{
			"Open":  func() error { _, err := journal.Open(dir, journal.Options{}); return err },
			"Check": func() error { _, err := journal.Check(t.Context(), dir, nil); return err },
			"Backup": func() error {
				_, err := journal.Backup(t.Context(), dir, filepath.Join(t.TempDir(), "backup"), nil)
				return err
			},
		} {
			if err := await.Result(do); err == nil {
				t.Errorf("%s with a pipe as %s: no error", action, name)
			}
		}
	}
}
