package election_test

import (
	"context"
	"errors"
	"log/slog"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tenurelock/tenure/election"
	"github.com/tenurelock/tenure/internal/await"
	"github.com/tenurelock/tenure/transport/transporttest"
)

// stuckLogger is the handler of a Logger that does not return for one message, as where the output of the
// program is a pipe that is not read.
type stuckLogger struct {
	slog.Handler
	message string
	stuck   atomic.Bool
	open    chan struct{}
}

func stuckAt(message string) *stuckLogger {
	return &stuckLogger{Handler: slog.DiscardHandler, message: message, open: make(chan struct{})}
}

func (h *stuckLogger) Enabled(context.Context, slog.Level) bool { return true }
func (h *stuckLogger) WithAttrs([]slog.Attr) slog.Handler       { return h }
func (h *stuckLogger) Handle(_ context.Context, record slog.Record) error {
	if record.Message == h.message {
		h.stuck.Store(true)
		await.Receive(h.open)
	}
	return nil
}

func TestInvariant8ATermEndsInTimeWhateverTheLoggerDoes(t *testing.T) {
	for _, message := range []string{"leading", "a renewal failed and will be repeated", "no longer leading", "the tenure has ended"} {
		t.Run(message, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				store := transporttest.Start(t)
				h := stuckAt(message)
				first := newCandidate(t, store, "node-a", election.Options{Logger: slog.New(h)})
				second := newCandidate(t, store, "node-b", election.Options{})
				var leads atomic.Int64 // nodes whose function runs
				lead := func(ctx context.Context, _ *election.Term) error {
					if leads.Add(1) > 1 {
						t.Error("two nodes lead")
					}
					await.Receive(ctx.Done())
					leads.Add(-1)
					return nil
				}
				first.run(t, lead)
				t.Cleanup(func() { close(h.open) })
				time.Sleep(ttl)
				second.run(t, lead)
				time.Sleep(2 * ttl)
				first.mustLead(t)
				first.conn.Cut()
				time.Sleep(5 * ttl)
				synctest.Wait()
				second.mustLead(t)
				if !h.stuck.Load() {
					t.Errorf("the Logger got no line %q", message)
				}
			})
		})
	}
}

func TestAnUnhealthyLeaderHandsOverWhateverTheLoggerDoes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := transporttest.Start(t)
		h := stuckAt("the health check failed")
		var health fitness
		first := newCandidate(t, store, "node-a", election.Options{Logger: slog.New(h), HealthEvery: every, Health: health.check})
		second := newCandidate(t, store, "node-b", election.Options{})
		runBoth(t, first, second)
		t.Cleanup(func() { close(h.open) })
		time.Sleep(5 * ttl)
		first.mustLead(t)
		health.set(errJammed)
		time.Sleep(5 * ttl)
		second.mustLead(t)
		if status := first.Status(); !h.stuck.Load() || !errors.Is(status.Cause, election.ErrUnhealthy) {
			t.Errorf("stuck %t; %v, want ErrUnhealthy", h.stuck.Load(), status)
		}
	})
}
