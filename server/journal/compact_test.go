package journal_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/tenurelock/tenure/internal/await"
	"github.com/tenurelock/tenure/internal/failpoint"
	"github.com/tenurelock/tenure/server/journal"
	"github.com/tenurelock/tenure/statestore"
)

// Keys come and go, values change their size, and the number of keys rises and falls.
func TestTheFileStaysSmallThroughChurn(t *testing.T) {
	defer journal.SetSpaceConstant(16 << 10)()
	dir := t.TempDir()
	file := open(t, dir)
	load(t, file)
	random := rand.New(rand.NewPCG(7, 7))
	state, live := make(map[string]string), int64(0)
	for i := range 700 {
		var batch []statestore.Group
		for range 1 + random.IntN(10) {
			value := strings.Repeat("v", random.IntN(1<<random.IntN(10)))
			batch = append(batch, statestore.Group{record(fmt.Sprint(random.IntN(1+i%500)), value)})
		}
		for range random.IntN(1 + i%20) {
			batch = append(batch, statestore.Group{record(fmt.Sprint(random.IntN(500)))})
		}
		before := size(t, dir)
		commit(t, file, batch...)
		awaitCompaction(t, file)
		apply(state, batch)
		now := size(t, dir)
		if now < before { // it was compacted
			live = now
		}
		if limit := 3*live + 16<<10; now > max(limit, before) {
			t.Fatalf("the file has %d bytes, more than %d, for %d bytes of live data", now, limit, live)
		}
	}
	if live == 0 {
		t.Error("it was never compacted")
	}
	wantReloaded(t, file, dir, state)
}

// growing opens a journal whose commits lead to compactions, and returns a function for the next one.
func growing(t *testing.T, dir string) (file *journal.File, log *bytes.Buffer, state map[string]string, next func() error) {
	t.Helper()
	log, state = new(bytes.Buffer), make(map[string]string)
	file, err := journal.Open(dir, journal.Options{Logger: slog.New(slog.NewTextHandler(log, nil))})
	if err != nil {
		t.Fatal(err)
	}
	load(t, file)
	i := 0
	return file, log, state, func() error {
		batch := []statestore.Group{{record(fmt.Sprint(i%4), strings.Repeat(fmt.Sprint(i%10), 200_000))}}
		i++
		err := file.Commit(t.Context(), batch)
		if err == nil {
			apply(state, batch)
			err = await.Result(file.AwaitCompaction)
		}
		return err
	}
}

// Whatever fails while the copy takes the place of the file, what was committed is in the one that stays.
// Windows renames no file that is open.
func TestARenameThatFailsKeepsTheFile(t *testing.T) {
	for _, closed := range []bool{false, true} {
		dir := t.TempDir()
		fails, renames := true, 0
		file, log, state, next := growing(t, dir)
		defer journal.SetRename(closed, func(from, to string) error {
			if renames++; fails {
				return &os.LinkError{Op: "rename", Old: from, New: to, Err: errors.New("a virus scanner has it open")}
			}
			return os.Rename(from, to)
		})()
		commits := func(n int) {
			for range n {
				if err := next(); err != nil {
					t.Fatal(err)
				}
			}
		}
		commits(12)
		if renames == 0 || renames > 3 || !strings.Contains(log.String(), "could not be compacted") ||
			!strings.Contains(log.String(), "virus") {
			t.Errorf("%d renames; the log is %s", renames, log)
		}
		if _, err := os.Stat(filepath.Join(dir, "tenure.log.new")); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("the copy is left: %v", err)
		}
		before := size(t, dir)
		fails = false
		commits(28)
		if after := size(t, dir); after > before+2_000_000 || !strings.Contains(log.String(), "msg=\"journal: compacted\"") {
			t.Errorf("the file had %d bytes, and has %d; the log is %s", before, after, log)
		}
		wantReloaded(t, file, dir, state)
	}
}

// The copy has its name, but a loss of power may bring the former file back, so no later commit may go into either.
func TestInvariant34AJournalEndsIfTheNameOfACopyMayNotBeDurable(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("there a directory with an open file cannot be moved")
	}
	for _, closed := range []bool{false, true} {
		dir := filepath.Join(t.TempDir(), "data")
		file, _, state, next := growing(t, dir)
		defer journal.SetRename(closed, func(from, to string) error {
			return errors.Join(os.Rename(from, to), os.Rename(dir, dir+".moved")) // the directory cannot be synced
		})()
		var err error
		for i := 0; i < 12 && err == nil; i++ {
			err = next()
			_ = os.Rename(dir+".moved", dir) // if it was moved
		}
		again := file.Commit(t.Context(), []statestore.Group{{record("later", "x")}})
		if !errors.Is(err, fs.ErrNotExist) || !errors.Is(again, fs.ErrNotExist) {
			t.Errorf("closed %t: the compaction has error %v, and the next commit %v", closed, err, again)
		}
		_ = file.Close()
		wantState(t, load(t, open(t, dir)), state)
	}
}

