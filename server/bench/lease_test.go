//go:build unix

package bench_test

import (
	"context"
	"fmt"
	"runtime"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/tenurelock/tenure/internal/await"
	"github.com/tenurelock/tenure/lease"
	"github.com/tenurelock/tenure/server"
	"github.com/tenurelock/tenure/server/internal/testsupport"
	"github.com/tenurelock/tenure/transport"
)

// BenchmarkLeases holds 10,000 leases with a TTL of 10 s for a minute, over one
// connection to a server in the same process, so that the share of a CPU and the
// memory are the sum of both. The worst delay is how much later than RenewEvery the reply
// to a renewal came, seen by looking at a tenth of them ten times a second: a look at all of them
// would cost as much as their renewals.
func BenchmarkLeases(b *testing.B) {
	for _, bench := range []struct {
		name    string
		noWatch bool
	}{{"watched", false}, {"NoWatch", true}} {
		b.Run(bench.name, func(b *testing.B) { holdLeases(b, 10_000, time.Minute, bench.noWatch) })
	}
}

func holdLeases(b *testing.B, leases int, held time.Duration, noWatch bool) {
	const ttl = 10 * time.Second
	options := lease.Options{TTL: ttl, Margin: ttl / 10, RenewEvery: ttl / 6, NoWatch: noWatch}
	for b.Loop() {
		address := testsupport.Start(b, server.Options{})
		client, err := transport.Dial(b.Context(), "mqtt://"+address, transport.Options{ClientID: "bench"})
		if err != nil {
			b.Fatal(err)
		}
		before := measure()
		tenures := make([]*lease.Tenure, leases)
		var acquiring sync.WaitGroup
		for i := range tenures {
			acquiring.Go(func() {
				l, err := lease.New(client, fmt.Sprint("lease-", i), options)
				if err == nil {
					tenures[i], err = l.Acquire(b.Context())
				}
				if err != nil {
					b.Error(err)
				}
			})
		}
		await.Done(acquiring.Wait)
		if b.Failed() {
			b.FailNow()
		}
		began, cpu := time.Now(), cpuTime(b)
		full := options.TTL - options.Margin
		least := full
		tick := time.NewTicker(100 * time.Millisecond)
		for part := 0; time.Since(began) < held; part = (part + 1) % 10 {
			for i := part; i < len(tenures); i += 10 {
				least = min(least, tenures[i].Remaining())
			}
			await.Receive(tick.C)
		}
		tick.Stop()
		share := float64(cpuTime(b)-cpu) / float64(time.Since(began))
		after := measure()
		for _, tenure := range tenures {
			if err := context.Cause(tenure.Context()); err != nil {
				b.Fatalf("a tenure was lost: %v", err)
			}
		}
		b.ReportMetric(100*share, "%CPU")
		b.ReportMetric(float64(after.heap-before.heap)/float64(leases), "B/lease")
		b.ReportMetric(float64(after.goroutines-before.goroutines)/float64(leases), "goroutines/lease")
		b.ReportMetric(float64((full-options.RenewEvery-least).Microseconds())/1000, "ms-late-at-worst")
		if err := client.Close(); err != nil {
			b.Fatal(err)
		}
	}
}

type measured struct{ heap, goroutines int64 }

func measure() measured {
	runtime.GC()
	var memory runtime.MemStats
	runtime.ReadMemStats(&memory)
	return measured{int64(memory.HeapAlloc + memory.StackInuse), int64(runtime.NumGoroutine())}
}

// cpuTime is what this process has used so far.
func cpuTime(b *testing.B) time.Duration {
	var usage syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &usage); err != nil {
		b.Fatal(err)
	}
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
}
