//go:build unix

package journal_test

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/tenurelock/tenure/internal/await"
	"github.com/tenurelock/tenure/internal/prerequisite"
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
	if err != nil || len(entries) != 3 {
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
	// What only reads a directory makes no lock: one of root would keep the store out.
	lock := filepath.Join(dir, "tenure.lock")
	if err := errors.Join(file.Close(), os.Remove(lock)); err != nil {
		t.Fatal(err)
	}
	if _, err := journal.Check(t.Context(), dir); err != nil {
		t.Error(err)
	}
	if _, err := os.Lstat(lock); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("Check left a lock: %v", err)
	}
}

// Opening a named pipe would wait for ever.
func TestANamedPipeInTheDirectoryIsRefused(t *testing.T) {
	for _, name := range []string{"tenure.lock", "tenure.log"} {
		dir := t.TempDir()
		if err := syscall.Mkfifo(filepath.Join(dir, name), 0o600); err != nil {
			t.Fatal(err)
		}
		for action, do := range map[string]func() error{
			"Open":  func() error { _, err := journal.Open(dir, journal.Options{}); return err },
			"Check": func() error { _, err := journal.Check(t.Context(), dir); return err },
			"Backup": func() error {
				_, err := journal.Backup(t.Context(), dir, filepath.Join(t.TempDir(), "backup"))
				return err
			},
		} {
			if err := await.Result(do); err == nil {
				t.Errorf("%s with a pipe as %s: no error", action, name)
			}
		}
	}
}

// Another user who can change the data, or the place where it is, could make a restart believe
// anything.
func TestADirectoryThatOthersCanChangeIsRefusedOrWarnedAbout(t *testing.T) {
	for _, test := range []struct {
		dir, file     fs.FileMode
		refused, says string
	}{
		{0o700, 0o600, "", ""},
		{0o755, 0o600, "", ""},
		{0o500, 0o600, "", ""}, // refused to all but root, for another reason
		{0o700, 0o644, "", ""}, // others cannot enter the directory
		{0o777, 0o600, "all users may write to it (mode 0777); chmod go-w it, or use a directory in it", ""},
		{0o702, 0o600, "all users may write to it", ""},
		{0o777 | fs.ModeSticky, 0o600, "all users may write to it", ""},
		{0o770, 0o600, "", "its group may write to it (mode 0770), and replace the data; chmod g-w it"},
		{0o755, 0o644, "", "other users may read it (mode 0644), and it has the values of all keys; chmod 600 it"},
		{0o750, 0o640, "", "other users may read it (mode 0640)"},
		{0o755, 0o666, "all users may write to it (mode 0666); chmod 600 it", ""},
	} {
		t.Run(fmt.Sprintf("%v %v", test.dir, test.file), func(t *testing.T) {
			if test.dir == 0o500 && os.Geteuid() != 0 {
				prerequisite.Missing(t, "only root has the right to write there: run the tests as root")
			}
			dir := filled(t)
			if err := errors.Join(os.Chmod(filepath.Join(dir, "tenure.log"), test.file), os.Chmod(dir, test.dir)); err != nil {
				t.Fatal(err)
			}
			defer os.Chmod(dir, 0o700)
			var log bytes.Buffer
			file, err := journal.Open(dir, journal.Options{Logger: slog.New(slog.NewTextHandler(&log, nil))})
			if test.refused != "" {
				if !errors.Is(err, journal.ErrUnsafe) || !strings.Contains(err.Error(), test.refused) || !strings.Contains(err.Error(), dir) {
					t.Errorf("Open has error %v, want one with %q", err, test.refused)
				}
			} else if err != nil {
				t.Errorf("Open has error %v", err)
			}
			if file != nil {
				shut(t, file)
			}
			if got := log.String(); test.says == "" && got != "" || !strings.Contains(got, test.says) || !strings.Contains(got, dir) && got != "" {
				t.Errorf("the log is %q, want %q", got, test.says)
			}
			// The rights do no harm to reading, which says what a store would refuse.
			report, err := journal.Check(t.Context(), dir)
			if want := test.refused + test.says; err != nil || (want == "") != (len(report.Warnings) == 0) || !strings.Contains(strings.Join(report.Warnings, " "), want) {
				t.Errorf("Check has the warnings %q, error %v", report.Warnings, err)
			}
		})
	}
}

