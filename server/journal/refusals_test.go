package journal_test

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/fnv"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"go.etcd.io/bbolt"

	"github.com/tenurelock/tenure/internal/await"
	"github.com/tenurelock/tenure/internal/prerequisite"
	"github.com/tenurelock/tenure/server/journal"
	"github.com/tenurelock/tenure/statestore"
)

// reseal makes the checksum of a meta page right again.
func reseal(page []byte) {
	sum := fnv.New64a()
	sum.Write(page[16:72])
	binary.NativeEndian.PutUint64(page[72:], sum.Sum64())
}

func TestOpenRefusesWhatIsNotItsFile(t *testing.T) {
	sound, err := os.ReadFile(filepath.Join(filled(t), "tenure.db"))
	if err != nil {
		t.Fatal(err)
	}
	change := func(changed func(content []byte) []byte) []byte { return changed(append([]byte(nil), sound...)) }
	inAbout := func(entry, value string) func(*bbolt.Tx) error {
		return func(tx *bbolt.Tx) error { return tx.Bucket([]byte("tenure")).Put([]byte(entry), []byte(value)) }
	}
	for _, test := range []struct {
		name    string
		content []byte
		edit    func(*bbolt.Tx) error // with bbolt
		is      error
		says    string
	}{
		{"an empty file", nil, nil, journal.ErrDamaged, "the file is empty"},
		{"a text", []byte("hello"), nil, journal.ErrForeign, "use another directory"},
		{"a longer text", []byte(strings.Repeat("hello ", 10_000)), nil, journal.ErrForeign, "use another directory"},
		{"zeros", make([]byte, 1<<16), nil, journal.ErrForeign, "use another directory"},
		{"half of the file", sound[:len(sound)/2], nil, journal.ErrDamaged, "it was cut short"},
		{"the first page", sound[:4096], nil, journal.ErrDamaged, ""},
		{"the first bytes", sound[:64], nil, journal.ErrForeign, ""},
		{"a newer bbolt", change(func(c []byte) []byte {
			for _, page := range [][]byte{c, c[4096:]} {
				binary.NativeEndian.PutUint32(page[20:], 3)
				reseal(page)
			}
			return c
		}), nil, journal.ErrNewer, "use that version or a newer one"},
		{"larger pages", change(func(c []byte) []byte {
			for _, page := range [][]byte{c, c[4096:]} {
				binary.NativeEndian.PutUint32(page[24:], 16384)
				reseal(page)
			}
			return c
		}), nil, journal.ErrForeign, "16384 bytes"},
		{"a meta page of zeros", change(func(c []byte) []byte { clear(c[:4096]); return c }), nil, journal.ErrDamaged, "the last commit may be missing"},
		{"another meta page of zeros", change(func(c []byte) []byte { clear(c[4096:8192]); return c }), nil, journal.ErrDamaged, "the last commit may be missing"},
		{"both meta pages damaged", change(func(c []byte) []byte { c[40]++; c[4096+40]++; return c }), nil, journal.ErrDamaged, "checksum"},
		{"another program's bbolt file", sound, func(tx *bbolt.Tx) error { return tx.DeleteBucket([]byte("tenure")) }, journal.ErrForeign, "another program"},
		{"a newer format", sound, inAbout("format", "\x00\x00\x00\x02"), journal.ErrNewer, "format 2"},
		{"no format", sound, inAbout("format", "\x00\x00\x00\x00"), journal.ErrDamaged, "which format"},
		{"a format of one byte", sound, inAbout("format", "\x01"), journal.ErrDamaged, ""},
		{"no totals", sound, inAbout("totals", ""), journal.ErrDamaged, "totals"},
		{"no records", sound, func(tx *bbolt.Tx) error { return tx.DeleteBucket([]byte("records")) }, journal.ErrDamaged, "no records"},
		{"a record that no commit wrote", sound, func(tx *bbolt.Tx) error { return tx.Bucket([]byte("records")).Put([]byte("x"), []byte("y")) }, journal.ErrDamaged, "the last commit wrote 6"},
		{"a record that is missing", sound, func(tx *bbolt.Tx) error { return tx.Bucket([]byte("records")).Delete([]byte("ka")) }, journal.ErrDamaged, "the last commit wrote 6"},
		{"a record of another commit", sound, func(tx *bbolt.Tx) error { return tx.Bucket([]byte("records")).Put([]byte("ka"), key("a", "2").Value) }, journal.ErrDamaged, "digest"},
		{"a bucket among the records", sound, func(tx *bbolt.Tx) error {
			_, err := tx.Bucket([]byte("records")).CreateBucket([]byte("x"))
			return err
		}, journal.ErrDamaged, "bucket"},
	} {
		t.Run(test.name, func(t *testing.T) {
			dir := t.TempDir()
			path := filepath.Join(dir, "tenure.db")
			if err := os.WriteFile(path, test.content, 0o600); err != nil {
				t.Fatal(err)
			}
			if test.edit != nil {
				db, err := bbolt.Open(path, 0o600, &bbolt.Options{NoFreelistSync: true})
				if err != nil {
					t.Fatal(err)
				}
				if err := errors.Join(db.Update(test.edit), db.Close()); err != nil {
					t.Fatal(err)
				}
			}
			file, err := journal.Open(dir, journal.Options{})
			if err == nil {
				_, err = file.Load(t.Context(), func(statestore.Record) error { return nil })
				if again := file.Commit(t.Context(), nil); !errors.Is(again, err) {
					t.Errorf("Commit after Load has error %v, want %v", again, err)
				}
				if err := file.Close(); err != nil {
					t.Error(err)
				}
			}
			if !errors.Is(err, test.is) || !strings.Contains(err.Error(), path) || !strings.Contains(err.Error(), test.says) || strings.Count(err.Error(), "journal: ") != 1 {
				t.Errorf("the error is %v; want one that is %q, names %s, and says %q", err, test.is, path, test.says)
			}
			if _, err := journal.Check(t.Context(), dir, nil); !errors.Is(err, test.is) {
				t.Errorf("Check has error %v", err)
			}
			if after, _ := os.ReadFile(path); test.edit == nil && string(after) != string(test.content) {
				t.Error("the file was changed")
			}
			if _, err := os.Stat(filepath.Join(dir, "tenure.holder")); !errors.Is(err, fs.ErrNotExist) {
				t.Errorf("the name of the holder was left: %v", err)
			}
		})
	}
}

