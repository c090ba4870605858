//go:build unix

package takeover_test

import (
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/tenurelock/tenure/cluster/internal/etcdtest"
	"github.com/tenurelock/tenure/cluster/member"
	"github.com/tenurelock/tenure/internal/await"
	"github.com/tenurelock/tenure/internal/prerequisite"
	"github.com/tenurelock/tenure/internal/testprocess"
	"github.com/tenurelock/tenure/server/crashtest"
)

var (
	cycles = flag.Int("takeover.cycles", 6, "how often the active store is killed, frozen or stopped")
	seed   = flag.Uint64("takeover.seed", 1, "the seed of the choices")
)

func TestMain(m *testing.M) {
	crashtest.Main(serve)
	os.Exit(testprocess.Run(m))
}

// etcd is three members in this process.
type etcd struct {
	urls     []string
	options  [3]member.Options
	restarts sync.WaitGroup

	mu      sync.Mutex // held while a member is restarted
	members [3]*member.Member
	fault   error // of a restart
}

func startEtcd(t *testing.T) *etcd {
	t.Helper()
	e := &etcd{options: etcdtest.Members(t, t.Cleanup)}
	var starts sync.WaitGroup
	for i := range e.members {
		e.urls = append(e.urls, e.options[i].ClientURL)
		starts.Go(func() {
			var err error
			if e.members[i], err = member.Start(e.options[i]); err != nil {
				t.Error(err)
			}
		})
	}
	await.Done(starts.Wait)
	t.Cleanup(func() {
		await.Done(e.restarts.Wait)
		var ends sync.WaitGroup
		for _, m := range e.members {
			if m != nil {
				ends.Go(m.Close)
			}
		}
		await.Done(ends.Wait)
		if e.fault != nil {
			t.Error(e.fault)
		}
	})
	if t.Failed() {
		t.FailNow()
	}
	// Only now may children be started: see restart.
	for i, m := range e.members {
		select {
		case <-m.Ready():
		case <-m.Done():
			t.Fatalf("member %d of etcd has ended: %v", i, m.Err())
		case <-time.After(await.Patience):
			t.Fatalf("member %d of etcd does not answer", i)
		}
	}
	return e
}

// restart restarts a member, unless one is being restarted. It returns at once.
func (e *etcd) restart(i int, after time.Duration) (begun bool) {
	if !e.mu.TryLock() {
		return false
	}
	e.restarts.Go(func() {
		defer e.mu.Unlock()
		e.members[i].Close()
		time.Sleep(after)
		started, err := member.Start(e.options[i])
		// A child that is being started has the sockets of its parent for a moment, also those
		// that were just closed.
		for tries := 0; err != nil && tries < 20; tries++ {
			time.Sleep(100 * time.Millisecond)
			started, err = member.Start(e.options[i])
		}
		if err != nil {
			e.members[i], e.fault = nil, err
			return
		}
		e.members[i] = started
	})
	return true
}

func newPair(e *etcd, prefix string, fault crashtest.Fault) *pair {
	return &pair{
		etcd: e,
		task: crashtest.Task{
			Fault:     fault,
			Arguments: map[string]string{"endpoints": strings.Join(e.urls, ","), "prefix": prefix},
		},
		random: rand.New(rand.NewPCG(*seed, 3)),
		ways:   make(map[string]int),
	}
}

// options returns the options of a run. A takeover takes longer than a restart, and leases must
// outlast it.
func options(n int) crashtest.Options {
	return crashtest.Options{Cycles: n, Seed: *seed, TTL: 8 * time.Second}
}

// Invariants 11, 13, 30, 32, 33, 35, 36 and 37 on etcd.
func TestInvariants32And33And35And37ATakeoverLosesNothingThatWasAcknowledged(t *testing.T) {
	p := newPair(startEtcd(t), "takeover/", crashtest.None)
	o := options(*cycles)
	o.Progress = func(cycle int, report *crashtest.Report) {
		if cycle%10 == 0 {
			t.Logf("%4d takeovers, %6d requests answered, %5d histories checked, %d violations", cycle, report.Answered, report.Histories, len(report.Violations))
		}
	}
	report, err := crashtest.Run(t.Context(), p, o)
	if err := errors.Join(err, p.close(), report.Err()); err != nil {
		t.Error(err)
	}
	t.Logf("seed %d, the active store was %v:\n\n%v", *seed, p.ways, report)
}

func TestEachFaultOfAPairIsFoundWithinAHundredTakeovers(t *testing.T) {
	prerequisite.Long(t, "it takes a minute")
	e := startEtcd(t)
	for i, fault := range []crashtest.Fault{deposedWriter, deposedReader} {
		t.Run(string(fault), func(t *testing.T) {
			t.Parallel()
			p := newPair(e, fmt.Sprintf("fault%d/", i), fault)
			report, err := crashtest.Run(t.Context(), p, options(100))
			if len(report.Violations) == 0 {
				t.Fatalf("it was not found in %d takeovers: %v", report.Cycles, err)
			}
			t.Logf("found after %d takeovers %v: %.300s", report.Cycles, p.ways, report.Violations[0])
			_ = p.close()
		})
	}
}
