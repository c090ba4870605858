package load_test

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tenurelock/tenure/cmd/tenure/internal/load"
	"github.com/tenurelock/tenure/statestore"
	"github.com/tenurelock/tenure/transport"
	"github.com/tenurelock/tenure/transport/transporttest"
)

const prefix = "bench/1"

// bench is a store in virtual time whose replies take a millisecond, or longer during a stall.
type bench struct {
	t       *testing.T
	store   *transporttest.Store
	observe *transport.Client

	mu    sync.Mutex
	fault func(transport.Request) transporttest.Fault
	keys  map[string]bool // that were set
}

func newBench(t *testing.T) *bench {
	b := &bench{t: t, store: transporttest.Start(t), keys: make(map[string]bool)}
	b.observe, _ = b.store.Client(t, "observer", transport.ClientOptions{})
	b.store.Tap(func(applied transporttest.Applied) {
		if applied.Command.Verb == statestore.VerbSet {
			b.mu.Lock()
			defer b.mu.Unlock()
			b.keys[string(applied.Command.Key)] = true
		}
	})
	return b
}

// options returns options for a run on the store, with clients whose faults the bench decides.
func (b *bench) options(duration time.Duration) load.Options {
	return load.Options{
		Prefix: prefix, Duration: duration, Clients: 1, InFlight: 1, Verbs: []load.Verb{load.Set, load.Get}, ValueSize: 64,
		Dial: func(_ context.Context, index int) (*transport.Client, error) {
			client, conn := b.store.Client(b.t, fmt.Sprintf("bench-%d", index), transport.ClientOptions{})
			conn.SetFault(func(request transport.Request) transporttest.Fault {
				b.mu.Lock()
				fault := b.fault
				b.mu.Unlock()
				if fault != nil {
					return fault(request)
				}
				return transporttest.Fault{HoldReply: time.Millisecond}
			})
			return client, nil
		},
	}
}

// mustBeClean checks that all keys that were set are gone, and were below the prefix.
func (b *bench) mustBeClean() {
	b.t.Helper()
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.keys) == 0 {
		b.t.Error("no key was set")
	}
	for key := range b.keys {
		entry, err := b.observe.Get(b.t.Context(), key)
		if err != nil || entry.Exists || !strings.HasPrefix(key, prefix+"/") {
			b.t.Errorf("key %q: %v, %v; want it gone, and below %s/", key, entry.Exists, err, prefix)
		}
	}
}

// stalled holds the replies between two times until the latter.
func stalled(from, until time.Time) func(transport.Request) transporttest.Fault {
	return func(transport.Request) transporttest.Fault {
		now := time.Now()
		if now.Before(from) || !now.Before(until) {
			return transporttest.Fault{HoldReply: time.Millisecond}
		}
		return transporttest.Fault{HoldReply: until.Sub(now)}
	}
}

// A closed loop sends next to nothing while the store pauses, so its percentiles do not show the
// pause. With a rate, all requests that were due meanwhile do.
func TestAPauseOfTheStoreShowsInAllRequestsThatWereDueMeanwhile(t *testing.T) {
	measure := func(rate float64) (report load.Report) {
		synctest.Test(t, func(t *testing.T) {
			b := newBench(t)
			options := b.options(10 * time.Second)
			options.Rate, options.Verbs, options.Clients, options.InFlight = rate, []load.Verb{load.Get}, 2, 5
			b.fault = stalled(time.Now().Add(5*time.Second), time.Now().Add(7*time.Second))
			var err error
			if report, err = load.Run(t.Context(), options); err != nil {
				t.Fatal(err)
			}
			b.mustBeClean()
		})
		return report
	}
	closed, open := measure(0), measure(1000)
	if closed.Latency.P99.Duration > 2*time.Millisecond || closed.Latency.Max.Duration < 1900*time.Millisecond {
		t.Errorf("a closed loop: p99 %v, max %v", closed.Latency.P99, closed.Latency.Max)
	}
	// A fifth of the requests were due during the pause of 2 s.
	if open.Latency.P90.Duration < 500*time.Millisecond || open.Latency.P99.Duration < 1500*time.Millisecond {
		t.Errorf("an open loop hides the pause: p90 %v, p99 %v", open.Latency.P90, open.Latency.P99)
	}
	if open.Service.P99.Duration > 2*time.Millisecond {
		t.Errorf("the time from sending: p99 %v", open.Service.P99)
	}
	if sum := open.Done + open.Omitted; sum < 9_990 || sum > 10_010 {
		t.Errorf("%d operations of 10,000 are accounted for", sum)
	}
}