// pauseCompaction makes the next compaction wait in its middle, until goOn is called.
func pauseCompaction(t *testing.T) (began chan struct{}, goOn func()) {
	began, ended := make(chan struct{}), make(chan struct{})
	var once sync.Once
	t.Cleanup(failpoint.Set(func(at failpoint.Point) {
		if at == failpoint.DuringCompaction {
			once.Do(func() { close(began); await.Next(ended) })
		}
	}))
	return began, func() { close(ended) }
}

// A copy that cannot catch up makes commits wait, and takes the place of the file all the same.
func TestCommitsWaitForACopyThatLagsBehind(t *testing.T) {
	began, goOn := pauseCompaction(t)
	dir := t.TempDir()
	file := open(t, dir)
	load(t, file)
	value := strings.Repeat("x", 2<<20)
	commit(t, file, statestore.Group{key("a", value)})
	await.Receive(began)
	committed := make(chan error)
	sixteenth, end := context.WithCancel(t.Context())
	go func() {
		defer close(committed)
		for i := range 20 {
			ctx := t.Context()
			if i == 15 {
				ctx = sixteenth
			}
			committed <- file.Commit(ctx, []statestore.Group{{key("a", value), key("last", fmt.Sprint(i))}})
		}
	}()
	for range 15 {
		if err := await.Receive(committed); err != nil {
			t.Fatal(err)
		}
	}
	waits := func(which string) {
		t.Helper()
		select {
		case <-committed:
			t.Errorf("the commit %s does not wait for the copy", which)
		case <-time.After(50 * time.Millisecond):
		}
	}
	await.Until(func() bool { return size(t, dir) > 17*int64(len(value)) }) // the sixteenth has begun
	waits("after 32 MiB")
	end()
	if err := await.Receive(committed); err != nil {
		t.Errorf("a commit that the disk has ends with its wait: %v", err)
	}
	waits("after it")
	goOn()
	for err := range committed {
		if err != nil {
			t.Error(err)
		}
	}
	awaitCompaction(t, file)
	shut(t, file)
	wantKeys(t, load(t, open(t, dir)), map[string]string{"a": value, "last": "19"})
}

// While a compaction is stopped in its middle, commits are answered: changes, removals and new records.
// The copy then has them all.
func TestCommitsAreAnsweredWhileTheFileIsCompacted(t *testing.T) {
	reading, goOn := pauseCompaction(t)
	dir := t.TempDir()
	file := open(t, dir)
	load(t, file)
	state := make(map[string]string)
	submit := func(group ...statestore.Record) {
		commit(t, file, group)
		apply(state, []statestore.Group{group})
	}
	var first statestore.Group
	for i := range 40 {
		first = append(first, key(fmt.Sprint(i), strings.Repeat("x", 100_000)))
	}
	for i := range 30 {
		first = append(first, keyGone(fmt.Sprint(i)))
	}
	submit(first...)
	await.Receive(reading)
	large := size(t, dir)
	for i := range 30 {
		submit(key(fmt.Sprint(30+i%10), fmt.Sprint("changed ", i)), key(fmt.Sprint("new ", i), "made"))
		submit(keyGone(fmt.Sprint("new ", i/2)))
	}
	goOn()
	awaitCompaction(t, file)
	if after := size(t, dir); after > large/2 {
		t.Errorf("the file had %d bytes, and has %d after the compaction", large, after)
	}
	submit(key("after", "the compaction"))
	wantReloaded(t, file, dir, state)
}

// A journal closes while a compaction is under way, and leaves no copy.
func TestCloseEndsACompaction(t *testing.T) {
	began, goOn := pauseCompaction(t)
	dir := t.TempDir()
	file := open(t, dir)
	load(t, file)
	value := strings.Repeat("x", 2<<20)
	commit(t, file, statestore.Group{key("a", value), key("b", value)})
	await.Receive(began)
	time.AfterFunc(10*time.Millisecond, goOn) // Close has ended its context then
	if err := await.Result(file.Close); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(filepath.Join(dir, "tenure.log.new")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the copy is left: %v", err)
	}
	wantKeys(t, load(t, open(t, dir)), map[string]string{"a": value, "b": value})
}

// awaitCompaction waits until no compaction is under way.
func awaitCompaction(t testing.TB, file *journal.File) {
	t.Helper()
	if err := await.Result(file.AwaitCompaction); err != nil {
		t.Fatal(err)
	}
}

// size returns the size of the file in a directory.
func size(t testing.TB, dir string) int64 {
	t.Helper()
	info, err := os.Stat(filepath.Join(dir, "tenure.log"))
	if err != nil {
		t.Fatal(err)
	}
	return info.Size()
}
