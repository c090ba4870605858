package main

import (
	"context"
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/tenurelock/tenure/internal/compiled"
	"github.com/tenurelock/tenure/internal/prerequisite"
	"github.com/tenurelock/tenure/internal/testprocess"
	"github.com/tenurelock/tenure/server/internal/testsupport"
)

var built = compiled.Program{Folder: "../../cmd/tenure"}

// The test binary runs itself as the processes of an attack.
func TestMain(m *testing.M) {
	beChild()
	status := testprocess.Run(m)
	built.Remove()
	os.Exit(status)
}

// The short version of `make abuse`. It asserts what must hold on any machine, and logs times, which
// depend on the load of the machine.
func TestAServerOutlivesItsAttackersAndFreesTheirMemory(t *testing.T) {
	if testsupport.UnderRace {
		t.Skip("the server is a process of its own, which the race detector does not see")
	}
	ctx, cancel := context.WithTimeout(t.Context(), 9*time.Minute)
	defer cancel()
	r := &runner{tenure: built.Path(t), scratch: t.TempDir(), short: true, duration: time.Second, slack: 16 << 20}
	// Not within the subtests: the context of a test ends before its parallel subtests do.
	t.Run("attacks", func(t *testing.T) {
		for i, a := range attacks() {
			if i%8 != 0 && !prerequisite.LongRun() {
				continue // all of them take a minute
			}
			t.Run(a.name, func(t *testing.T) {
				t.Parallel() // most of it is waiting
				row, err := r.run(ctx, a)
				if err != nil {
					t.Fatal(err)
				}
				fmt.Fprintln(t.Output(), row)
				for _, harm := range row.lethal {
					t.Error(harm)
				}
			})
		}
	})
}

// A limit that nothing can pass would prove nothing.
func TestARowThatPassesALimitSaysSo(t *testing.T) {
	r := &runner{slack: 1 << 20}
	for name, test := range map[string]struct {
		spoil        func(*row)
		late, lethal int
	}{
		"good":           {func(*row) {}, 0, 0},
		"dead":           {func(w *row) { w.death = "panic: ..." }, 0, 1},
		"not served":     {func(w *row) { w.after.renewals.failed = 1 }, 0, 1},
		"no renewals":    {func(w *row) { w.after = phase{} }, 0, 1},
		"lease lost":     {func(w *row) { w.during.lost = 1 }, 0, 1},
		"lost later":     {func(w *row) { w.after.lost = 1 }, 0, 1},
		"breach":         {func(w *row) { w.breach = "it got in" }, 0, 1},
		"peak":           {func(w *row) { w.peak = (10 + w.attack.memory + 1) << 20 }, 0, 1},
		"memory after":   {func(w *row) { w.memoryAfter = 17 << 20 }, 0, 1},
		"log":            {func(w *row) { w.log = w.attack.log<<10 + 1 }, 0, 1},
		"slow renewals":  {func(w *row) { w.during.renewals.took = []time.Duration{w.attack.p99} }, 1, 0},
		"failed renewal": {func(w *row) { w.during.renewals.failed = 1 }, 1, 0},
		"slow changes":   {func(w *row) { w.during.changes.took = []time.Duration{maxChange} }, 1, 0},
		"failed changes": {func(w *row) { w.during.changes.failed = 1 }, 1, 0},
	} {
		served := phase{renewals: series{took: []time.Duration{time.Millisecond}}}
		w := &row{attack: attacks()[0], before: served, during: served, after: served, memoryBefore: 10 << 20, peak: 20 << 20, memoryAfter: 12 << 20}
		test.spoil(w)
		if w.judge(r); len(w.late) != test.late || len(w.lethal) != test.lethal {
			t.Errorf("%s: %q, %q", name, w.late, w.lethal)
		}
	}
}
