package journal_test

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/tenurelock/tenure/server/journal"
)

// fail makes the nth call of a kind fail, and no other, until restore is called.
func fail(kind string, nth int64, failure error) (restore func()) {
	var calls atomic.Int64
	return journal.Watch(func(c journal.Call, do func() error) error {
		if c.Kind == kind && calls.Add(1) == nth {
			return &fs.PathError{Op: kind, Path: c.Path, Err: failure}
		}
		return do()
	})
}

// A call that fails once ends the journal, whatever call it is. What was acknowledged is there, and at most one batch
// more. A copy that finds no space ends nothing.
func TestInvariant34AFailedSystemCallEndsTheJournal(t *testing.T) {
	defer journal.SetSpaceConstant(16 << 10)()
	states := historyStates()
	for kind, calls := range map[string][]int64{
		"create": {1, 2, 3}, "write": {1, 2, 3, 4, 5, 40}, "sync": {1, 2, 3, 4, 9, 40},
		"rename": {1, 2, 3, 4}, "syncdir": {1, 2, 3, 4},
	} {
		for failure, says := range map[syscall.Errno]string{
			syscall.EIO: "replace the disk", syscall.ENOSPC: "free space", syscall.EDQUOT: "raise the quota",
		} {
			for i, nth := range calls {
				if failure == syscall.EDQUOT && i > 0 {
					break // it is as ENOSPC
				}
				name := fmt.Sprintf("%s %d: %v", kind, nth, failure)
				dir, acknowledged := t.TempDir(), 0
				restore := fail(kind, nth, failure)
				file, err := commitHistory(t, dir, historyLength, func(batches int) { acknowledged = batches })
				restore()
				switch {
				case err == nil:
					if failure == syscall.EIO {
						t.Errorf("%s: no error", name)
					}
				case !errors.Is(err, failure) || !strings.Contains(err.Error(), says) ||
					!strings.HasPrefix(err.Error(), "journal: "+dir):
					t.Errorf("%s: the error is %v", name, err)
				case file != nil:
					if again := file.Commit(t.Context(), historyBatch(0)); !errors.Is(again, err) {
						t.Errorf("%s: a later commit has error %v", name, again)
					}
				}
				if file != nil {
					_ = file.Close() // as the server does
				}
				if _, left := os.Stat(filepath.Join(dir, "tenure.log.new")); err == nil && left == nil {
					t.Errorf("%s: a part of a copy was left", name)
				}
				found := load(t, open(t, dir))
				isFound := func(state map[string]string) bool { return maps.Equal(found, state) }
				if !slices.ContainsFunc(states[acknowledged:min(acknowledged+2, len(states))], isFound) {
					t.Errorf("%s: after %d batches the journal has the state after batch %s", name, acknowledged, found["last"])
				}
			}
		}
	}
}

func TestAFullDiskTakesNoNewJournalAndKeepsNoPartOfOne(t *testing.T) {
	backup := filepath.Join(filled(t), "tenure.log")
	for name, begin := range map[string]func(dir string) error{
		"Open":          func(dir string) error { return second(journal.Open(dir, journal.Options{})) },
		"RestoreBackup": func(dir string) error { return second(journal.RestoreBackup(t.Context(), backup, dir)) },
	} {
		for nth := range int64(2) {
			dir := t.TempDir()
			restore := fail("write", nth+1, syscall.ENOSPC)
			err := begin(dir)
			restore()
			if !errors.Is(err, syscall.ENOSPC) || !strings.Contains(err.Error(), "free space on the disk") {
				t.Errorf("%s: the error is %v", name, err)
			}
			if left := must(filepath.Glob(filepath.Join(dir, "tenure.log*"))); len(left) > 0 {
				t.Errorf("%s left %q", name, left)
			}
		}
	}
}

func TestInvariant34AFailureOfTheRepairEndsTheJournal(t *testing.T) {
	left, acknowledged := crashed(t, 10)
	for kind, calls := range map[string]int64{"truncate": 1, "write": 3, "sync": 3} { // each of the start after a crash
		for nth := range calls {
			dir := killed(t, left)
			restore := fail(kind, nth+1, syscall.EIO)
			file, err := commitHistory(t, dir, historyLength/2, func(int) {})
			restore()
			if !errors.Is(err, syscall.EIO) || !strings.Contains(err.Error(), "replace the disk") {
				t.Errorf("%s %d: the error is %v", kind, nth, err)
			}
			if file != nil {
				_ = file.Close()
			}
			if found := load(t, open(t, dir)); !maps.Equal(found, historyStates()[acknowledged-1]) {
				t.Errorf("%s %d: after %d batches the journal has the state after batch %s", kind, nth, acknowledged-1, found["last"])
			}
		}
	}
}
