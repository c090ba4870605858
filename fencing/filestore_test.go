package fencing_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tenurelock/tenure/fencing"
	"github.com/tenurelock/tenure/hlc"
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
	for token, want := range map[hlc.Token]error{{}: fencing.ErrMissingToken, {Wall: 9, Node: "a:b"}: hlc.ErrMalformed} {
		if err := store.Persist(t.Context(), token); !errors.Is(err, want) {
			t.Errorf("%v: %v, want %v", token, err, want)
		}
	}
	cause := errors.New("no more time")
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(cause)
	if err := store.Persist(ctx, at(6)); !errors.Is(err, cause) {
		t.Errorf("%v, want the cause", err)
	}
	// A checker that was given no Highest asks the store.
	if err := newChecker(t, checkerOptions{Persist: store.Persist}).Admit(t.Context(), at(4)); !errors.Is(err, fencing.ErrStaleToken) {
		t.Errorf("without Highest: %v, want ErrStaleToken", err)
	}
	if got := store.Highest(); got != at(5) {
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
	if err := errors.Join(first.Persist(t.Context(), at(1)), first.Close(), first.Close()); err != nil {
		t.Fatal(err)
	}
	if err := first.Persist(t.Context(), at(2)); !errors.Is(err, os.ErrClosed) {
		t.Errorf("after it was closed: %v, want os.ErrClosed", err)
	}
	if output := runChild(t, childCommand(t, path)); output != "durable 1\ndurable 2\ndurable 3\n" {
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
	files, err := filepath.Glob(path + "*")
	must(t, files, err)
	if want := []string{path, path + ".lock"}; !slices.Equal(files, want) {
		t.Errorf("files %q, want %q", files, want)
	}
	for _, file := range files {
		if info, err := os.Stat(file); err != nil || info.Mode() != 0o600 {
			t.Errorf("%s: %v, %v", file, info.Mode(), err)
		}
	}
	content, err := os.ReadFile(path)
	must(t, content, err)
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
		{"a lock that is a link", lockedLink, ".lock"},
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

// The test binary is also the program that the tests above run.
const (
	childFile = "TENURE_TEST_FENCE" // the file of its store
	childLast = 3                   // it stores the tokens up to this one
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
	store, err := fencing.OpenFileStore(path)
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
