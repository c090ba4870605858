package journal_test

import (
	"bytes"
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
	"sync/atomic"
	"testing"
	"time"

	"github.com/tenurelock/tenure/internal/await"
	"github.com/tenurelock/tenure/internal/failpoint"
	"github.com/tenurelock/tenure/internal/prerequisite"
	"github.com/tenurelock/tenure/server/journal"
	"github.com/tenurelock/tenure/statestore"
)

// A week of churn, compressed: keys come and go, values change their size, the number of keys
// grows to its tenfold each "day" and falls back, batches are small and large.
func TestTheFileStaysSmallThroughAWeekOfChurn(t *testing.T) {
	t.Parallel()
	if runtime.GOOS == "windows" {
		t.Skip("there the file has the size of the mapping, which is a power of two")
	}
	prerequisite.Long(t, "it takes a few seconds")
	dir := t.TempDir()
	var log bytes.Buffer
	file, err := journal.Open(dir, journal.Options{Logger: slog.New(slog.NewTextHandler(&log, nil))})
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	load(t, file)
	file.WithoutSync()
	path := filepath.Join(dir, "tenure.db")
	random := rand.New(rand.NewPCG(7, 7))
	var names []string // that exist
	values := make(map[string]int)
	largest, commits := 0.0, 0
	next := 0
	submit := func(batch []statestore.Group) {
		t.Helper()
		commit(t, file, batch...)
		settle(t, file)
		file.WithoutSync() // after a compaction too
		commits++
		info, err := os.Stat(path)
		if err != nil {
			t.Fatal(err)
		}
		if limit := 3*file.LiveBytes() + 1<<20; info.Size() > limit {
			t.Fatalf("after commit %d the file has %d bytes, more than %d, for %d keys with %d bytes", commits, info.Size(), limit, len(names), file.LiveBytes())
		}
		if live := file.LiveBytes(); live > 1<<20 {
			largest = max(largest, float64(info.Size())/float64(live))
		}
	}
	for range 7 {
		for _, want := range []int{12_000, 1_500} { // day and night
			for len(names) != want {
				var batch []statestore.Group
				for range 1 + random.IntN(1<<random.IntN(10)) {
					switch change := random.IntN(10); {
					case change < 3 && len(names) > 0: // another value
						name := names[random.IntN(len(names))]
						batch = append(batch, statestore.Group{key(name, strings.Repeat("v", random.IntN(1<<random.IntN(10))))})
					case len(names) < want:
						name := fmt.Sprintf("%x/%d", random.Uint32(), next)
						next++
						names = append(names, name)
						values[name] = 0
						batch = append(batch, statestore.Group{key(name, strings.Repeat("n", random.IntN(200)))})
					case len(names) > want:
						i := random.IntN(len(names))
						batch = append(batch, statestore.Group{keyGone(names[i])})
						delete(values, names[i])
						names[i] = names[len(names)-1]
						names = names[:len(names)-1]
					}
				}
				submit(batch)
			}
		}
		// The same few keys, thousands of times: one key held by one node after another.
		for range 300 {
			submit([]statestore.Group{{key(names[random.IntN(5)], strings.Repeat("x", random.IntN(100)))}})
		}
	}
	compactions := strings.Count(log.String(), "compacted")
	t.Logf("%d commits, %d compactions; the file was at most %.2f times the live data", commits, compactions, largest)
	if compactions == 0 || compactions > 100 {
		t.Errorf("%d compactions", compactions)
	}
	if err := file.Close(); err != nil {
		t.Fatal(err)
	}
	found := keys(t, load(t, open(t, dir)))
	if len(found) != len(values) {
		t.Errorf("%d keys were loaded, want %d", len(found), len(values))
	}
	for name := range values {
		if _, ok := found[name]; !ok {
			t.Fatalf("key %q is missing", name)
		}
	}
}

// Records of a few bytes take more than the bound, whatever a compaction does: it is not tried
// again with each commit.
func TestTinyRecordsAreNotCompactedAllTheTime(t *testing.T) {
	var log bytes.Buffer
	file, err := journal.Open(t.TempDir(), journal.Options{Logger: slog.New(slog.NewTextHandler(&log, nil))})
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	load(t, file)
	var all []statestore.Group
	for i := range 1 << 16 {
		all = append(all, statestore.Group{record(fmt.Sprintf("%04x", i), "")})
	}
	commit(t, file, all...)
	random := rand.New(rand.NewPCG(1, 1))
	for range 60 {
		file.WithoutSync()
		var batch []statestore.Group
		for range 300 {
			batch = append(batch, all[random.IntN(len(all))])
		}
		commit(t, file, batch...)
		settle(t, file)
	}
	if compactions := strings.Count(log.String(), "compacted"); compactions > 5 {
		t.Errorf("%d compactions in 60 commits", compactions)
	}
}

