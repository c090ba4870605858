package admin_test

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"sync"
	"testing"
	"time"

	"github.com/tenurelock/tenure/cmd/tenure/internal/admin"
	"github.com/tenurelock/tenure/hlc"
	"github.com/tenurelock/tenure/internal/await"
	"github.com/tenurelock/tenure/server"
	"github.com/tenurelock/tenure/server/activity"
	"github.com/tenurelock/tenure/statestore"
	"github.com/tenurelock/tenure/transport"
)

// fill makes leases of names of usual lengths, each with a client that waits.
func fill(r *admin.Recorder, leases int) {
	for i := range leases {
		name, now := fmt.Sprintf("plant-7/line-%04d/press/active", i), time.Now()
		event := activity.Event{
			Kind: activity.Request, At: now, User: "press", Remote: "10.1.4.7:50122", Verb: statestore.VerbSet, Key: name, Rank: -1,
			Condition: statestore.IfMissingOrEqual, Lifetime: time.Hour, Outcome: statestore.OK, Created: true,
		}
		for k, client := range []string{fmt.Sprintf("gateway-%04d-a", i), fmt.Sprintf("gateway-%04d-b", i)} {
			event.Client, event.Holder, event.Version = client, client, hlc.Timestamp{Wall: now.UnixMilli(), Counter: uint64(k), Node: "s"}
			if k > 0 {
				event.Outcome, event.Created = statestore.ConditionFailed, false
			}
			r.Observe(event)
		}
	}
}

// BenchmarkState measures an answer with 1,000 leases and 1,000 clients, without the rest after it.
func BenchmarkState(b *testing.B) {
	recorder := admin.NewRecorder()
	fill(recorder, 1000)
	for _, form := range []string{"metrics", "answer", "event"} {
		b.Run(form, func(b *testing.B) {
			read := admin.Reader(admin.Options{Node: admin.NewNode(), Recorder: recorder}, form)
			b.ReportAllocs()
			for b.Loop() {
				size, err := read(time.Now())
				if err != nil {
					b.Fatal(err)
				}
				b.ReportMetric(float64(size), "bytes")
			}
		})
	}
}

// BenchmarkSet measures what a status page costs a SET. The stores take turns, so that the ratios are of one
// time on one machine, however busy that is.
func BenchmarkSet(b *testing.B) {
	recorders := []*admin.Recorder{nil, admin.NewRecorder(), admin.NewRecorder()}
	clients, took := make([]*transport.Client, len(recorders)), make([]time.Duration, len(recorders))
	for i, recorder := range recorders {
		options := server.Options{Addr: "127.0.0.1:0"}
		if recorder != nil {
			options.Observe = recorder.Observe
			fill(recorder, 1000)
		}
		store, err := server.New(options)
		if err != nil {
			b.Fatal(err)
		}
		run(b, store.Serve)
		client, err := transport.Dial(b.Context(), "mqtt://"+store.Addr().String(), transport.Options{ClientID: "bench"})
		if err != nil {
			b.Fatal(err)
		}
		defer client.Close()
		clients[i] = client
	}
	// The last one has a page that is open.
	listening, err := admin.Listen(admin.Options{Addr: "127.0.0.1:0", Node: admin.NewNode(), Recorder: recorders[2]})
	if err != nil {
		b.Fatal(err)
	}
	run(b, listening.Serve)
	ctx, cancel := context.WithCancel(b.Context())
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, listening.URL()+"api/events", nil)
	if err != nil {
		b.Fatal(err)
	}
	stream, err := http.DefaultClient.Do(request)
	if err != nil {
		b.Fatal(err)
	}
	defer stream.Body.Close()
	var reading sync.WaitGroup
	defer await.Done(reading.Wait)
	defer cancel()
	reading.Go(func() { _, _ = io.Copy(io.Discard, stream.Body) })

	value := []byte("gateway-a:1")
	for b.Loop() {
		for i, client := range clients {
			began := time.Now()
			if _, err := client.Set(ctx, "plant-7/setpoint", value, transport.SetOptions{}); err != nil {
				b.Fatal(err)
			}
			took[i] += time.Since(began)
		}
	}
	b.ReportMetric(float64(took[1])/float64(took[0]), "observed/plain")
	b.ReportMetric(float64(took[2])/float64(took[0]), "with-a-page/plain")
}

// run runs a server until the benchmark ends.
func run(b *testing.B, serve func(context.Context) error) {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- serve(ctx) }()
	b.Cleanup(func() {
		cancel()
		if err := await.Receive(done); err != nil {
			b.Error(err)
		}
	})
}
