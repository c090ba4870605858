package journal_test

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/tenurelock/tenure/server/journal"
	"github.com/tenurelock/tenure/statestore"
)

// historyLength is how many batches commitHistory commits at most.
const historyLength = 120

// historyBatch returns the i-th batch of a history: the same in each process.
func historyBatch(i int) (batch []statestore.Group) {
	random := rand.New(rand.NewPCG(uint64(i), 0))
	for range 1 + random.IntN(4) {
		batch = append(batch, statestore.Group{
			record(fmt.Sprintf("key-%02d", random.IntN(40)), strings.Repeat(fmt.Sprintf("%d.", i), random.IntN(400))),
			record("last", fmt.Sprint(i)),
		})
	}
	if i%5 == 0 {
		batch = append(batch, statestore.Group{record(fmt.Sprintf("key-%02d", random.IntN(40)))})
	}
	if i%20 == 19 { // the file becomes large compared with what is left
		var group statestore.Group
		for key := range 38 {
			group = append(group, record(fmt.Sprintf("key-%02d", key)))
		}
		batch = append(batch, group)
	}
	return batch
}

// historyStates returns the state before the first batch and after each.
func historyStates() []map[string]string {
	states := []map[string]string{{}}
	for i := range historyLength {
		state := maps.Clone(states[i])
		apply(state, historyBatch(i))
		states = append(states, state)
	}
	return states
}

// commitHistory goes on with the history until batch end, and calls acknowledged with the number of batches after
// each commit.
func commitHistory(t *testing.T, dir string, end int, acknowledged func(batches int)) (*journal.File, error) {
	t.Helper()
	file, err := journal.Open(dir, journal.Options{})
	if err != nil {
		return nil, err
	}
	t.Cleanup(func() { _ = file.Close() })
	next := 0
	if _, err := file.Load(t.Context(), func(r statestore.Record) error {
		if string(r.ID) == "last" {
			next, err = strconv.Atoi(string(r.Value))
			next++
		}
		return err
	}); err != nil {
		return file, err
	}
	acknowledged(next) // a store shows it to its clients
	for i := next; i < end; i++ {
		if err := file.Commit(t.Context(), historyBatch(i)); err != nil {
			return file, err
		}
		acknowledged(i + 1)
		if i%20 == 19 {
			_ = file.AwaitCompaction() // also on a slow machine there are some compactions; the next commit has its error
		}
	}
	return file, nil
}

// crashed returns a directory in which a process crashed in the middle of the history, without some bytes of
// the last commit.
func crashed(t *testing.T, without int64) (dir string, acknowledged int) {
	t.Helper()
	from := t.TempDir()
	if _, err := commitHistory(t, from, historyLength/2, func(batches int) { acknowledged = batches }); err != nil {
		t.Fatal(err)
	}
	dir = killed(t, from)
	if err := os.Truncate(filepath.Join(dir, "tenure.log"), size(t, dir)-without); err != nil {
		t.Fatal(err)
	}
	return dir, acknowledged
}
