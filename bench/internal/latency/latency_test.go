package latency

import (
	"context"
	"errors"
	"io"
	"math"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/tenurelock/tenure/bench/internal/async"
	"github.com/tenurelock/tenure/bench/internal/pauses"
	"github.com/tenurelock/tenure/bench/internal/peer"
	"github.com/tenurelock/tenure/internal/await"
	"github.com/tenurelock/tenure/internal/testprocess"
)

func TestMain(m *testing.M) {
	peer.ServeChild()
	os.Exit(testprocess.Run(m))
}

func quick() Options {
	return Options{
		Connections: 2, Names: 20, InFlight: 8, Capacity: 100 * time.Millisecond, Duration: 200 * time.Millisecond,
		Share: 0.2, Tick: 200 * time.Microsecond, Progress: io.Discard,
	}
}

func TestARunAgainstARealServerHasAllItsFigures(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 2*await.Patience)
	defer cancel()
	host, err := peer.NewHost()
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := host.Close(); err != nil {
			t.Error(err)
		}
	}()
	result, err := Run(ctx, host, quick())
	if err != nil {
		t.Fatal(err)
	}
	due := int64(result.Rate * quick().Duration.Seconds())
	if got := result.Latency.TotalCount(); got != due || due == 0 {
		t.Errorf("%d renewals were answered, %d were due", got, due)
	}
	if got := result.Departure.TotalCount(); got != due {
		t.Errorf("%d renewals were started, %d were due", got, due)
	}
	if math.Abs(result.Rate-0.2*result.Capacity) > 1 {
		t.Errorf("%v a second were due of a capacity of %v", result.Rate, result.Capacity)
	}
	if result.Client.Waits.Count() == 0 || result.Server.Waits.Count() == 0 || result.Idle.Lateness.Count() == 0 {
		t.Error("a process has recorded nothing")
	}
	var text strings.Builder
	if err := result.Write(&text); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"Capacity: ", "| due to answered | ", "Target: p99 at most 1ms: ", "Target: p99.9 at most 5ms: ", "below ", "| server | ", "only sleeps"} {
		if !strings.Contains(text.String(), want) {
			t.Errorf("the report lacks %q:\n%s", want, text.String())
		}
	}
}

// loaded is a run whose renewals a test makes.
func loaded(duration time.Duration, begin func(*async.Call)) *run {
	options := quick()
	options.Duration = duration
	return &run{options: options, sleeper: pauses.Sleeper, begin: []func(*async.Call){begin}}
}

// unanswered is a request that nothing answers.
func unanswered(ctx context.Context) error {
	await.Receive(ctx.Done())
	return context.Cause(ctx)
}

// A store that stands still for 100 ms delays each request that was due meanwhile, by what was left.
func TestAStallCountsForEachRequestThatWasDue(t *testing.T) {
	const stall, rate = 100 * time.Millisecond, 1000.0
	var mu sync.Mutex
	over, waiting := false, []*async.Call(nil)
	timer := time.AfterFunc(stall, func() {
		mu.Lock()
		defer mu.Unlock()
		over = true
		for _, call := range waiting {
			call.Done(async.Result{})
		}
	})
	defer timer.Stop()
	r := loaded(2*stall, func(call *async.Call) {
		mu.Lock()
		defer mu.Unlock()
		if over {
			call.Done(async.Result{})
		} else {
			waiting = append(waiting, call)
		}
	})
	if err := r.load(t.Context(), rate); err != nil {
		t.Fatal(err)
	}
	r.expectStall(t, stall)
}

// expectStall checks the latencies of 200 renewals, one each millisecond, of which the first were
// answered at the end of a stall.
func (r *run) expectStall(t *testing.T, stall time.Duration) {
	t.Helper()
	latencies := r.latencies.merged()
	if got := latencies.TotalCount(); got != 200 {
		t.Errorf("%d renewals were answered, 200 were due", got)
	}
	late := int64(0)
	for _, bar := range latencies.Distribution() {
		if bar.From >= (stall / 2).Microseconds() {
			late += bar.Count
		}
	}
	if late < 45 { // the 50 that were due in the first half, less the ends of bars
		t.Errorf("%d renewals took longer than half of the stall", late)
	}
	if len(r.slow) < 90 {
		t.Errorf("%d renewals count as slow", len(r.slow))
	}
}

