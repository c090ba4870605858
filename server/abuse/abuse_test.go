package main

import (
	"context"
	"fmt"
	"os"
	"runtime"
	"testing"
	"time"

	"github.com/tenurelock/tenure/internal/prerequisite"
	"github.com/tenurelock/tenure/internal/testprocess"
	"github.com/tenurelock/tenure/server/internal/testsupport"
)

// The test binary runs itself as the processes of an attack.
func TestMain(m *testing.M) {
	beChild()
	os.Exit(testprocess.Run(m))
}

// The short version of `make abuse`. It asserts what must hold on any machine, and logs times, which
// depend on the load of the machine.
func TestAServerOutlivesItsAttackersAndFreesTheirMemory(t *testing.T) {
	if testsupport.UnderRace {
		t.Skip("the server is a process of its own, which the race detector does not see")
	}
	ctx, cancel := context.WithTimeout(t.Context(), 9*time.Minute)
	defer cancel()
	scratch := t.TempDir()
	command, err := build(ctx, scratch)
	if err != nil {
		t.Fatal(err)
	}
	r := &runner{tenure: command, scratch: scratch, short: true, duration: time.Second, slack: 16 << 20}
	// Not within the subtests: the context of a test ends before its parallel subtests do.
	t.Run("attacks", func(t *testing.T) {
		for i, a := range attacks() {
			if i%8 != 0 && !prerequisite.LongRun() {
				continue // all of them take a minute
			}
			t.Run(a.name, func(t *testing.T) {
				if a.files > 0 && runtime.GOOS == "windows" {
					t.Skip("the system has no limit of file descriptors")
				}
				t.Parallel() // most of it is waiting
				row, err := r.run(ctx, a)
				if err != nil {
					t.Fatal(err)
				}
				fmt.Fprintln(t.Output(), row)
				for _, harm := range row.lethal {
					t.Errorf("The attacker %s\n%s", a.what, harm)
				}
			})
		}
	})
}

func TestEveryAttackSaysWhatItDoes(t *testing.T) {
	seen := make(map[string]bool)
	for _, a := range attacks() {
		if a.name == "" || a.what == "" || a.run == nil || seen[a.name] {
			t.Errorf("%q: %q: an attack needs a name of its own, a sentence and a function", a.name, a.what)
		}
		seen[a.name] = true
	}
}

// A limit that nothing can pass would prove nothing.
func TestARowThatPassesALimitSaysSo(t *testing.T) {
	served := phase{renewals: 10, p99: time.Millisecond}
	good := func() *row {
		return &row{attack: attack{}.completed(), before: served, during: served, after: served,
			memoryBefore: 10 << 20, peak: 20 << 20, memoryAfter: 12 << 20}
	}
	r := &runner{slack: 1 << 20}
	w := good()
	if w.judge(r); len(w.unmet) > 0 {
		t.Errorf("a good row: %q", w.unmet)
	}
	for name, spoil := range map[string]func(*row){
		"dead":         func(w *row) { w.death = "panic: ..." },
		"not served":   func(w *row) { w.after.failed = w.after.renewals },
		"no renewals":  func(w *row) { w.after = phase{} },
		"lease lost":   func(w *row) { w.during.lost = 1 },
		"lost later":   func(w *row) { w.after.lost = 1 },
		"breach":       func(w *row) { w.breach = "it got in" },
		"peak":         func(w *row) { w.peak = (10 + defaultMemory + 1) << 20 },
		"memory after": func(w *row) { w.memoryAfter = 17 << 20 },
		"log":          func(w *row) { w.log = defaultLog<<10 + 1 },
	} {
		w := good()
		spoil(w)
		if w.judge(r); len(w.lethal) != 1 || len(w.unmet) != 1 {
			t.Errorf("%s: %q, %q", name, w.unmet, w.lethal)
		}
	}
	for name, spoil := range map[string]func(*row){
		"slow renewals":  func(w *row) { w.during.p99 = defaultP99 },
		"slow changes":   func(w *row) { w.attack.change, w.during.changeP99 = time.Second, time.Second },
		"failed changes": func(w *row) { w.during.changesFailed = 1 },
	} {
		w := good()
		spoil(w)
		if w.judge(r); len(w.unmet) != 1 || len(w.lethal) != 0 {
			t.Errorf("%s: %q, %q", name, w.unmet, w.lethal)
		}
	}
}
