package cluster_test

import (
	"encoding/binary"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/tenurelock/tenure/cluster"
	"github.com/tenurelock/tenure/internal/await"
	"github.com/tenurelock/tenure/statestore"
)

// BenchmarkCommit is what one command costs on three members of etcd in this process, with a
// number of commands in flight: those that come during a commit form the next batch, as in the
// engine. Each changes two records, a key and a reply.
func BenchmarkCommit(b *testing.B) {
	e := startEtcd(b, b.Cleanup)
	for _, inFlight := range []int{1, 16, 64, 256} {
		b.Run(fmt.Sprintf("inflight=%d", inFlight), func(b *testing.B) {
			options := e.candidateOptions(b, "a")
			options.Prefix, options.Logger, options.TTL = b.Name(), nil, 20*time.Second
			options.MaxOperations, options.Compact = 4096, true
			journal := campaign(b, open(b, options))
			load(b, journal)
			benchmarkCommits(b, journal, inFlight)
		})
	}
}

func benchmarkCommits(b *testing.B, journal *cluster.Journal, inFlight int) {
	requests := make(chan chan struct{}, inFlight)
	var clients, committer sync.WaitGroup
	var mu sync.Mutex
	var latencies []time.Duration
	committer.Go(func() {
		for first := range requests {
			waiting := []chan struct{}{first}
			for more := true; more; {
				select {
				case next, open := <-requests:
					if more = open; open {
						waiting = append(waiting, next)
					}
				default:
					more = false
				}
			}
			batch := make([]statestore.Group, len(waiting))
			for i := range batch {
				batch[i] = benchmarkGroup(i)
			}
			commit(b, journal, batch...)
			for _, done := range waiting {
				close(done)
			}
		}
	})
	b.ResetTimer()
	for client := range inFlight {
		clients.Go(func() {
			own := make([]time.Duration, 0, b.N/inFlight+1)
			for i := client; i < b.N; i += inFlight {
				began := time.Now()
				done := make(chan struct{})
				requests <- done
				await.Receive(done)
				own = append(own, time.Since(began))
			}
			mu.Lock()
			defer mu.Unlock()
			latencies = append(latencies, own...)
		})
	}
	await.Done(clients.Wait)
	b.StopTimer()
	close(requests)
	await.Done(committer.Wait)
	slices.Sort(latencies)
	b.ReportMetric(float64(latencies[len(latencies)/2].Microseconds()), "p50-µs")
	b.ReportMetric(float64(latencies[len(latencies)*99/100].Microseconds()), "p99-µs")
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "commands/s")
}

// benchmarkGroup is what a SET of a key changes.
func benchmarkGroup(i int) statestore.Group {
	id := binary.BigEndian.AppendUint32([]byte("key of some program "), uint32(i))
	return statestore.Group{{ID: id, Value: make([]byte, 100)}, {ID: append([]byte("r"), id...), Value: make([]byte, 80)}}
}

// BenchmarkTakeover is the time from the resignation of one process until the next has loaded
// all records.
func BenchmarkTakeover(b *testing.B) {
	e := startEtcd(b, b.Cleanup)
	for _, keys := range []int{1_000, 100_000, 1_000_000} {
		b.Run(fmt.Sprintf("keys=%d", keys), func(b *testing.B) {
			options := e.candidateOptions(b, "a")
			options.Prefix, options.Logger, options.TTL = fmt.Sprintf("takeover-%d", keys), nil, 20*time.Second
			options.MaxOperations, options.Compact = 4096, true
			candidate := open(b, options)
			journal := campaign(b, candidate)
			if loaded := load(b, journal); len(loaded) < keys {
				var batch []statestore.Group
				for i := range keys {
					batch = append(batch, benchmarkGroup(i)[:1])
				}
				commit(b, journal, batch...)
			}
			for b.Loop() {
				_ = journal.Close()
				journal = campaign(b, candidate)
				records := 0
				if _, err := journal.Load(bounded(b), func(statestore.Record) error { records++; return nil }); err != nil || records != keys {
					b.Fatalf("%d records were loaded: %v", records, err)
				}
			}
			_ = journal.Close()
		})
	}
}
