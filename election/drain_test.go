package election_test

import (
	"bytes"
	"context"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tenurelock/tenure/election"
	"github.com/tenurelock/tenure/internal/await"
	"github.com/tenurelock/tenure/statestore"
	"github.com/tenurelock/tenure/transport/transporttest"
)

// A tenure can end without notice: its store was replaced, say. A function that returns
// then as soon as it can is not late.
func TestAFunctionIsNotLateThatReturnsWhenATenureEndsWithoutNotice(t *testing.T) {
	for _, test := range []struct {
		name  string
		takes time.Duration
		late  bool
	}{
		{"at once", time.Millisecond, false},
		{"never mind when", 2 * ttl, true},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				store := transporttest.Start(t)
				var log bytes.Buffer // slog's handlers lock it
				c := newCandidate(t, store, "node-a", election.Options{Logger: slog.New(slog.NewTextHandler(&log, nil))})
				c.run(t, func(ctx context.Context, _ *election.Term) error {
					await.Receive(ctx.Done())
					time.Sleep(test.takes)
					return nil
				})
				time.Sleep(ttl)
				c.mustLead(t)
				if err := store.Restart(statestore.Options{HoldOff: 10 * ttl}); err != nil {
					t.Fatal(err)
				}
				c.conn.Restore()
				time.Sleep(4 * ttl)
				_ = c.stop()
				synctest.Wait() // what logs has ended
				if late := strings.Contains(log.String(), "did not return in time"); late != test.late {
					t.Errorf("it was reported as late: %v, want %v; the log: %s", late, test.late, &log)
				}
			})
		})
	}
}
