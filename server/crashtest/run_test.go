package crashtest_test

import (
	"context"
	"errors"
	"flag"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/tenurelock/tenure/internal/failpoint"
	"github.com/tenurelock/tenure/internal/prerequisite"
	"github.com/tenurelock/tenure/internal/sleep"
	"github.com/tenurelock/tenure/internal/testprocess"
	"github.com/tenurelock/tenure/server/crashtest"
	"github.com/tenurelock/tenure/server/journal"
	"github.com/tenurelock/tenure/statestore"
)

var (
	cycles = flag.Int("crash.cycles", 16, "how often TestCrashes kills the store")
	seed   = flag.Uint64("crash.seed", 1, "the seed of the choices")
)

func TestMain(m *testing.M) {
	crashtest.Main(serve)
	os.Exit(testprocess.Run(m))
}

// serve is the child.
func serve(ctx context.Context, task crashtest.Task) error {
	file, err := journal.Open(task.Dir, journal.Options{})
	if err != nil {
		return err
	}
	defer file.Close()
	var kept statestore.Journal = file
	if built := task.Arguments["fault"]; built != "" {
		kept = &faulty{Journal: file, fault: fault(built)}
	}
	s, err := crashtest.Open(ctx, task, kept, nil)
	if err != nil {
		return err
	}
	go func() { // ends with the process; it may be killed while it makes a backup
		backup := filepath.Join(task.Dir, "backup")
		for ctx.Err() == nil {
			_, _ = journal.Backup(ctx, task.Dir, backup)
			_ = os.Remove(backup)
			sleep.For(ctx, 20*time.Millisecond)
		}
	}()
	return s.Serve(ctx)
}

// process is a store in a child process, which is killed with SIGKILL.
type process struct {
	crashtest.Target
	task  crashtest.Task   // for each child; Run sets its Life
	child *crashtest.Child // nil at first
}

// Start implements crashtest.Store.
func (p *process) Start(ctx context.Context, life crashtest.Life) (err error) {
	task := p.task
	task.Life = life
	if p.child, err = crashtest.Launch(task, nil); err != nil {
		return err
	}
	address, err := p.child.Address(ctx)
	if err == nil {
		p.SetAddress(address)
	}
	return err
}

// Died implements crashtest.Store.
func (p *process) Died() <-chan struct{} { return p.child.Died() }

// Kill implements crashtest.Store. It returns the error of a child that ended by itself, and not at its point.
func (p *process) Kill() error {
	if p.child == nil {
		return nil
	}
	return p.child.Kill()
}

// Points implements crashtest.Store.
func (p *process) Points() []failpoint.Point { return failpoint.Points() }

// Invariants 11, 13, 15, 30, 32, 33, 36, 37: a server on a file, killed again and again.
func TestInvariants32And33And37ACrashLosesNothingThatWasAcknowledged(t *testing.T) {
	for _, run := range []struct {
		name   string
		strict bool
		cycles int
	}{{"default", false, (*cycles + 1) / 2}, {"strict", true, *cycles / 2}} {
		t.Run(run.name, func(t *testing.T) {
			crash := func(cycles int) error {
				store := &process{task: crashtest.Task{Dir: t.TempDir(), Strict: run.strict}}
				report, err := crashtest.Run(t.Context(), store, crashtest.Options{
					Cycles: cycles,
					Seed:   *seed,
					Strict: run.strict,
				})
				t.Logf("%s store, seed %d:\n%v", run.name, *seed, report)
				if report.Violation != nil {
					t.Error(report.Violation)
				}
				return errors.Join(err, report.Err())
			}
			err := crash(run.cycles)
			if errors.Is(err, crashtest.ErrThin) { // a few crashes on a busy machine: more of them decide
				err = crash(4 * run.cycles)
			}
			if err != nil {
				t.Error(err)
			}
		})
	}
}

// A check that was never seen to fail proves nothing: each fault that a journal could have is
// built in, and found.
func TestEachFaultIsFoundWithinAHundredCrashes(t *testing.T) {
	prerequisite.Long(t, "it takes half a minute")
	for _, built := range faults {
		t.Run(string(built), func(t *testing.T) {
			t.Parallel()
			store := &process{task: crashtest.Task{Dir: t.TempDir(), Arguments: map[string]string{"fault": string(built)}}}
			report, err := crashtest.Run(t.Context(), store, crashtest.Options{Cycles: 100, Seed: *seed})
			if report.Violation == nil {
				t.Fatalf("it was not found in %d crashes: %v", report.Cycles, err)
			}
			t.Logf("found after %d crashes: %.300s", report.Cycles, report.Violation.Error())
		})
	}
}

func TestARunInWhichLittleHappenedFails(t *testing.T) {
	if err := (&crashtest.Report{Cycles: 10}).Err(); !errors.Is(err, crashtest.ErrThin) {
		t.Errorf("the error is %v", err)
	}
}