func TestADirectoryOfAnotherUserIsRefused(t *testing.T) {
	if os.Geteuid() != 0 {
		prerequisite.Missing(t, "only root can give a file to another user: run the tests as root")
	}
	for _, name := range []string{".", "tenure.log"} {
		dir := filled(t)
		if err := os.Chown(filepath.Join(dir, name), 65534, -1); err != nil {
			prerequisite.Missing(t, err.Error()) // a container may withhold this right
		}
		_, err := journal.Open(dir, journal.Options{})
		if !errors.Is(err, journal.ErrUnsafe) || !strings.Contains(err.Error(), "it belongs to user 65534, and this process runs as user 0; run it as user 65534, or chown") {
			t.Errorf("%s: Open has error %v", name, err)
		}
		if _, err := journal.Check(t.Context(), dir); err != nil {
			t.Errorf("%s: Check has error %v", name, err)
		}
	}
	// A restore is for the user who gets the directory afterwards.
	dir := t.TempDir()
	if err := os.Chown(dir, 65534, -1); err != nil {
		t.Fatal(err)
	}
	if _, err := journal.RestoreBackup(t.Context(), filepath.Join(filled(t), "tenure.log"), dir); err != nil {
		t.Error(err)
	}
}

// A link leads to a file that is not of the journal: it is neither read, nor written, nor created.
func TestALinkInPlaceOfAFileIsNotFollowed(t *testing.T) {
	backup := filepath.Join(filled(t), "tenure.log")
	for _, name := range []string{"tenure.log", "tenure.log.new", "tenure.lock", "tenure.holder"} {
		for _, victim := range []string{"", "precious"} {
			t.Run(name+" "+victim, func(t *testing.T) {
				dir, target := t.TempDir(), filepath.Join(t.TempDir(), "target")
				if victim != "" {
					write(t, target, []byte(victim))
				}
				for _, use := range []func() error{
					func() error { _, err := journal.Check(t.Context(), dir); return err },
					func() error { _, err := journal.RestoreBackup(t.Context(), backup, dir); return err },
					func() error {
						file, err := journal.Open(dir, journal.Options{})
						if err == nil {
							commit(t, file, statestore.Group{key("a", "1")})
							shut(t, file)
						} else if !errors.Is(err, journal.ErrUnsafe) || !strings.Contains(err.Error(), filepath.Join(dir, name)) {
							t.Errorf("Open has error %v", err)
						}
						return err
					},
				} {
					_ = os.RemoveAll(dir)
					if err := errors.Join(os.Mkdir(dir, 0o700), os.Symlink(target, filepath.Join(dir, name))); err != nil {
						t.Fatal(err)
					}
					err := use()
					if err == nil && (strings.HasSuffix(name, ".log") || strings.HasSuffix(name, ".lock")) || err != nil &&
						!errors.Is(err, journal.ErrUnsafe) && !errors.Is(err, journal.ErrNoData) && !errors.Is(err, journal.ErrExists) {
						t.Errorf("the error is %v", err)
					}
					if content, err := os.ReadFile(target); string(content) != victim || (err == nil) != (victim != "") {
						t.Fatalf("the target of the link has %q, error %v", content, err)
					}
				}
			})
		}
	}
}

// The user may name a backup, or the directory, by a link.
func TestALinkToADirectoryOrABackupIsFollowed(t *testing.T) {
	dir := filled(t)
	link := filepath.Join(t.TempDir(), "link")
	if err := os.Symlink(dir, link); err != nil {
		t.Fatal(err)
	}
	load(t, open(t, link))
	backup := filepath.Join(t.TempDir(), "latest")
	if err := os.Symlink(filepath.Join(filled(t), "tenure.log"), backup); err != nil {
		t.Fatal(err)
	}
	if _, err := journal.Check(t.Context(), backup); err != nil {
		t.Error(err)
	}
	if _, err := journal.RestoreBackup(t.Context(), backup, filepath.Join(t.TempDir(), "new")); err != nil {
		t.Error(err)
	}
}
