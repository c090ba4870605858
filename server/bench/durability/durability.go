// Package durability measures a server over MQTT with each way to keep its data. The benchmarks of
// several modules call it, each with its own journals, so that their figures are of one run and
// mean the same:
//
//	func BenchmarkDurability(b *testing.B) {
//		durability.Run(b, durability.Memory(), durability.File(), mine)
//	}
//
// A line of its output is named op=Set/inflight=64/mode=file. server/bench/durability.awk makes
// a table from such lines. Server and client are in one process, and
// connected over TCP on loopback. The figures depend on the disk below os.TempDir, and on what
// else the machine does; ratios between the modes mean more than times.
package durability

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/tenurelock/tenure/hlc"
	"github.com/tenurelock/tenure/lease"
	"github.com/tenurelock/tenure/resp3"
	"github.com/tenurelock/tenure/server"
	"github.com/tenurelock/tenure/server/journal"
	"github.com/tenurelock/tenure/statestore"
	"github.com/tenurelock/tenure/transport"
)

// Mode is a way to keep the data of a store.
type Mode struct {
	// Name names the mode in the output. It has no slash.
	Name string
	// Data makes room for the data of a new store, until the benchmark ends, and returns what
	// opens its journal. The first journal is empty. Each later one has what was committed
	// before, and is opened after the earlier one was closed. A nil Data keeps nothing.
	Data func(b *testing.B) (open func(context.Context) (statestore.Journal, error))
}

// Memory is a store that keeps nothing.
func Memory() Mode { return Mode{Name: "memory"} }

// File is a store with a journal in a file below os.TempDir.
func File() Mode {
	return Mode{Name: "file", Data: func(b *testing.B) func(context.Context) (statestore.Journal, error) {
		dir := filepath.Join(b.TempDir(), "data")
		return func(context.Context) (statestore.Journal, error) { return journal.Open(dir, journal.Options{}) }
	}}
}

const (
	heldLeases = 10_000
	held       = 20 * time.Second
	leaseTTL   = 10 * time.Second
	acquirers  = 64
	restarts   = 3
)

// Run measures, for each mode,
//
//   - op=Set: SETs of small values over one connection, with 1, 16, 64 and 256 under way at once:
//     how many there are in a second, and the median and the 99th percentile of the time that one
//     takes. As a reference, op=Fsync is a write of 4 KiB to a file and its fsync;
//   - op=Renewals: 10,000 leases with a TTL of 10 s, held for 20 s: how much of one processor
//     client and server take, how often they write to the journal, and how many leases were lost:
//     if any, other programs took the processor, and the other figures mean little;
//   - op=Restart: the time from the opening of a journal with 100,000 and 1,000,000 keys to the
//     first answer, the median of three restarts, with the file in the cache of the system.
func Run(b *testing.B, modes ...Mode) {
	b.Run("op=Fsync", fsyncs)
	for _, inFlight := range []int{1, 16, 64, 256} {
		for _, mode := range modes { // the modes side by side, because the machine changes
			b.Run(fmt.Sprintf("op=Set/inflight=%d/mode=%s", inFlight, mode.Name), func(b *testing.B) { sets(b, mode, inFlight) })
		}
	}
	for _, mode := range modes {
		b.Run(fmt.Sprintf("op=Renewals/leases=%d/mode=%s", heldLeases, mode.Name), func(b *testing.B) { renewals(b, mode) })
	}
	for _, keys := range []int{100_000, 1_000_000} {
		for _, mode := range modes {
			if mode.Data != nil {
				b.Run(fmt.Sprintf("op=Restart/keys=%d/mode=%s", keys, mode.Name), func(b *testing.B) { restart(b, mode, keys) })
			}
		}
	}
}

func fsyncs(b *testing.B) {
	file, err := os.Create(filepath.Join(b.TempDir(), "file"))
	if err != nil {
		b.Fatal(err)
	}
	defer file.Close()
	page := make([]byte, 4096)
	for b.Loop() {
		if _, err := file.WriteAt(page, 0); err != nil {
			b.Fatal(err)
		}
		if err := file.Sync(); err != nil {
			b.Fatal(err)
		}
	}
}

// running is a server and a client of it.
type running struct {
	client  *transport.Client
	commits *counted // nil for a store in memory
}

// counted counts the commits of a journal.
type counted struct {
	statestore.Journal
	commits atomic.Int64
}

func (c *counted) Commit(ctx context.Context, batch []statestore.Group) error {
	c.commits.Add(1)
	return c.Journal.Commit(ctx, batch)
}