func TestOperationsThatWereDueAndNeverSentCountAsSlow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t)
		options := b.options(4 * time.Second)
		options.Rate, options.Verbs, options.InFlight = 1000, []load.Verb{load.Get}, 4
		b.fault = stalled(time.Now().Add(2*time.Second), time.Now().Add(5*time.Second))
		report, err := load.Run(t.Context(), options)
		if err != nil {
			t.Fatal(err)
		}
		if report.Omitted < 1900 || report.Omitted > 2000 || report.Latency.Count != report.Done+report.Omitted {
			t.Errorf("omitted %d, done %d, in the percentiles %d", report.Omitted, report.Done, report.Latency.Count)
		}
		if report.Latency.P90.Duration < 1500*time.Millisecond || report.Latency.P50.Duration > 10*time.Millisecond {
			t.Errorf("p50 %v, p90 %v", report.Latency.P50, report.Latency.P90)
		}
	})
}

func TestARunDoesAllOperationsInTurnAndRemovesItsKeys(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t)
		options := b.options(time.Second)
		options.Verbs, options.Clients, options.InFlight = []load.Verb{load.Set, load.Get, load.Lease}, 3, 2
		var progress []load.Progress
		options.Progress, options.ProgressEvery = func(p load.Progress) { progress = append(progress, p) }, 300*time.Millisecond
		report, err := load.Run(t.Context(), options)
		if err != nil {
			t.Fatal(err)
		}
		var sum int64
		for _, verb := range options.Verbs {
			l := report.Verbs[verb]
			sum += l.Count
			if share := float64(l.Count) / float64(report.Done); math.Abs(share-1.0/3) > 0.02 {
				t.Errorf("%s has %.2f of the operations", verb, share)
			}
			var counted int64
			for _, bucket := range l.Buckets {
				counted += bucket.Count
			}
			if counted != l.Count || l.Min.Duration > l.P50.Duration || l.P50.Duration > l.P99.Duration || l.P99.Duration > l.Max.Duration {
				t.Errorf("%s: %+v", verb, l)
			}
		}
		if sum != report.Done || report.Failed != 0 || report.Interrupted || report.KeysLeft != 0 {
			t.Errorf("%+v", report)
		}
		if set := report.Verbs[load.Set]; set.P50.Duration < 990*time.Microsecond || set.P50.Duration > 1100*time.Microsecond {
			t.Errorf("a SET whose reply takes a millisecond: %v", set.P50)
		}
		if len(progress) != 3 || progress[2].Elapsed != 900*time.Millisecond || progress[2].PerSecond == 0 || progress[2].P99 == 0 {
			t.Errorf("progress: %+v", progress)
		}
		b.mustBeClean()
	})
}

func TestAnInterruptedRunReportsWhatItMeasuredAndRemovesItsKeys(t *testing.T) {
	for _, rate := range []float64{0, 500} {
		synctest.Test(t, func(t *testing.T) {
			b := newBench(t)
			ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
			defer cancel()
			options := b.options(time.Hour)
			options.Rate, options.Verbs = rate, load.Verbs
			report, err := load.Run(ctx, options)
			if err != nil {
				t.Fatal(err)
			}
			if !report.Interrupted || report.Done == 0 || report.Failed != 0 || report.Elapsed.Duration < 2900*time.Millisecond || report.Elapsed.Duration > 3100*time.Millisecond {
				t.Errorf("rate %v: %+v", rate, report)
			}
			b.mustBeClean()
		})
	}
}

