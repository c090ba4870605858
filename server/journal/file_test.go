package journal_test

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/gofrs/flock"

	"github.com/tenurelock/tenure/server/journal"
	"github.com/tenurelock/tenure/statestore"
	"github.com/tenurelock/tenure/statestore/statestoretest"
)

// open opens a journal and closes it at the end of the test.
func open(t testing.TB, dir string) *journal.File {
	t.Helper()
	file, err := journal.Open(dir, journal.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { shut(t, file) })
	return file
}

// load returns the records of a journal, by identifier.
func load(t testing.TB, file *journal.File) map[string]string {
	t.Helper()
	found := make(map[string]string)
	_, err := file.Load(t.Context(), func(record statestore.Record) error {
		if _, twice := found[string(record.ID)]; twice {
			t.Errorf("Load returned %q twice", record.ID)
		}
		found[string(record.ID)] = string(record.Value)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return found
}

func commit(t testing.TB, file *journal.File, batch ...statestore.Group) {
	t.Helper()
	_, _ = file.Load(t.Context(), func(statestore.Record) error { return nil }) // if it is not loaded
	if err := file.Commit(t.Context(), batch); err != nil {
		t.Fatal(err)
	}
}

// record returns a record; without a value it says that the piece is gone.
func record(id string, value ...string) statestore.Record {
	r := statestore.Record{ID: []byte(id)}
	if len(value) > 0 {
		r.Value = []byte(value[0])
	}
	return r
}

// apply does to a model what Commit does to a journal.
func apply(state map[string]string, batch []statestore.Group) {
	for _, group := range batch {
		for _, r := range group {
			if r.Value == nil {
				delete(state, string(r.ID))
			} else {
				state[string(r.ID)] = string(r.Value)
			}
		}
	}
}

func wantState(t testing.TB, got, want map[string]string) {
	t.Helper()
	if !maps.Equal(got, want) {
		t.Fatalf("the journal has %d records, want %d; or they differ", len(got), len(want))
	}
}

func wantReloaded(t testing.TB, file *journal.File, dir string, want map[string]string) {
	t.Helper()
	shut(t, file)
	wantState(t, load(t, open(t, dir)), want)
}

func shut(t testing.TB, file *journal.File) {
	t.Helper()
	if err := file.Close(); err != nil {
		t.Fatal(err)
	}
}

func write(t testing.TB, path string, content []byte) {
	t.Helper()
	if err := os.WriteFile(path, content, 0o600); err != nil {
		t.Fatal(err)
	}
}

// A batch that is larger than a part of a file may be is divided, between groups.
func TestWhatWasCommittedIsLoaded(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "new", "directory")
	file := open(t, dir)
	state := make(map[string]string)
	wantState(t, load(t, file), state)
	var large []statestore.Group
	for i := range 5 {
		large = append(large, statestore.Group{record(fmt.Sprint(i), strings.Repeat("x", 700_000)), record(fmt.Sprint("beside ", i), "y")})
	}
	for _, batch := range [][]statestore.Group{
		nil,
		{{record("a", "1"), record("b", "2")}, {record("c", ""), record("a", "3")}},
		{{record("b"), record("never there")}, {record("\x00", strings.Repeat("x", 1<<20))}},
		{{record("d", "4"), record("d"), record("e"), record("e", "5")}},
		large,
	} {
		commit(t, file, batch...)
		apply(state, batch)
	}
	wantReloaded(t, file, dir, state)
}

func TestTheFileIsAJournal(t *testing.T) {
	t.Parallel()
	statestoretest.RunJournal(t, func(t *testing.T) func() statestore.Journal {
		dir := t.TempDir()
		return func() statestore.Journal { return open(t, dir) }
	})
}

func TestASecondOpenIsRefusedWithTheHolder(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	file := open(t, dir)
	_, err := journal.Open(dir, journal.Options{})
	if want := fmt.Sprintf("journal: %s: in use by process %d on host %s; stop that process, or use another directory", dir, os.Getpid(), must(os.Hostname())); err == nil || err.Error() != want || !errors.Is(err, journal.ErrInUse) {
		t.Errorf("the second Open has error\n%v, want\n%v", err, want)
	}
	shut(t, file)
	open(t, dir)
}

// A check or a backup has the lock for a moment, to see if a process has it.
func TestOpenWaitsForALockThatIsHeldForAMoment(t *testing.T) {
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		lock := flock.New(filepath.Join(dir, "tenure.lock"))
		if locked, err := lock.TryRLock(); !locked {
			t.Fatal(err)
		}
		time.AfterFunc(15*time.Millisecond, func() { _ = lock.Close() })
		open(t, dir)
	})
}

