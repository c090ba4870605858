package journal_test

import (
	"bytes"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/tenurelock/tenure/internal/await"
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
