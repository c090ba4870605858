package engine

import (
	"bytes"
	"context"
	"fmt"
	"math/bits"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/tenurelock/tenure/internal/await"
	"github.com/tenurelock/tenure/resp3"
	"github.com/tenurelock/tenure/statestore"
)

// BenchmarkPause measures how long a request waits while a hundred thousand of a million keys
// expire at once, in memory and with a journal that takes 10 ms for each commit. It reports the
// longest request in milliseconds, and how late the last notification was.
//
// With -v it prints how many requests took how long: while nothing expires, while the keys do, and
// while nothing expires and the garbage of a million keys is collected. The machine delays some
// requests in each case. The requests allocate next to nothing, so that no collection falls into the
// first two by chance: on two processors a collection can take the processor of a request away for
// ten milliseconds, whether keys expire or not.
func BenchmarkPause(b *testing.B) {
	b.Run("memory", func(b *testing.B) { benchmarkPause(b, nil) })
	b.Run("journal", func(b *testing.B) { benchmarkPause(b, nowhere{10 * time.Millisecond}) })
}

func benchmarkPause(b *testing.B, journal statestore.Journal) {
	const kept, due = 900_000, 100_000
	for range b.N {
		told := 0
		notified := time.Time{} // the last one
		e, err := Open(b.Context(), statestore.Options{}, journal, func(statestore.Notification) { told++; notified = time.Now() })
		if err != nil {
			b.Fatal(err)
		}
		ctx, stop := context.WithCancel(b.Context())
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			if err := e.Run(ctx); err != nil {
				b.Error(err)
			}
		}()

		ts := "0:0:client"
		submit := func(payload []byte) {
			if err := e.Room(ctx); err != nil {
				b.Error(err)
			}
			e.Submit(statestore.Parse(statestore.Request{Client: "client", Payload: payload, Timestamp: &ts}), nil)
		}
		apply := func(words ...string) { submit(resp3.AppendCommand(nil, words...)) }
		for i := range kept {
			apply("SET", fmt.Sprintf("kept-%07d", i), "value", "PX", "3600000")
		}
		const wait = 20 * time.Second // to set all that will be due
		moment := time.Now().Add(wait)
		for i := range due {
			key := fmt.Sprint("due-", i)
			apply("KEYNOTIFY", key)
			apply("SET", key, "value", "PX", fmt.Sprint(max(time.Until(moment).Milliseconds(), 1)))
		}
		last := resp3.AppendCommand(nil, "SET", "last", "value")
		if _, err := e.Apply(statestore.Parse(statestore.Request{Client: "client", Payload: last, Timestamp: &ts})); err != nil {
			b.Fatal(err)
		}
		told = 0 // all that was notified so far has left
		runtime.GC()
		if late := time.Since(moment); late > -time.Second {
			b.Fatalf("the keys were set %v too late to fall due together", late+time.Second)
		}
		renewal := resp3.AppendCommand(nil, "SET", "kept-0000000", "value", "NEX", "PX", "3600000")
		digits := renewal[bytes.Index(renewal, []byte("kept-"))+len("kept-"):][:7]
		renewUntil := func(end time.Time) (took histogram) {
			for requests := 0; time.Now().Before(end); requests++ {
				for n, at := requests%kept, len(digits)-1; at >= 0; n, at = n/10, at-1 {
					digits[at] = byte('0' + n%10)
				}
				began := time.Now()
				submit(renewal)
				took.add(time.Since(began))
			}
			return took
		}
		var memory runtime.MemStats
		runtime.ReadMemStats(&memory)
		collections := memory.NumGC
		// For comparison: the same while no key expires.
		time.Sleep(time.Until(moment.Add(-700 * time.Millisecond)))
		idle := renewUntil(moment.Add(-200 * time.Millisecond))
		time.Sleep(time.Until(moment.Add(-50 * time.Millisecond)))
		busy := renewUntil(moment.Add(450 * time.Millisecond))
		runtime.ReadMemStats(&memory)
		collections = memory.NumGC - collections
		for end := moment.Add(10 * time.Second); e.Usage().Keys > kept+1 && time.Now().Before(end); {
			time.Sleep(10 * time.Millisecond)
		}
		collected := make(chan struct{})
		go func() {
			defer close(collected)
			runtime.GC()
		}()
		collecting := renewUntil(time.Now().Add(500 * time.Millisecond))
		await.Receive(collected)
		stop()
		await.Receive(ended)
		if told != due {
			b.Fatalf("%d keys were notified, want %d", told, due)
		}
		b.ReportMetric(float64(idle.worst.Microseconds())/1000, "ms-worst-while-idle")
		b.ReportMetric(float64(busy.worst.Microseconds())/1000, "ms-worst-request")
		b.ReportMetric(float64(collecting.worst.Microseconds())/1000, "ms-worst-while-collecting")
		b.ReportMetric(float64(notified.Sub(moment).Microseconds())/1000, "ms-last-notified")
		b.ReportMetric(float64(busy.requests()), "requests-meanwhile")
		b.Logf("requests while nothing expires, while %d keys expire, and while a collection runs; %d collections meanwhile:\n%s",
			due, collections, besides(&idle, &busy, &collecting))
	}
}

// histogram counts durations by powers of two of a microsecond.
type histogram struct {
	counts [24]int // counts[i]: below 2^i µs, and not below half of that
	worst  time.Duration
}