// If the clock itself is late, because the client stands still, the renewals that were due meanwhile
// are late too, however fast the store answers them.
func TestAStallOfTheClientCountsToo(t *testing.T) {
	const stall = 100 * time.Millisecond
	r := loaded(2*stall, func(call *async.Call) { call.Done(async.Result{}) })
	first := true
	r.sleeper = func() (func(time.Duration), func()) {
		return func(d time.Duration) {
			if first {
				first, d = false, stall
			}
			time.Sleep(d)
		}, func() {}
	}
	if err := r.load(t.Context(), 1000); err != nil {
		t.Fatal(err)
	}
	r.expectStall(t, stall)
	if late := r.departures.merged().Max(); late < (stall / 2).Microseconds() {
		t.Errorf("the latest departure was %d µs late", late)
	}
}

// Each renewal that is due leaves once, with a Call that no other renewal has at that time.
func TestNoCallIsUsedTwiceAtOnce(t *testing.T) {
	var mu sync.Mutex
	underWay, most := make(map[*async.Call]bool), 0
	var answers sync.WaitGroup
	r := loaded(100*time.Millisecond, func(call *async.Call) {
		mu.Lock()
		defer mu.Unlock()
		if underWay[call] {
			t.Error("a call is used for a second renewal before the first is answered")
		}
		underWay[call] = true
		most = max(most, len(underWay))
		answers.Add(1)
		time.AfterFunc(2*time.Millisecond, func() {
			defer answers.Done()
			mu.Lock()
			delete(underWay, call)
			mu.Unlock()
			call.Done(async.Result{})
		})
	})
	if err := r.load(t.Context(), 5000); err != nil {
		t.Fatal(err)
	}
	await.Done(answers.Wait)
	if got := r.latencies.merged().TotalCount(); got != 500 || most < 2 {
		t.Errorf("%d renewals were answered, of which %d at once; 500 were due", got, most)
	}
}

func TestARefusedRenewalEndsTheLoad(t *testing.T) {
	refused := errors.New("refused")
	for name, begin := range map[string]func(*async.Call){
		"at once": func(call *async.Call) { call.Done(async.Result{Err: refused}) },
		"later": func(call *async.Call) {
			time.AfterFunc(time.Millisecond, func() { call.Done(async.Result{Err: refused}) })
		},
	} {
		t.Run(name, func(t *testing.T) {
			r := loaded(time.Minute, begin)
			if err := await.Result(func() error { return r.load(t.Context(), 1000) }); !errors.Is(err, refused) {
				t.Errorf("the load ends with %v", err)
			}
			_, err := r.capacity(t.Context(), time.Minute)
			if !errors.Is(err, refused) {
				t.Errorf("the measurement of the capacity ends with %v", err)
			}
		})
	}
}

// The end of a context cancels what is under way, also what begins at the same moment.
func TestALoadEndsWithItsContext(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	var began atomic.Int64
	r := loaded(time.Hour, func(call *async.Call) {
		call.Start(unanswered)
		if began.Add(1) == 10 {
			cancel()
		}
	})
	if err := await.Result(func() error { return r.load(ctx, 1000) }); !errors.Is(err, context.Canceled) {
		t.Errorf("the load ends with %v", err)
	}
	if _, err := r.capacity(ctx, time.Minute); !errors.Is(err, context.Canceled) {
		t.Errorf("the measurement of the capacity ends with %v", err)
	}
}