func TestAJournalOutlivesAChangeOfTheWorkingDirectory(t *testing.T) {
	t.Chdir(t.TempDir())
	file := open(t, "data")
	t.Chdir(t.TempDir())
	commit(t, file, statestore.Group{key("k", "1")})
}

// A directory that is moved away under a running store, and made anew, has two stores. The first one
// must neither go on nor touch the files of the second, such as the name of its holder.
func TestAJournalEndsWhenAnotherFileIsInItsPlace(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("there a directory with an open file cannot be moved")
	}
	dir := filepath.Join(t.TempDir(), "data")
	first := open(t, dir)
	commit(t, first, statestore.Group{key("k", "first")})
	if err := os.Rename(dir, dir+".lost"); err != nil {
		t.Fatal(err)
	}
	second := open(t, dir)
	commit(t, second, statestore.Group{key("k", "second"), key("l", "second")})
	err := first.Commit(t.Context(), []statestore.Group{{record("k", "first")}})
	if err == nil || !strings.Contains(err.Error(), "another file is in its place") {
		t.Errorf("it commits to a file that another store does not see: %v", err)
	}
	shut(t, first)
	report, err := journal.Backup(t.Context(), dir, filepath.Join(t.TempDir(), "backup"))
	if err != nil || !report.Online || report.Keys != 2 {
		t.Errorf("the backup of the new journal: %+v, %v", report, err)
	}
	if err := os.Rename(dir, dir+".again"); err != nil {
		t.Fatal(err)
	}
	if err := second.Commit(t.Context(), []statestore.Group{{key("k", "fourth")}}); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("it commits to a file that is no longer there: %v", err)
	}
}

// A journal belongs to one store. A second one is told so, and does no harm to the first.
func TestASecondLoadIsRefusedAndHarmsNothing(t *testing.T) {
	file := open(t, t.TempDir())
	load(t, file)
	commit(t, file, statestore.Group{record("a", "1")})
	_, err := file.Load(t.Context(), func(statestore.Record) error { return nil })
	if err == nil || !strings.Contains(err.Error(), "in use by another store of this process; open another directory for each store") {
		t.Errorf("the second Load has error %v", err)
	}
	commit(t, file, statestore.Group{record("a", "2")})
}

// Nothing is written behind a hole.
func TestInvariant34AFileThatIsCutShortEndsTheJournal(t *testing.T) {
	dir := t.TempDir()
	file := open(t, dir)
	commit(t, file, statestore.Group{record("a", strings.Repeat("x", 500))})
	if err := os.Truncate(filepath.Join(dir, "tenure.log"), 100); err != nil {
		t.Fatal(err)
	}
	err := file.Commit(t.Context(), []statestore.Group{{record("b", "2")}})
	if again := file.Commit(t.Context(), nil); !errors.Is(err, journal.ErrDamaged) || !errors.Is(again, err) {
		t.Errorf("Commit has error %v, and then %v", err, again)
	}
}

func TestARecordWithoutAnIdentifierIsRefused(t *testing.T) {
	for _, id := range []string{"", strings.Repeat("x", statestore.MaxID+1)} {
		dir := t.TempDir()
		file := open(t, dir)
		commit(t, file, statestore.Group{record("a", "1")})
		err := file.Commit(t.Context(), []statestore.Group{{record(id, "1")}})
		if err == nil || !strings.Contains(err.Error(), "1 to 1100 are allowed") {
			t.Errorf("Commit has error %v", err)
		}
		wantReloaded(t, file, dir, map[string]string{"a": "1"})
	}
}
