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

// Room makes callers wait while too much waits for a commit, and frees them in each way.
func TestRoomWaitsForCommits(t *testing.T) {
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
			if err := d.engine.Room(t.Context()); err != nil {
				t.Fatal(err)
			}
			fill(d)
			ctx, cancel := context.WithCancelCause(t.Context())
			defer cancel(nil)
			const callers = 3
			returned := make(chan error, callers)
			for range callers {
				go func() { returned <- d.engine.Room(ctx) }()
			}
			wait(time.Hour)
			if len(returned) > 0 {
				t.Fatal("Room returned while too much waits")
			}
			test.free(d, cancel)
			synctest.Wait()
			for range callers {
				if err := await.Receive(returned); !errors.Is(err, test.want) || err != nil && test.want == nil {
					t.Errorf("Room: %v; want %v", err, test.want)
				}
			}
			if test.want == errDeposed {
				d.release()
			}
		})
	}
}

// Many keys that expire at once during a slow commit wait for room, so that what is queued has
// a bound. All are gone in the end, each with its notification.
func TestManyExpiriesWaitForRoom(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const keys = 100_000
		d := open(t, newDisk(), statestore.Options{})
		defer d.close()
		name := strings.Repeat("k", 100)
		for i := range keys {
			key := name + strconv.Itoa(i)
			d.engine.Submit(parse("w", []string{"KEYNOTIFY", key}), func(statestore.Reply) {})
			d.engine.Submit(parse("c", []string{"SET", key, "v", "PX", "1000"}), func(statestore.Reply) {})
			if i%1000 == 0 {
				synctest.Wait()
			}
		}
		synctest.Wait()
		d.mu.Lock()
		d.left = nil
		d.mu.Unlock()
		d.hold()
		d.submit("", "SET", "first", "v")
		wait(2 * time.Second)
		if got := d.engine.waiting.Load(); got < maxWaiting || got > maxWaiting+expireBatch*1024 {
			t.Errorf("%d bytes wait; the bound is %d", got, maxWaiting)
		}
		if left := d.engine.Usage().Keys; left < keys/10 {
			t.Errorf("%d keys are left in memory", left)
		}
		d.release()
		wait(time.Second)
		if left := d.engine.Usage().Keys; left != 1 {
			t.Errorf("%d keys are left", left)
		}
		d.mu.Lock()
		defer d.mu.Unlock()
		if got := len(d.left) - 1; got != keys {
			t.Errorf("%d expiries were notified", got)
		}
	})
}
