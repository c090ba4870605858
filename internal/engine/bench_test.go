package engine

import (
	"context"
	"testing"
	"time"

	"github.com/tenurelock/tenure/internal/await"
	"github.com/tenurelock/tenure/resp3"
	"github.com/tenurelock/tenure/statestore"
)

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
