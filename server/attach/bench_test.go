package attach_test

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/tenurelock/tenure/internal/await"
	"github.com/tenurelock/tenure/internal/mosquitto"
	"github.com/tenurelock/tenure/server/attach"
	"github.com/tenurelock/tenure/server/internal/testsupport"
	"github.com/tenurelock/tenure/transport"
)

// BenchmarkAttached measures a Set, one after the other, through mosquitto: with the
// settings of docs/attach.md, and without the one that matters most.
func BenchmarkAttached(b *testing.B) {
	for _, bench := range []struct{ name, settings string }{
		{"set_tcp_nodelay=true", ""},
		{"set_tcp_nodelay=false", "set_tcp_nodelay false\n"},
	} {
		b.Run(bench.name, func(b *testing.B) {
			broker := "mqtt://" + mosquitto.Start(b, bench.settings).Address
			store, err := attach.New(broker, attach.Options{})
			if err != nil {
				b.Fatal(err)
			}
			ctx, stop := context.WithCancel(b.Context())
			served := make(chan error, 1)
			go func() { served <- store.Serve(ctx) }()
			select {
			case <-store.Ready():
			case err := <-served:
				b.Fatal(err)
			case <-time.After(await.Patience):
				b.Fatal("the store is not attached")
			}
			client, err := transport.Dial(ctx, broker, transport.Options{})
			if err != nil {
				b.Fatal(err)
			}
			for b.Loop() {
				if _, err := client.Set(ctx, "k", []byte("v"), transport.SetOptions{}); err != nil {
					b.Fatal(err)
				}
			}
			_ = client.Close()
			stop()
			if err := await.Receive(served); err != nil {
				b.Error(err)
			}
		})
	}
}

// BenchmarkRenewalDuringAFlood measures one renewal after the other, while clients write values of
// 1 MB as fast as they can to an attached store with a journal that takes some time for each commit.
func BenchmarkRenewalDuringAFlood(b *testing.B) {
	const keepsFor = 10 * time.Second
	for _, bench := range []struct {
		writers int
		latency time.Duration // of a commit; negative: no journal
	}{{0, 20 * time.Millisecond}, {4, -1}, {4, 20 * time.Millisecond}, {4, time.Second}} {
		b.Run(fmt.Sprintf("writers=%d/commit=%v", bench.writers, bench.latency), func(b *testing.B) {
			broker := mosquitto.Start(b, "")
			journal := new(testsupport.Journal)
			options := attach.Options{}
			if bench.latency > 0 {
				options.Journal = journal.Open()
			}
			testsupport.Attach(b, broker.Address, options)
			dial := func(id string) *transport.Client {
				client, err := transport.Dial(b.Context(), "mqtt://"+broker.Address, transport.Options{ClientID: id})
				if err != nil {
					b.Fatal(err)
				}
				b.Cleanup(func() { _ = client.Close() })
				return client
			}
			holder := dial("holder")
			renew := func() error {
				_, err := holder.Set(b.Context(), "lease", []byte("holder"), transport.SetOptions{TTL: keepsFor, Condition: transport.IfMissingOrEqual})
				return err
			}
			if err := renew(); err != nil {
				b.Fatal(err)
			}
			journal.SetLatency(max(bench.latency, 0))
			ctx, stop := context.WithCancel(b.Context())
			defer stop()
			var writers sync.WaitGroup
			defer await.Done(writers.Wait)
			for i := range bench.writers {
				client := dial(fmt.Sprint("writer", i))
				for range 4 { // requests at a time
					writers.Go(func() {
						for n := byte(0); ctx.Err() == nil; n++ {
							_, _ = client.Set(ctx, fmt.Sprint(i), append(make([]byte, 1_000_000), n), transport.SetOptions{})
						}
					})
				}
			}
			defer stop()
			var took []time.Duration
			failed := 0
			for b.Loop() {
				began := time.Now()
				if renew() != nil {
					failed++
				}
				took = append(took, time.Since(began))
			}
			slices.Sort(took)
			b.ReportMetric(float64(took[len(took)/2].Microseconds())/1000, "p50-ms")
			b.ReportMetric(float64(took[len(took)*99/100].Microseconds())/1000, "p99-ms")
			b.ReportMetric(float64(took[len(took)-1].Microseconds())/1000, "max-ms")
			b.ReportMetric(float64(failed), "failed")
		})
	}
}
