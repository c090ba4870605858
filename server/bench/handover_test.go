package bench_test

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/tenurelock/tenure/internal/await"
	"github.com/tenurelock/tenure/lease"
	"github.com/tenurelock/tenure/server"
	"github.com/tenurelock/tenure/server/internal/testsupport"
	"github.com/tenurelock/tenure/transport"
)

// handOverName is the lease of these benchmarks.
const handOverName = "press-7/active"

// BenchmarkHandOver passes one lease on among candidates that have a connection each. It reports the
// time from the call of Release until the next candidate has the lease. It also reports what all the
// other candidates, which the store refuses meanwhile, delay: a request of the new holder at that very
// moment, and its first renewal. All candidates are in this process, so with a thousand most of the
// time is theirs and not the store's.
func BenchmarkHandOver(b *testing.B) {
	for _, candidates := range []int{2, 10, 100, 1000} {
		b.Run(fmt.Sprintf("candidates=%d", candidates), func(b *testing.B) { handOver(b, candidates) })
	}
}

func handOver(b *testing.B, candidates int) {
	// A candidate that lost less than Jitter ago does not try at once. So releases are further apart.
	const ttl, renewEvery, jitter = 10 * time.Second, 600 * time.Millisecond, 50 * time.Millisecond
	address := testsupport.Start(b, server.Options{})
	renewed := make(chan time.Duration, 1)
	options := lease.Options{TTL: ttl, RenewEvery: renewEvery, Jitter: jitter, Trace: &lease.Trace{
		Renewed: func(info lease.TraceInfo) {
			select {
			case renewed <- info.RoundTrip:
			default:
			}
		},
	}}
	acquired := make(chan *lease.Tenure, 1)
	ctx, cancel := context.WithCancel(b.Context())
	defer cancel()
	var waiting sync.WaitGroup
	defer func() { cancel(); await.Done(waiting.Wait) }()
	for i := range candidates {
		client, err := transport.Dial(ctx, "mqtt://"+address, transport.Options{ClientID: fmt.Sprintf("candidate-%04d", i)})
		if err != nil {
			b.Fatal(err)
		}
		defer client.Close()
		l, err := lease.New(client, handOverName, options)
		if err != nil {
			b.Fatal(err)
		}
		waiting.Go(func() {
			for {
				tenure, err := l.Acquire(ctx)
				if err != nil {
					return
				}
				acquired <- tenure
				// It stands for election again when it has released.
				select {
				case <-tenure.Context().Done():
				case <-ctx.Done():
					return
				}
			}
		})
	}
	tenure := await.Receive(acquired)
	var handOvers, requests, renewals []time.Duration
	for b.Loop() {
		b.StopTimer()
		clearOf(renewed)
		time.Sleep(2 * jitter) // all candidates wait
		b.StartTimer()
		released := time.Now()
		if err := tenure.Release(ctx); err != nil {
			b.Fatal(err)
		}
		tenure = await.Receive(acquired)
		now := time.Now()
		handOvers = append(handOvers, now.Sub(released))
		if err := tenure.Confirm(ctx); err != nil {
			b.Fatal(err)
		}
		requests = append(requests, time.Since(now))
		renewals = append(renewals, await.Receive(renewed))
	}
	reportTimes(b, "hand-over", handOvers)
	reportTimes(b, "first-request", requests)
	reportTimes(b, "first-renewal", renewals)
	b.ReportMetric(0, "ns/op") // contains the renewal
}

func clearOf(times chan time.Duration) {
	select {
	case <-times:
	default:
	}
}

// reportTimes reports the median, the 99th percentile and the longest of times, in milliseconds.
func reportTimes(b *testing.B, of string, times []time.Duration) {
	slices.Sort(times)
	for _, quantile := range []struct {
		name string
		at   int
	}{{"p50", len(times) / 2}, {"p99", len(times) * 99 / 100}, {"max", len(times) - 1}} {
		b.ReportMetric(float64(times[quantile.at].Microseconds())/1000, "ms-"+of+"-"+quantile.name)
	}
}

// BenchmarkInstantFailover kills a process that holds a lease with InstantFailover, and reports the
// time from the SIGKILL until a candidate in this process has the lease.
func BenchmarkInstantFailover(b *testing.B) {
	address := testsupport.Start(b, server.Options{})
	l := instantLease(b, address, "candidate")
	var failovers []time.Duration
	for b.Loop() {
		b.StopTimer()
		holder := exec.CommandContext(b.Context(), os.Args[0], "-test.run", "^TestHolderThatIsKilled$")
		holder.Env = append(os.Environ(), holderEnv+"="+address)
		holder.Stderr = os.Stderr
		output, err := holder.StdoutPipe()
		if err != nil {
			b.Fatal(err)
		}
		if err := holder.Start(); err != nil {
			b.Fatal(err)
		}
		if line, err := bufio.NewReader(output).ReadString('\n'); err != nil || line != holds {
			b.Fatalf("the holder printed %q: %v", line, err)
		}
		acquired := make(chan *lease.Tenure, 1)
		go func() { // ends with the context of the benchmark at the latest
			tenure, err := l.Acquire(b.Context())
			if err != nil {
				b.Error(err)
			}
			acquired <- tenure
		}()
		time.Sleep(100 * time.Millisecond) // it waits
		b.StartTimer()
		killed := time.Now()
		if err := holder.Process.Kill(); err != nil {
			b.Fatal(err)
		}
		tenure := await.Receive(acquired)
		failovers = append(failovers, time.Since(killed))
		_ = await.Result(holder.Wait) // killed
		if tenure == nil {
			b.FailNow()
		}
		if err := tenure.Release(b.Context()); err != nil {
			b.Fatal(err)
		}
	}
	reportTimes(b, "failover", failovers)
}

const (
	holderEnv = "TENURE_BENCH_HOLDER"
	holds     = "holds the lease\n"
)

// TestHolderThatIsKilled is the process that BenchmarkInstantFailover kills. In any other process it
// does nothing.
func TestHolderThatIsKilled(t *testing.T) {
	address := os.Getenv(holderEnv)
	if address == "" {
		t.Skip("only in the process of a holder")
	}
	if _, err := instantLease(t, address, "holder").Acquire(t.Context()); err != nil {
		t.Fatal(err)
	}
	fmt.Print(holds)
	await.Receive(t.Context().Done()) // it is killed
}

func instantLease(t testing.TB, address, id string) *lease.Lease {
	t.Helper()
	client, err := transport.Dial(t.Context(), "mqtt://"+address, transport.Options{ClientID: id, KeepAlive: 20 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = client.Close() })
	l, err := lease.New(client, handOverName, lease.Options{TTL: 10 * time.Second, InstantFailover: true})
	if err != nil {
		t.Fatal(err)
	}
	return l
}