// run opens a journal and runs a server with it, until stop is called.
func run(b *testing.B, open func(context.Context) (statestore.Journal, error)) (r *running, stop func()) {
	b.Helper()
	r = new(running)
	options := server.Options{Addr: "127.0.0.1:0"}
	if open != nil {
		data, err := open(b.Context())
		if err != nil {
			b.Fatal(err)
		}
		r.commits = &counted{Journal: data}
		options.Journal = r.commits
	}
	s, err := server.Open(b.Context(), options)
	if err != nil {
		b.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	served := make(chan error, 1)
	go func() { served <- s.Serve(ctx) }()
	if r.client, err = transport.Dial(b.Context(), "mqtt://"+s.Addr().String(), transport.Options{ClientID: "bench"}); err != nil {
		cancel()
		b.Fatal(errors.Join(err, <-served))
	}
	return r, func() {
		b.Helper()
		err := r.client.Close()
		cancel()
		err = errors.Join(err, <-served)
		if r.commits != nil {
			err = errors.Join(err, r.commits.Close())
		}
		if err != nil {
			b.Error(err)
		}
	}
}

// start runs a server with empty data.
func start(b *testing.B, mode Mode) (r *running, stop func()) {
	b.Helper()
	if mode.Data == nil {
		return run(b, nil)
	}
	return run(b, mode.Data(b))
}

func key(i int) string { return fmt.Sprintf("press-%07d/setpoint", i) }

func sets(b *testing.B, mode Mode, inFlight int) {
	r, stop := start(b, mode)
	defer stop()
	var left atomic.Int64
	took := make([][]time.Duration, inFlight)
	var working sync.WaitGroup
	left.Store(int64(b.N))
	b.ResetTimer()
	began := time.Now()
	for worker := range inFlight {
		name := key(worker)
		working.Go(func() {
			for n := left.Add(-1); n >= 0; n = left.Add(-1) {
				sent := time.Now()
				if _, err := r.client.Set(b.Context(), name, fmt.Appendf(nil, "%016d", n), transport.SetOptions{}); err != nil {
					left.Store(0)
					b.Error(err)
					return
				}
				took[worker] = append(took[worker], time.Since(sent))
			}
		})
	}
	working.Wait()
	elapsed := time.Since(began)
	b.StopTimer()
	all := slices.Concat(took...)
	if len(all) == 0 {
		return // it has failed
	}
	slices.Sort(all)
	b.ReportMetric(float64(len(all))/elapsed.Seconds(), "ops/s")
	b.ReportMetric(milliseconds(all[len(all)/2]), "ms-p50")
	b.ReportMetric(milliseconds(all[len(all)*99/100]), "ms-p99")
}

func milliseconds(d time.Duration) float64 { return float64(d.Nanoseconds()) / 1e6 }

func renewals(b *testing.B, mode Mode) {
	for b.Loop() {
		r, stop := start(b, mode)
		tenures := make([]*lease.Tenure, heldLeases)
		// Not all at once: on a busy machine those that hold already would renew too late.
		var acquiring sync.WaitGroup
		var next atomic.Int64
		for range acquirers {
			acquiring.Go(func() {
				for i := next.Add(1) - 1; i < heldLeases && !b.Failed(); i = next.Add(1) - 1 {
					l, err := lease.New(r.client, key(int(i)), lease.Options{TTL: leaseTTL})
					if err == nil {
						tenures[i], err = l.Acquire(b.Context())
					}
					if err != nil {
						b.Error(err)
					}
				}
			})
		}
		acquiring.Wait()
		if b.Failed() {
			stop()
			return
		}
		time.Sleep(leaseTTL / 2) // each has been renewed once
		var commits int64
		if r.commits != nil {
			commits = -r.commits.commits.Load()
		}
		began, used := time.Now(), processorTime()
		time.Sleep(held)
		b.ReportMetric(100*(processorTime()-used).Seconds()/time.Since(began).Seconds(), "%CPU")
		if r.commits != nil {
			commits += r.commits.commits.Load()
		}
		b.ReportMetric(float64(commits)/time.Since(began).Minutes(), "commits/min")
		lost := 0
		for _, tenure := range tenures {
			if context.Cause(tenure.Context()) != nil {
				lost++
			}
		}
		b.ReportMetric(float64(lost), "lost")
		stop()
	}
}

func restart(b *testing.B, mode Mode, keys int) {
	open := mode.Data(b)
	fill(b, open, keys)
	var took []time.Duration
	for b.Loop() {
		for range restarts {
			began := time.Now()
			r, stop := run(b, open)
			entry, err := r.client.Get(b.Context(), key(keys-1))
			took = append(took, time.Since(began))
			if err != nil || len(entry.Value) == 0 {
				b.Errorf("the last key: %+v, %v", entry, err)
			}
			stop()
		}
	}
	slices.Sort(took)
	b.ReportMetric(took[len(took)/2].Seconds(), "s-to-answer")
}

// batch is how many keys fill puts into one commit.
const batch = 1000

// fill writes keys to a journal, as a store does that has so many SETs under way.
func fill(b *testing.B, open func(context.Context) (statestore.Journal, error), keys int) {
	b.Helper()
	data, err := open(b.Context())
	if err != nil {
		b.Fatal(err)
	}
	defer func() {
		if err := data.Close(); err != nil {
			b.Fatal(err)
		}
	}()
	former, err := data.Load(b.Context(), func(statestore.Record) error { return nil })
	if err != nil {
		b.Fatal(err)
	}
	store, err := statestore.New(statestore.Options{Identity: "benchmark", Journaled: true})
	if err != nil {
		b.Fatal(err)
	}
	now := statestore.Instant{WallMillis: time.Now().UnixMilli()}
	stamp := hlc.Timestamp{Wall: now.WallMillis, Node: "bench"}.String()
	first, err := store.Restored(now, former)
	if err != nil {
		b.Fatal(err)
	}
	groups := []statestore.Group{first}
	for i := range keys {
		payload := resp3.AppendCommand(nil, "SET", key(i), fmt.Sprintf("%016d", i))
		reply, effects := store.Apply(now, statestore.Parse(statestore.Request{Client: "bench", Payload: payload, Timestamp: &stamp}))
		if reply.Outcome != statestore.OK {
			b.Fatalf("key %d: %v", i, reply.Outcome)
		}
		if groups = append(groups, effects.Groups...); len(groups) >= batch || i == keys-1 {
			if reserved := store.Reserve(now); len(reserved) > 0 {
				groups = append(groups, reserved)
			}
			if err := data.Commit(b.Context(), groups); err != nil {
				b.Fatal(err)
			}
			groups = groups[:0]
		}
	}
}