// A renewal that begins while the others are being canceled is canceled too.
func TestTheEndOfAContextMissesNoRenewal(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	var began, over atomic.Int64
	others := make(chan struct{})
	r := loaded(time.Hour, func(call *async.Call) {
		switch number := began.Add(1); {
		case number < int64(quick().InFlight):
			done := call.Done
			call.Done = func(result async.Result) {
				done(result)
				if over.Add(1) == int64(quick().InFlight-1) {
					close(others)
				}
			}
			call.Start(unanswered)
		case number == int64(quick().InFlight):
			call.Start(func(context.Context) error { time.Sleep(time.Millisecond); return nil })
		default: // the answer before has begun it
			cancel()
			await.Receive(others)
			call.Start(unanswered)
		}
	})
	err := await.Result(func() error {
		_, err := r.capacity(ctx, time.Minute)
		return err
	})
	if !errors.Is(err, context.Canceled) {
		t.Errorf("the measurement of the capacity ends with %v", err)
	}
}

func TestOptionsWithoutSenseAreRefused(t *testing.T) {
	if err := quick().Check(); err != nil {
		t.Fatal(err)
	}
	for name, change := range map[string]func(*Options){
		"no connection":          func(o *Options) { o.Connections = 0 },
		"fewer leases":           func(o *Options) { o.Names = 1 },
		"nothing in flight":      func(o *Options) { o.InFlight = 0 },
		"no time":                func(o *Options) { o.Duration = 0 },
		"too long":               func(o *Options) { o.Duration = 2 * time.Hour },
		"garbage below zero":     func(o *Options) { o.Spare = -1 },
		"too much garbage":       func(o *Options) { o.Spare = 1<<30 + 1 },
		"no tick":                func(o *Options) { o.Tick = 0 },
		"a long tick":            func(o *Options) { o.Tick = time.Second },
		"no load":                func(o *Options) { o.Share = 0 },
		"all of the capacity":    func(o *Options) { o.Share = 1 },
		"not a number":           func(o *Options) { o.Share = math.NaN() },
		"no time for a capacity": func(o *Options) { o.Capacity = 0 },
	} {
		options := quick()
		change(&options)
		if err := options.Check(); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
}

func TestSlowOperationsAreNearWhatOverlapsThem(t *testing.T) {
	began := time.Now()
	event := func(at time.Duration) pauses.Event { return pauses.Event{End: began.Add(at).Round(0)} }
	ms := func(n int) time.Duration { return time.Duration(n) * time.Millisecond }
	result := &Result{
		Client: Process{Snapshot: pauses.Snapshot{Collections: []pauses.Event{event(ms(100)), event(ms(104))}}}, // 95 to 109
		Server: Process{Snapshot: pauses.Snapshot{Collections: []pauses.Event{event(ms(200))}}},                 // 195 to 205
		Idle: Process{Snapshot: pauses.Snapshot{Stalls: []pauses.Event{event(ms(1))}, // 0 to 6
			Away: []pauses.Event{event(ms(500))}}}, // 495 to 505
	}
	slow := []span{{ms(90), ms(94)}, {ms(90), ms(96)}, {ms(108), ms(110)}, {ms(90), ms(200)}, {ms(2), ms(4)}, {ms(500), ms(501)}}
	found := near(slow, began, time.Second, result)
	for i, want := range []struct {
		slow   int
		chance float64
	}{{3, 0.014}, {1, 0.010}, {1, 0.010}, {1, 0.006}, {1, 0.960}} {
		if found[i].Slow != want.slow || math.Abs(found[i].Chance-want.chance) > 1e-6 {
			t.Errorf("%s: %d slow operations and a chance of %.4f, want %d and %.4f", found[i].What, found[i].Slow, found[i].Chance, want.slow, want.chance)
		}
	}
}

// On 32 bits a difference of 3 s in nanoseconds is no int.
func TestSpansThatAreFarApartAreMergedInOrder(t *testing.T) {
	first, second := span{0, time.Second}, span{3 * time.Second, 4 * time.Second}
	for _, spans := range [][]span{{first, second}, {second, first}} {
		if merged := merge(spans); len(merged) != 2 || merged[0] != first || merged[1] != second {
			t.Errorf("merged to %v", merged)
		}
	}
}