// The state before the last commit is sound, and says so: restore accepts it.
func TestAFileWithoutItsLastCommitCanBeRestored(t *testing.T) {
	dir := filled(t)
	path := filepath.Join(dir, "tenure.db")
	content, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	newest := content
	if binary.NativeEndian.Uint64(content[4096+64:]) > binary.NativeEndian.Uint64(content[64:]) {
		newest = content[4096:]
	}
	clear(newest[:4096])
	if err := os.WriteFile(path, content, 0o600); err != nil {
		t.Fatal(err)
	}
	_, err = journal.Open(dir, journal.Options{})
	if !errors.Is(err, journal.ErrDamaged) || !strings.Contains(err.Error(), "tenure restore") {
		t.Fatalf("Open has error %v", err)
	}
	report, err := journal.RestoreBackup(t.Context(), path, filepath.Join(t.TempDir(), "new"), nil)
	if err != nil || report.Keys != 0 {
		t.Errorf("RestoreBackup has report %+v, error %v; want the state before the only commit", report, err)
	}
}

func TestOpenRefusesWhereItCannotWrite(t *testing.T) {
	loop := filepath.Join(t.TempDir(), "loop")
	if err := os.Symlink(loop, loop); err != nil {
		prerequisite.Missing(t, err.Error()) // Windows asks for a right
	}
	plain := filepath.Join(t.TempDir(), "plain")
	if err := os.WriteFile(plain, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	linked := t.TempDir()
	if err := os.Symlink(plain, filepath.Join(linked, "tenure.db")); err != nil {
		t.Fatal(err)
	}
	folder := t.TempDir()
	if err := os.Mkdir(filepath.Join(folder, "tenure.db"), 0o700); err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct{ name, dir, says string }{
		{"a symbolic link to itself", loop, "a symbolic link points to itself"},
		{"a file", plain, "give a directory"},
		{"below a file", filepath.Join(plain, "below"), "give a directory"},
		{"a symbolic link in place of the file", linked, "a symbolic link"},
		{"a directory in place of the file", folder, "not a regular file"},
	} {
		_, err := journal.Open(test.dir, journal.Options{})
		if err == nil || !strings.Contains(err.Error(), test.says) || !strings.Contains(err.Error(), test.dir) {
			t.Errorf("%s: Open has error %v, want one with %q", test.name, err, test.says)
		}
	}
}

func TestOpenRefusesWithoutRights(t *testing.T) {
	if os.Geteuid() == 0 || runtime.GOOS == "windows" {
		t.Skip("this user may do everything: another test runs this one as another user")
	}
	testWithoutRights(t)
}

func testWithoutRights(t *testing.T) {
	dir := filled(t)
	for _, test := range []struct {
		path string
		mode fs.FileMode
	}{
		{filepath.Join(dir, "tenure.db"), 0},
		{filepath.Join(dir, "tenure.db"), 0o400},
		{filepath.Join(dir, "tenure.lock"), 0},
		{dir, 0},
		{dir, 0o500},
	} {
		info, err := os.Stat(test.path)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(test.path, test.mode); err != nil {
			t.Fatal(err)
		}
		_, err = journal.Open(dir, journal.Options{})
		if !errors.Is(err, fs.ErrPermission) || !strings.Contains(err.Error(), "the rights") {
			t.Errorf("%s with mode %v: Open has error %v", test.path, test.mode, err)
		}
		if err := os.Chmod(test.path, info.Mode()); err != nil {
			t.Fatal(err)
		}
	}
	open(t, dir)
}

// What a process left that was killed refuses nothing.
func TestWhatADeadProcessLeftIsRemoved(t *testing.T) {
	t.Parallel()
	dir := filled(t)
	dead := exec.Command(os.Args[0], "-test.run=^$")
	if err := dead.Run(); err != nil {
		t.Fatal(err)
	}
	private := filepath.Join(t.TempDir(), "tenure-socket-1")
	if err := os.Mkdir(private, 0o700); err != nil {
		t.Fatal(err)
	}
	socket := filepath.Join(private, "tenure.sock")
	for name, content := range map[string]string{
		filepath.Join(dir, "tenure.db.new"): "half a copy",
		filepath.Join(dir, "tenure.sock"):   "",
		filepath.Join(dir, "tenure.lock"):   "whatever an older version wrote: 1",
		filepath.Join(dir, "tenure.holder"): fmt.Sprintf(`{"pid":%d,"host":"","socket":%q}`, dead.Process.Pid, socket),
		socket:                              "",
	} {
		if err := os.WriteFile(name, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	file := open(t, dir)
	load(t, file)
	if _, err := os.Stat(filepath.Join(dir, "tenure.db.new")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("tenure.db.new is still there: %v", err)
	}
	if _, err := os.Stat(private); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the directory of the socket is still there: %v", err)
	}
	if err := file.Close(); err != nil {
		t.Fatal(err)
	}
	// A reader that left no name, beside a stale name of another process.
	content := fmt.Sprintf(`{"pid":%d,"host":%q}`, dead.Process.Pid, must(os.Hostname()))
	if err := os.WriteFile(filepath.Join(dir, "tenure.holder"), []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	unlock := lockFile(t, filepath.Join(dir, "tenure.lock"))
	_, err := journal.Open(dir, journal.Options{})
	if !errors.Is(err, journal.ErrInUse) || strings.Contains(err.Error(), fmt.Sprint(dead.Process.Pid)) {
		t.Errorf("Open has error %v; it must not name the dead process", err)
	}
	content = fmt.Sprintf(`{"pid":%d,"host":"elsewhere"}`, dead.Process.Pid)
	if err := os.WriteFile(filepath.Join(dir, "tenure.holder"), []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := journal.Open(dir, journal.Options{}); err == nil || !strings.Contains(err.Error(), fmt.Sprintf("process %d on host elsewhere", dead.Process.Pid)) {
		t.Errorf("Open has error %v; want the host", err)
	}
	for name, content := range map[string]string{"an empty name": "", "no JSON": "1", "no pid": "{}"} {
		if err := os.WriteFile(filepath.Join(dir, "tenure.holder"), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := journal.Open(dir, journal.Options{}); !errors.Is(err, journal.ErrInUse) {
			t.Errorf("%s: Open has error %v", name, err)
		}
	}
	unlock()
	open(t, dir)
}

func must[T any](value T, err error) T {
	if err != nil {
		panic(err)
	}
	return value
}

// A path that is too long for a socket does not end backups.
func TestABackupFromALongPath(t *testing.T) {
	dir := filepath.Join(t.TempDir(), strings.Repeat("long/", 30))
	file := open(t, dir)
	commit(t, file, statestore.Group{key("a", "1")})
	report, err := journal.Backup(t.Context(), dir, filepath.Join(t.TempDir(), "backup"), nil)
	if err != nil || !report.Online || report.Keys != 1 {
		t.Errorf("Backup has report %+v, error %v", report, err)
	}
	if err := file.Close(); err != nil {
		t.Fatal(err)
	}
	if left, _ := filepath.Glob(filepath.Join(os.TempDir(), "tenure-socket-*", "*")); len(left) > 0 {
		t.Logf("sockets of others: %q", left)
	}
}

// The process before a restart may need a moment to end.
func TestOpenWaitsForAProcessThatEnds(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	first := open(t, dir)
	opened := make(chan error, 1)
	go func() {
		file, err := journal.Open(dir, journal.Options{})
		if err == nil {
			err = file.Close()
		}
		opened <- err
	}()
	time.Sleep(100 * time.Millisecond) // it fails only after a second
	if err := first.Close(); err != nil {
		t.Fatal(err)
	}
	if err := await.Receive(opened); err != nil {
		t.Error(err)
	}
}

// A tool for bbolt files locks the file, not the directory.
func TestAFileThatAnotherProgramHasOpenIsRefused(t *testing.T) {
	t.Parallel()
	dir := filled(t)
	db, err := bbolt.Open(filepath.Join(dir, "tenure.db"), 0o600, &bbolt.Options{ReadOnly: true})
	if err != nil {
		t.Fatal(err)
	}
	file := open(t, dir)
	_, err = file.Load(t.Context(), func(statestore.Record) error { return nil })
	if !errors.Is(err, journal.ErrInUse) || !strings.Contains(err.Error(), "bbolt") {
		t.Errorf("Load has error %v", err)
	}
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
}

func TestRestoreSaysThatADirectoryIsNoBackup(t *testing.T) {
	dir := filled(t)
	if _, err := journal.RestoreBackup(t.Context(), dir, filepath.Join(t.TempDir(), "new"), nil); err == nil || !strings.Contains(err.Error(), "give the file") && runtime.GOOS != "windows" {
		t.Errorf("RestoreBackup has error %v", err)
	}
}
