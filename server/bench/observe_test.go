package bench_test

import (
	"testing"

	"github.com/tenurelock/tenure/server"
	"github.com/tenurelock/tenure/server/activity"
	"github.com/tenurelock/tenure/server/internal/testsupport"
	"github.com/tenurelock/tenure/transport"
)

// BenchmarkObserve compares a Set without an observer with one that a model observes.
func BenchmarkObserve(b *testing.B) {
	for _, bench := range []struct {
		name    string
		observe func(activity.Event)
	}{
		{"none", nil},
		{"model", activity.New(activity.Options{}).Observe},
	} {
		b.Run(bench.name, func(b *testing.B) {
			client := dialSpeed(b, testsupport.Start(b, server.Options{Observe: bench.observe}))
			b.ReportAllocs()
			for b.Loop() {
				if _, err := client.Set(b.Context(), speedKey, []byte(speedValue), transport.SetOptions{}); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
