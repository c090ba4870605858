package fencing_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/tenurelock/tenure/fencing"
	"github.com/tenurelock/tenure/hlc"
	"github.com/tenurelock/tenure/internal/await"
	"github.com/tenurelock/tenure/internal/prerequisite"
	"github.com/tenurelock/tenure/internal/testprocess"
)

func openStore(t *testing.T, path string) *fencing.FileStore {
	t.Helper()
	store, err := fencing.OpenFileStore(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := store.Close(); err != nil {
			t.Error(err)
		}
	})
	return store
}

func TestInvariant13ATokenInAFileStoreIsTheFloorAfterARestart(t *testing.T) {
	path := filepath.Join(t.TempDir(), "fence")
	for wall := int64(10); wall <= 30; wall += 10 {
		store := openStore(t, path)
		if got := store.Highest().Wall; got != wall-10 {
			t.Fatalf("the highest after a restart is %d, want %d", got, wall-10)
		}
		checker := newChecker(t, checkerOptions{Highest: store.Highest(), Persist: store.Persist})
		if err := checker.Admit(t.Context(), at(wall-11)); wall > 10 && !errors.Is(err, fencing.ErrStaleToken) {
			t.Errorf("%d after a restart: %v, want ErrStaleToken", wall-11, err)
		}
		for _, equal := range []int64{max(wall-10, 1), wall, wall} {
			if err := checker.Admit(t.Context(), at(equal)); err != nil {
				t.Errorf("%d: %v", equal, err)
			}
		}
		if got := store.Highest(); got != at(wall) {
			t.Errorf("the highest is %v, want %d", got, wall)
		}
		if err := store.Close(); err != nil {
			t.Error(err)
		}
	}
}

func TestAFileStoreRefusesALowerTokenByItself(t *testing.T) {
	path := filepath.Join(t.TempDir(), "fence")
	store := openStore(t, path)
	if err := store.Persist(t.Context(), at(5)); err != nil {
		t.Fatal(err)
	}
	var stale *fencing.StaleTokenError
	if err := store.Persist(t.Context(), at(4)); !errors.As(err, &stale) || *stale != (fencing.StaleTokenError{Resource: path, Token: at(4), Highest: at(5)}) {
		t.Errorf("a lower token: %v", err)
	}
	for _, test := range []struct {
		token hlc.Token
		want  error
	}{{hlc.Token{}, fencing.ErrMissingToken}, {hlc.Token{Wall: 9, Node: "a:b"}, hlc.ErrMalformed}} {
		if err := store.Persist(t.Context(), test.token); !errors.Is(err, test.want) {
			t.Errorf("%v: %v, want %v", test.token, err, test.want)
		}
	}
	cause := errors.New("no more time")
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(cause)
	for range 50 { // the choice between two open channels is random
		if err := store.Persist(ctx, at(6)); !errors.Is(err, cause) {
			t.Fatalf("%v, want the cause", err)
		}
	}
	// A checker that was given no Highest asks the store.
	if err := newChecker(t, checkerOptions{Persist: store.Persist}).Admit(t.Context(), at(4)); !errors.Is(err, fencing.ErrStaleToken) {
		t.Errorf("without Highest: %v, want ErrStaleToken", err)
	}
	if got := store.Highest(); got != at(5) {
		t.Errorf("the highest is %v", got)
	}
}

func TestAClosedFileStoreStoresNothing(t *testing.T) {
	path := filepath.Join(t.TempDir(), "fence")
	store := openStore(t, path)
	if err := errors.Join(store.Persist(t.Context(), at(1)), store.Close(), store.Close()); err != nil {
		t.Fatal(err)
	}
	if err := store.Persist(t.Context(), at(2)); !errors.Is(err, os.ErrClosed) {
		t.Errorf("%v, want os.ErrClosed", err)
	}
	if got := openStore(t, path).Highest(); got != at(1) {
		t.Errorf("the highest is %v", got)
	}
}

func TestOneFileStoreAtATimeHasAFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "fence")
	first := openStore(t, path)
	_, err := fencing.OpenFileStore(path)
	if !errors.Is(err, fencing.ErrInUse) || !strings.Contains(err.Error(), "close it, or stop its process") {
		t.Errorf("in the same process: %v, want ErrInUse", err)
	}
	if output := runChild(t, childCommand(t, path)); !strings.Contains(output, "in use") {
		t.Errorf("in another process: %s", output)
	}
	if err := first.Close(); err != nil {
		t.Fatal(err)
	}
	if output := runChild(t, childCommand(t, path)); !strings.HasSuffix(output, "durable 3\n") {
		t.Errorf("after it was closed: %s", output)
	}
}

func TestAFileStoreLeavesItsFileAndItsLockForTheirOwnerOnly(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("Windows has no mode bits")
	}
	dir := t.TempDir()
	path := filepath.Join(dir, "fence")
	if err := os.WriteFile(path+".new", []byte("what a crash left"), 0o644); err != nil {
		t.Fatal(err)
	}
	store := openStore(t, path)
	if err := store.Persist(t.Context(), at(1)); err != nil {
		t.Fatal(err)
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var found []string
	for _, entry := range entries {
		info, err := entry.Info()
		if err != nil {
			t.Fatal(err)
		}
		found = append(found, fmt.Sprint(entry.Name(), " ", info.Mode()))
	}
	if got, want := strings.Join(found, ", "), "fence -rw-------, fence.lock -rw-------"; got != want {
		t.Errorf("%s; want %s", got, want)
	}
	content, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	// The digest is what sha256sum prints of the two lines above.
	want := "tenure fence 1\nhighest 1:0:StateStore\nsha256 6e0aaf83da78536f821963bb0ada11526460d7ee324647980c3d596f21c945ac\n"
	if string(content) != want {
		t.Errorf("the file holds %q, want %q", content, want)
	}
}

func TestAFileStoreRefusesWhatIsNotItsFile(t *testing.T) {
	good := string(fencing.AppendRecord(nil, at(12345)))
	for name, content := range map[string]string{
		"empty":              "",
		"another text":       "1696374425000:0:StateStore",
		"another version":    strings.Replace(good, "fence 1", "fence 2", 1),
		"another token":      strings.Replace(good, "12345", "12344", 1),
		"a padded token":     strings.Replace(good, "12345", "012345", 1),
		"no token":           strings.Replace(good, "12345:0:StateStore", "", 1),
		"without its end":    good[:len(good)-1],
		"without its digest": good[:strings.Index(good, "sha256")],
		"twice":              good + good,
		"too long":           good + strings.Repeat("x", fencing.MaxRecord),
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "fence")
			if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
				t.Fatal(err)
			}
			_, err := fencing.OpenFileStore(path)
			if !errors.Is(err, fencing.ErrDamaged) || !strings.Contains(err.Error(), "then remove the file") || !strings.Contains(err.Error(), path) {
				t.Errorf("%v, want ErrDamaged, the path and a cure", err)
			}
			if after, err := os.ReadFile(path); err != nil || string(after) != content {
				t.Errorf("the file was changed to %q, %v", after, err)
			}
			// The refusal does not keep the lock.
			if err := os.Remove(path); err != nil {
				t.Fatal(err)
			}
			openStore(t, path)
		})
	}
}