// A file that became large while no journal compacted it, as during a backup, is compacted at
// the start.
func TestOpenCompactsALargeFile(t *testing.T) {
	dir := t.TempDir()
	file := open(t, dir)
	for i := range 40 {
		commit(t, file, statestore.Group{key(fmt.Sprint(i), strings.Repeat("x", 100_000))})
	}
	reading, release, ended := make(chan struct{}), make(chan struct{}), make(chan error, 1)
	go func() {
		first := true
		ended <- file.Backup(t.Context(), writerFunc(func(p []byte) (int, error) {
			if first {
				first = false
				close(reading)
				await.Next(release)
			}
			return len(p), nil
		}))
	}()
	await.Next(reading)
	for i := range 40 {
		commit(t, file, statestore.Group{keyGone(fmt.Sprint(i))})
	}
	before, _ := os.Stat(filepath.Join(dir, "tenure.db"))
	if before.Size() < 4_000_000 {
		t.Errorf("the file was compacted to %d bytes during a backup", before.Size())
	}
	close(release)
	if err := await.Receive(ended); err != nil {
		t.Error(err)
	}
	if err := file.Close(); err != nil {
		t.Fatal(err)
	}
	wantState(t, load(t, open(t, dir)), nil)
	if after, _ := os.Stat(filepath.Join(dir, "tenure.db")); after.Size() > 1<<20 {
		t.Errorf("after a start the file has %d bytes", after.Size())
	}
}

// While a compaction is stopped in its middle, commits are answered: changes, removals and new records.
// The copy then has them all.
func TestCommitsAreAnsweredWhileTheFileIsCompacted(t *testing.T) {
	reading, goOn := make(chan struct{}), make(chan struct{})
	var once sync.Once
	t.Cleanup(failpoint.Set(func(at failpoint.Point) {
		if at == failpoint.DuringCompaction {
			once.Do(func() { close(reading); await.Next(goOn) })
		}
	}))
	dir := t.TempDir()
	file := open(t, dir)
	load(t, file)
	state := make(map[string]string)
	submit := func(group ...statestore.Record) {
		t.Helper()
		batch := []statestore.Group{group}
		apply(state, batch)
		if err := await.Result(func() error { return file.Commit(t.Context(), batch) }); err != nil {
			t.Fatal(err)
		}
	}
	for i := range 40 {
		submit(key(fmt.Sprint(i), strings.Repeat("x", 100_000)))
	}
	for i := range 30 {
		submit(keyGone(fmt.Sprint(i)))
	}
	await.Receive(reading)
	large := size(t, dir)
	for i := range 30 {
		submit(key(fmt.Sprint(30+i%10), fmt.Sprint("changed ", i)), key(fmt.Sprint("new ", i), "made"))
		submit(keyGone(fmt.Sprint("new ", i/2)))
	}
	close(goOn)
	settle(t, file)
	if after := size(t, dir); after > large/2 {
		t.Errorf("the file had %d bytes, and has %d after the compaction", large, after)
	}
	submit(key("after", "the compaction"))
	if err := file.Close(); err != nil {
		t.Fatal(err)
	}
	if err := journal.CheckBolt(filepath.Join(dir, "tenure.db")); err != nil {
		t.Error(err)
	}
	wantState(t, load(t, open(t, dir)), state)
}

// A journal closes while a compaction is under way, and leaves no copy.
func TestCloseEndsACompaction(t *testing.T) {
	var compacts atomic.Bool
	t.Cleanup(failpoint.Set(func(at failpoint.Point) {
		if at == failpoint.DuringCompaction {
			compacts.Store(true)
			time.Sleep(time.Millisecond) // Close comes before the end
		}
	}))
	dir := t.TempDir()
	file := open(t, dir)
	load(t, file)
	var small, large, gone statestore.Group
	for i := range 60 {
		small = append(small, key(fmt.Sprint(i), "kept"))
	}
	for i := range 40 {
		large = append(large, key(fmt.Sprint("large ", i), strings.Repeat("x", 100_000)))
		gone = append(gone, keyGone(fmt.Sprint("large ", i)))
	}
	commit(t, file, small, large)
	commit(t, file, gone)
	await.Until(compacts.Load)
	if err := await.Result(file.Close); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(filepath.Join(dir, "tenure.db.new")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the copy is left: %v", err)
	}
	if found := load(t, open(t, dir)); len(found) != len(small) {
		t.Errorf("%d records are left, want %d", len(found), len(small))
	}
}

// settle waits until no compaction is under way.
func settle(t testing.TB, file *journal.File) {
	t.Helper()
	if err := await.Result(file.Settle); err != nil {
		t.Fatal(err)
	}
}

// size returns the size of the file in a directory.
func size(t testing.TB, dir string) int64 {
	t.Helper()
	info, err := os.Stat(filepath.Join(dir, "tenure.db"))
	if err != nil {
		t.Fatal(err)
	}
	return info.Size()
}