func TestAnInterruptedRunDoesNotWaitForAStoreThatHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t)
		ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
		defer cancel()
		options, began := b.options(time.Hour), time.Now()
		options.Verbs = []load.Verb{load.Lease}
		b.fault = func(transport.Request) transporttest.Fault {
			return transporttest.Fault{LoseReply: time.Since(began) > 2*time.Second, HoldReply: time.Millisecond}
		}
		report, err := load.Run(ctx, options)
		if took := time.Since(began); err != nil || !report.Interrupted || report.Done == 0 || took > 5*time.Second {
			t.Errorf("after %v: %v, %+v", took, err, report)
		}
	})
}

func TestFailuresAreCountedByReasonAndKeysThatStayAreReported(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t)
		options := b.options(time.Second)
		options.Verbs, options.InFlight = []load.Verb{load.Get}, 3
		began := time.Now()
		b.fault = func(transport.Request) transporttest.Fault {
			return transporttest.Fault{NoStore: time.Since(began) > 500*time.Millisecond, HoldReply: time.Millisecond}
		}
		report, err := load.Run(t.Context(), options)
		if err != nil {
			t.Fatal(err)
		}
		if report.Failed == 0 || report.Failed != report.Errors[transport.ErrNoStore.Error()] || report.Failed > 2000 {
			t.Errorf("failed %d: %v", report.Failed, report.Errors)
		}
		if report.KeysLeft != 3 || report.ExpireWithin.Duration != time.Minute+time.Second {
			t.Errorf("%d keys left for %v", report.KeysLeft, report.ExpireWithin)
		}
		time.Sleep(report.ExpireWithin.Duration)
		b.mustBeClean()
	})
}

func TestARunEndsIfAClientCannotConnectOrTheFirstRequestFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t)
		options := b.options(time.Second)
		options.Clients = 3
		refused := errors.New("refused")
		dial := options.Dial
		options.Dial = func(ctx context.Context, index int) (*transport.Client, error) {
			if index == 1 {
				return nil, refused
			}
			return dial(ctx, index)
		}
		if _, err := load.Run(t.Context(), options); !errors.Is(err, refused) || !strings.Contains(err.Error(), "client 2 of 3") {
			t.Errorf("a client that cannot connect: %v", err)
		}
		options.Dial = dial
		b.fault = func(transport.Request) transporttest.Fault { return transporttest.Fault{NoStore: true} }
		if _, err := load.Run(t.Context(), options); !errors.Is(err, transport.ErrNoStore) {
			t.Errorf("no store: %v", err)
		}
	})
}

func TestOptionsThatMakeNoSenseAreRefused(t *testing.T) {
	for want, options := range map[string]load.Options{
		"Options.Clients -1":      {Clients: -1},
		"Options.Clients 10001":   {Clients: 10_001},
		"Options.InFlight 1001":   {InFlight: 1001},
		"in all":                  {Clients: 1000, InFlight: 1000},
		"Options.Duration -1":     {Duration: -1},
		"Options.Rate NaN":        {Rate: math.NaN()},
		"Options.Rate -1":         {Rate: -1},
		"Options.ValueSize 7":     {ValueSize: 7},
		`operation "delete"`:      {Verbs: []load.Verb{"delete"}},
		"Options.Prefix is empty": {Prefix: " "},
		"Options.Duration 25h0m0": {Duration: 25 * time.Hour},
	} {
		options.Prefix = map[bool]string{true: "", false: prefix}[options.Prefix == " "]
		options.Clients, options.InFlight = cmp.Or(options.Clients, 1), cmp.Or(options.InFlight, 1)
		options.Duration, options.ValueSize = cmp.Or(options.Duration, time.Second), cmp.Or(options.ValueSize, 64)
		if options.Verbs == nil {
			options.Verbs = []load.Verb{load.Get}
		}
		if _, err := load.Run(t.Context(), options); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
	if verbs, err := load.ParseVerbs([]string{"SET", " get "}); err != nil || len(verbs) != 2 || verbs[0] != load.Set {
		t.Errorf("%v, %v", verbs, err)
	}
	if _, err := load.ParseVerbs([]string(nil)); err == nil {
		t.Error("no operation was accepted")
	}
	if _, err := load.ParseVerbs([]string{"del"}); err == nil || !strings.Contains(err.Error(), "choose from") {
		t.Error(err)
	}
}
