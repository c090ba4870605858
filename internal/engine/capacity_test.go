package engine

import (
	"context"
	"errors"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tenurelock/tenure/internal/await"
	"github.com/tenurelock/tenure/statestore"
)

// AwaitCapacity makes callers wait while too much waits for a commit, and frees them in each way.
func TestCapacityWaitsForCommits(t *testing.T) {
	large := strings.Repeat("x", 1<<20)
	fill := func(d *durable) {
		d.hold()
		for i := 0; d.engine.waiting.Load() < maxWaiting; i++ {
			d.engine.Submit(parse("c", []string{"SET", strconv.Itoa(i), large}), func(statestore.Reply) {})
		}
	}
	tests := []struct {
		name string
		free func(d *durable, cancel context.CancelCauseFunc)
		want error
	}{
		{"a commit", func(d *durable, _ context.CancelCauseFunc) { d.release() }, nil},
		{"the end of its context", func(_ *durable, cancel context.CancelCauseFunc) { cancel(errDeposed) }, errDeposed},
		{"a failure", func(d *durable, _ context.CancelCauseFunc) { d.fail(0) }, errDisk},
	}
	for _, test := range tests {
		inBubble(t, test.name, func(t *testing.T) {
			d := open(t, newDisk(), statestore.Options{})
			defer d.close()
			if err := d.engine.AwaitCapacity(t.Context()); err != nil {
				t.Fatal(err)
			}
			fill(d)
			ctx, cancel := context.WithCancelCause(t.Context())
			defer cancel(nil)
			const callers = 3
			returned := make(chan error, callers)
			for range callers {
				go func() { returned <- d.engine.AwaitCapacity(ctx) }()
			}
			wait(time.Hour)
			if len(returned) > 0 {
				t.Fatal("AwaitCapacity returned while too much waits")
			}
			test.free(d, cancel)
			synctest.Wait()
			for range callers {
				if err := await.Receive(returned); !errors.Is(err, test.want) || err != nil && test.want == nil {
					t.Errorf("AwaitCapacity: %v; want %v", err, test.want)
				}
			}
			if test.want == errDeposed {
				d.release()
			}
		})
	}
}

// Many keys that expire at once during a slow commit go a part at a time, with a commit for each part, so that what
// is queued has a bound. All are gone in the end, each with its notification.
func TestManyKeysThatExpireTakeManyCommits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const keys = 5 * expireBatches * expireBatch
		d := open(t, newDisk(), statestore.Options{})
		defer d.close()
		for i := range keys {
			key := strconv.Itoa(i)
			d.engine.Submit(parse("w", []string{"KEYNOTIFY", key}), func(statestore.Reply) {})
			d.engine.Submit(parse("c", []string{"SET", key, "v", "PX", "1000"}), func(statestore.Reply) {})
		}
		synctest.Wait()
		d.mu.Lock()
		d.left = nil
		d.mu.Unlock()
		d.hold()
		d.submit("", "SET", "first", "v")
		wait(2 * time.Second)
		if got := d.engine.waiting.Load(); got > 1000 {
			t.Errorf("%d bytes wait", got)
		}
		before := d.disk.commits()
		d.release()
		wait(time.Second)
		if left, commits := d.engine.Usage().Keys, d.disk.commits()-before; left != 1 || commits < 5 {
			t.Errorf("%d keys are left after %d commits", left, commits)
		}
		d.mu.Lock()
		defer d.mu.Unlock()
		if got := len(d.left) - 1; got != keys {
			t.Errorf("%d expiries were notified", got)
		}
	})
}
