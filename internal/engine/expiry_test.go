package engine

import (
	"context"
	"runtime"
	"slices"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tenurelock/tenure/internal/await"
	"github.com/tenurelock/tenure/statestore"
)

// Both ways in which a key expires are reported: by the timer, and by a request that comes first.
func TestEachExpiryIsReportedOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e, err := Open(t.Context(), statestore.Options{}, nil, func(statestore.Notification) {})
		if err != nil {
			t.Fatal(err)
		}
		var expired []string
		e.OnExpiry(func(key string) { expired = append(expired, key) })
		set := func(key, value string) {
			if reply, _ := e.Submit(parse("c", []string{"SET", key, value, "NEX", "PX", "1000"}), nil); reply.Outcome != statestore.OK {
				t.Fatalf("%s: %v %v", key, reply.Outcome, reply.Err)
			}
		}
		set("a", "1")
		set("b", "1")
		time.Sleep(1500 * time.Millisecond)
		set("a", "2") // Run has not removed it yet
		if want := []string{"a"}; !slices.Equal(expired, want) {
			t.Errorf("a request that found an expired key: %q expired, want %q", expired, want)
		}
		ctx, stop := context.WithCancel(t.Context())
		var task sync.WaitGroup
		task.Go(func() { e.Run(ctx) })
		time.Sleep(2 * time.Second)
		stop()
		await.Done(task.Wait)
		if want := []string{"a", "b", "a"}; !slices.Equal(expired, want) {
			t.Errorf("%q expired, want %q", expired, want)
		}
	})
}

// Without a turn for others between two batches, a request waits until all keys are removed, or until the
// runtime takes the processor away.
func TestRequestsTakeTurnsWithExpiry(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	synctest.Test(t, func(t *testing.T) {
		e, err := Open(t.Context(), statestore.Options{}, nil, func(statestore.Notification) {})
		if err != nil {
			t.Fatal(err)
		}
		const batches = 4
		for i := range batches * expireBatch {
			if reply, _ := e.Submit(parse("c", []string{"SET", strconv.Itoa(i), "v", "PX", "1000"}), nil); reply.Outcome != statestore.OK {
				t.Fatalf("%v %v", reply.Outcome, reply.Err)
			}
		}
		time.Sleep(2 * time.Second)
		var left int
		var request sync.WaitGroup
		request.Go(func() { left = e.Usage().Keys })
		e.expire(t.Context())
		await.Done(request.Wait)
		if left == 0 {
			t.Errorf("a request got its turn after %d expired keys", batches*expireBatch)
		}
		if keys := e.Usage().Keys; keys != 0 {
			t.Errorf("%d keys are left", keys)
		}
	})
}

// An expiry that is not committed may still be undone by a crash: nothing may show it before.
func TestAnExpiryIsReportedAfterItsCommit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		journal := newDisk()
		d := &durable{t: t, disk: journal, started: time.Now(), ended: make(chan error, 1)}
		engine, err := Open(t.Context(), statestore.Options{}, journal, func(statestore.Notification) {})
		if err != nil {
			t.Fatal(err)
		}
		engine.OnExpiry(func(key string) { d.leave(key, " expired") })
		engine.Begin()
		d.engine = engine
		ctx, stop := context.WithCancel(t.Context())
		d.stop = stop
		go func() { d.ended <- engine.Run(ctx) }()
		defer d.close()
		engine.Submit(parse("c", []string{"SET", "k", "v", "PX", "1000"}), nil)
		synctest.Wait()
		journal.set(func(d *disk) { d.held = true })
		time.Sleep(2 * time.Second)
		d.want()
		engine.Submit(parse("c", []string{"SET", "k", "w", "NEX", "PX", "60000"}), func(statestore.Reply) { d.leave("the reply") })
		d.want()
		journal.verdicts <- verdict{}
		d.want("k expired")
		journal.set(func(d *disk) { d.held = false })
		journal.verdicts <- verdict{}
		d.want("the reply")
	})
}