func (h *histogram) add(d time.Duration) {
	h.counts[min(bits.Len64(uint64(d.Microseconds())), len(h.counts)-1)]++
	h.worst = max(h.worst, d)
}

func (h *histogram) requests() (n int) {
	for _, count := range h.counts {
		n += count
	}
	return n
}

// besides returns histograms as a table.
func besides(histograms ...*histogram) string {
	var table strings.Builder
	for i := range len(histogram{}.counts) {
		var row strings.Builder
		total := 0
		for _, h := range histograms {
			total += h.counts[i]
			fmt.Fprintf(&row, " %9d", h.counts[i])
		}
		if total > 0 {
			fmt.Fprintf(&table, "  below %8v%s\n", time.Microsecond<<i, row.String())
		}
	}
	return table.String()
}

// BenchmarkDisconnect measures how long a request waits while a client with a million watches
// disconnects.
func BenchmarkDisconnect(b *testing.B) {
	const watches = 1_000_000
	for range b.N {
		e, err := Open(b.Context(), statestore.Options{}, nil, func(statestore.Notification) {})
		if err != nil {
			b.Fatal(err)
		}
		apply := func(client string, words ...string) {
			ts := "0:0:client"
			e.Apply(statestore.Parse(statestore.Request{Client: client, Payload: resp3.AppendCommand(nil, words...), Timestamp: &ts}))
		}
		for i := range watches {
			apply("gone", "KEYNOTIFY", fmt.Sprint("key-", i))
		}
		runtime.GC()
		var took time.Duration
		forgotten := make(chan struct{})
		go func() {
			defer close(forgotten)
			began := time.Now()
			e.Disconnect("gone")
			took = time.Since(began)
		}()
		worst, requests := time.Duration(0), 0
		for done := false; !done; requests++ {
			began := time.Now()
			apply("client", "SET", "lock", "value", "NEX", "PX", "3600000")
			worst = max(worst, time.Since(began))
			select {
			case <-forgotten:
				done = true
			default:
			}
		}
		b.ReportMetric(float64(took.Microseconds())/1000, "ms-to-disconnect")
		b.ReportMetric(float64(worst.Microseconds())/1000, "ms-worst-request")
		b.ReportMetric(float64(requests), "requests-meanwhile")
	}
}

// BenchmarkHotKey measures a SET of a key that a thousand clients watch. deliver finds the client
// and queues the notification, as in a server.
func BenchmarkHotKey(b *testing.B) {
	const watchers = 1000
	queues := make(map[string]*[]statestore.Notification)
	e, err := Open(b.Context(), statestore.Options{}, nil, func(n statestore.Notification) {
		queue := queues[n.Client]
		if len(*queue) == 1000 {
			*queue = (*queue)[:0]
		}
		*queue = append(*queue, n)
	})
	if err != nil {
		b.Fatal(err)
	}
	for i := range watchers {
		client := fmt.Sprint("client-", i)
		queues[client] = new([]statestore.Notification)
		e.Apply(statestore.Parse(statestore.Request{Client: client, Payload: resp3.AppendCommand(nil, "KEYNOTIFY", "hot")}))
	}
	ts := "0:0:client"
	set := statestore.Request{Client: "client", Payload: resp3.AppendCommand(nil, "SET", "hot", "value"), Timestamp: &ts}
	b.ReportAllocs()
	for b.Loop() {
		e.Apply(statestore.Parse(set))
	}
}

// nowhere is a journal that keeps nothing.
type nowhere struct{ latency time.Duration }

func (nowhere) Load(context.Context, func(statestore.Record) error) (former statestore.Former, err error) {
	return former, nil
}
func (nowhere) Standing() error { return nil }
func (nowhere) Close() error    { return nil }

func (n nowhere) Commit(context.Context, []statestore.Group) error {
	time.Sleep(n.latency)
	return nil
}

// BenchmarkRequest measures a request by one client after the other, in memory and with a
// journal that costs nothing: what holding replies back costs.
func BenchmarkRequest(b *testing.B) {
	for _, journal := range []struct {
		name string
		statestore.Journal
	}{{"memory", nil}, {"journal", nowhere{}}} {
		for name, values := range map[string][]string{"renewal": {"holder"}, "change": {"a", "b"}} {
			b.Run(journal.name+"/"+name, func(b *testing.B) {
				e, err := Open(b.Context(), statestore.Options{}, journal.Journal, func(statestore.Notification) {})
				if err != nil {
					b.Fatal(err)
				}
				ctx, stop := context.WithCancel(b.Context())
				ended := make(chan error, 1)
				go func() { ended <- e.Run(ctx) }()
				ts := "0:0:client"
				var commands []statestore.Command
				for _, value := range values {
					commands = append(commands, statestore.Parse(statestore.Request{
						Client: "client", Payload: resp3.AppendCommand(nil, "SET", "lease", value, "PX", "10000"), Timestamp: &ts,
					}))
				}
				b.ReportAllocs()
				for i := 0; b.Loop(); i++ {
					if _, err := e.Apply(commands[i%len(commands)]); err != nil {
						b.Fatal(err)
					}
				}
				stop()
				if err := await.Receive(ended); err != nil {
					b.Fatal(err)
				}
			})
		}
	}
}