func TestOpenFileStoreRefusesPathsOfNoFile(t *testing.T) {
	dir := t.TempDir()
	file, link, lockedLink := filepath.Join(dir, "file"), filepath.Join(dir, "link"), filepath.Join(dir, "locked")
	if err := os.WriteFile(file, fencing.AppendRecord(nil, at(1)), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(os.Symlink(file, link), os.Symlink(file, lockedLink+".lock")); err != nil {
		prerequisite.Missing(t, err.Error()) // Windows asks for a right
	}
	for _, test := range []struct{ name, path, cause string }{
		{"a link", link, "give the path of the file itself"},
		{"a lock that is a link", lockedLink, "give the path of the file itself"},
		{"a directory", dir, "no regular file"},
		{"in no directory", filepath.Join(dir, "missing", "fence"), "create the directory"},
		{"the root", string(filepath.Separator), "give the path of a file"},
	} {
		store, err := fencing.OpenFileStore(test.path)
		if store != nil || err == nil || !strings.Contains(err.Error(), test.cause) {
			t.Errorf("%s: %v, want an error with %q", test.name, err, test.cause)
		}
	}
}

func TestAFileStoreStaysWithItsFileWhenTheProgramChangesItsDirectory(t *testing.T) {
	t.Chdir(t.TempDir())
	here, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	store := openStore(t, "fence")
	t.Chdir(t.TempDir())
	if err := errors.Join(store.Persist(t.Context(), at(1)), store.Close()); err != nil {
		t.Fatal(err)
	}
	if got := openStore(t, filepath.Join(here, "fence")).Highest(); got != at(1) {
		t.Errorf("the highest is %v", got)
	}
}

func TestTokensFromManyGoroutinesLeaveTheHighest(t *testing.T) {
	path := filepath.Join(t.TempDir(), "fence")
	store := openStore(t, path)
	const writers = 8
	var all sync.WaitGroup
	for wall := int64(1); wall <= writers; wall++ {
		all.Go(func() {
			err := store.Persist(t.Context(), at(wall))
			if err != nil && !errors.Is(err, fencing.ErrStaleToken) {
				t.Errorf("%d: %v", wall, err)
			}
			if got := store.Highest().Wall; err == nil && got < wall {
				t.Errorf("the highest is %d after %d was stored", got, wall)
			}
		})
	}
	await.Done(all.Wait)
	if err := store.Close(); err != nil {
		t.Fatal(err)
	}
	if got := openStore(t, path).Highest(); got != at(writers) {
		t.Errorf("the highest is %v, want %d", got, writers)
	}
}

// A process that is killed at any step leaves a file with the last token that it reported, or
// with the one that it was storing.
func TestAProcessThatIsKilledLeavesATokenThatItStored(t *testing.T) {
	for _, began := range []int64{0, 1} { // without a file, and with one
		path := filepath.Join(t.TempDir(), "fence")
		killed := 0
		for killAt := 1; ; killAt++ {
			if err := errors.Join(removeAll(path, path+".new", path+".lock")...); err != nil {
				t.Fatal(err)
			}
			if began > 0 {
				store := openStore(t, path)
				if err := errors.Join(store.Persist(t.Context(), at(began)), store.Close()); err != nil {
					t.Fatal(err)
				}
			}
			command := childCommand(t, path)
			command.Env = append(command.Env, childKill+"="+strconv.Itoa(killAt))
			output := runChild(t, command)
			durable := began
			for line := range strings.Lines(output) {
				if _, err := fmt.Sscanf(line, "durable %d\n", &durable); err != nil {
					t.Fatalf("killed at %d: the child printed %q", killAt, line)
				}
			}
			store := openStore(t, path)
			if got := store.Highest().Wall; got < durable || got > durable+1 {
				t.Errorf("killed at %d: the file has %d, and %d was reported", killAt, got, durable)
			}
			if _, err := os.Lstat(path + ".new"); !errors.Is(err, fs.ErrNotExist) {
				t.Errorf("killed at %d: what the process left is still there: %v", killAt, err)
			}
			if err := store.Close(); err != nil {
				t.Fatal(err)
			}
			if durable == childLast {
				break // it passed all steps
			}
			killed++
		}
		if killed < 15 {
			t.Errorf("the process was killed at %d steps only", killed)
		}
	}
}

func removeAll(paths ...string) (errs []error) {
	for _, path := range paths {
		if err := os.Remove(path); !errors.Is(err, fs.ErrNotExist) {
			errs = append(errs, err)
		}
	}
	return errs
}

// The test binary is also the program that the tests above run.
const (
	childFile = "TENURE_TEST_FENCE"   // the file of its store
	childKill = "TENURE_TEST_KILL_AT" // the step at which it kills itself
	childLast = 3                     // it stores the tokens up to this one
)

func TestMain(m *testing.M) {
	if path := os.Getenv(childFile); path != "" {
		os.Exit(storeTokens(path))
	}
	os.Exit(testprocess.Run(m))
}

// childCommand returns a command that runs storeTokens, behind a prefix such as strace.
func childCommand(t *testing.T, path string, prefix ...string) *exec.Cmd {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	t.Cleanup(cancel)
	words := append(prefix, self)
	command := exec.CommandContext(ctx, words[0], words[1:]...)
	command.Env = append(os.Environ(), childFile+"="+path)
	return command
}

// runChild runs a command and returns its output. How it ended is the caller's concern.
func runChild(t *testing.T, command *exec.Cmd) string {
	t.Helper()
	var output bytes.Buffer
	command.Stdout, command.Stderr = &output, &output
	var ended *exec.ExitError
	if err := command.Run(); err != nil && !errors.As(err, &ended) {
		t.Fatal(err)
	}
	return output.String()
}

// storeTokens opens a store, stores tokens, and prints each that is durable.
func storeTokens(path string) (exitCode int) {
	open := fencing.OpenFileStore
	if killAt, err := strconv.Atoi(os.Getenv(childKill)); err == nil {
		open = func(path string) (*fencing.FileStore, error) {
			return fencing.OpenFileStoreOn(&killingDisk{Disk: fencing.SystemDisk, killAt: killAt}, path)
		}
	}
	store, err := open(path)
	if err != nil {
		fmt.Println(err)
		return 1
	}
	fmt.Println("durable", store.Highest().Wall)
	for wall := store.Highest().Wall + 1; wall <= childLast; wall++ {
		if err := store.Persist(context.Background(), at(wall)); err != nil {
			fmt.Println(err)
			return 1
		}
		fmt.Println("durable", wall)
	}
	return 0
}

// A killingDisk kills the process at one of its steps.
type killingDisk struct {
	fencing.Disk
	killAt int
	passed int
}

func (d *killingDisk) step() {
	if d.passed++; d.passed == d.killAt {
		if self, err := os.FindProcess(os.Getpid()); err == nil {
			_ = self.Kill()
		}
		os.Exit(1) // in vain, unless there is no such signal
	}
}

func (d *killingDisk) Create(path string, content []byte) error {
	d.step()
	if d.passed+1 == d.killAt { // with a part of the content
		_ = os.WriteFile(path, content[:len(content)/2], 0o600)
	}
	d.step()
	defer d.step()
	return d.Disk.Create(path, content)
}

func (d *killingDisk) Rename(from, to string) error {
	d.step()
	defer d.step()
	return d.Disk.Rename(from, to)
}

func (d *killingDisk) Remove(path string) error {
	d.step()
	defer d.step()
	return d.Disk.Remove(path)
}

func (d *killingDisk) SyncDirectory(path string) error {
	d.step()
	defer d.step()
	return d.Disk.SyncDirectory(path)
}

func FuzzParseRecord(f *testing.F) {
	f.Add([]byte(""))
	f.Add(fencing.AppendRecord(nil, hlc.Token{}))
	f.Add(fencing.AppendRecord(nil, at(1696374425000)))
	f.Add([]byte("tenure fence 1\nhighest 1:0:a\nsha256 \n"))
	f.Fuzz(func(t *testing.T, record []byte) {
		token, err := fencing.ParseRecord(record)
		if err != nil {
			if !errors.Is(err, fencing.ErrDamaged) || !token.IsZero() {
				t.Errorf("%v with %v; want ErrDamaged and no token", err, token)
			}
			return
		}
		if again := fencing.AppendRecord(nil, token); !bytes.Equal(again, record) {
			t.Errorf("%q was read as %v, which is written as %q", record, token, again)
		}
	})
}

// Each token can be written and read again, and no record with one bit changed can.
func FuzzRecordOfAToken(f *testing.F) {
	f.Add(int64(1696374425000), uint64(7), "StateStore", uint(100))
	f.Add(int64(0), uint64(0), "", uint(0))
	f.Fuzz(func(t *testing.T, wall int64, counter uint64, node string, bit uint) {
		token := hlc.Token{Wall: wall, Counter: counter, Node: node}
		if _, err := token.MarshalText(); err != nil {
			return // Persist refuses it
		}
		record := fencing.AppendRecord(nil, token)
		if got, err := fencing.ParseRecord(record); err != nil || got != token {
			t.Errorf("%v was read as %v, %v", token, got, err)
		}
		bit %= uint(8 * len(record))
		record[bit/8] ^= 1 << (bit % 8)
		if got, err := fencing.ParseRecord(record); err == nil {
			t.Errorf("with bit %d of %v changed it was read as %v", bit, token, got)
		}
	})
}
