package engine

import (
	"runtime"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tenurelock/tenure/internal/await"
	"github.com/tenurelock/tenure/statestore"
)

// The engine sleeps until the first expiry; a SET with an earlier one wakes it.
func TestExpiryIsNotifiedAtItsInstant(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := open(t, nil, statestore.Options{})
		defer d.close()
		d.apply("w", "KEYNOTIFY", "soon")
		d.apply("w", "KEYNOTIFY", "late")
		d.apply("c", "SET", "late", "v", "PX", "3600000")
		wait(time.Second)
		d.apply("c", "SET", "soon", "v", "PX", "500")
		d.want("w hears late=v", "w hears soon=v")
		wait(500*time.Millisecond - time.Nanosecond)
		d.want()
		wait(time.Nanosecond)
		d.want("w hears soon deleted")
		d.apply("c", "SET", "late", "v", "PX", "250") // the same key, shorter
		wait(250 * time.Millisecond)
		d.want("w hears late=v", "w hears late deleted")
		wait(time.Hour)
		d.want()
	})
}

func TestRunReturnsOnCancel(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := open(t, nil, statestore.Options{})
		d.apply("c", "SET", "k", "v", "PX", "3600000")
		began := time.Now()
		if err := d.close(); err != nil || time.Since(began) > 0 {
			t.Errorf("Run returned %v after %v", err, time.Since(began))
		}
		d.apply("w", "KEYNOTIFY", "k") // the engine still applies commands
		wait(2 * time.Hour)
		d.want()
	})
}

// While the system's clock is an hour back, the store serves the clients that did not step along as before.
func TestInvariant48AStepOfTheSystemsClockIsNotAStepOfTheStores(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := open(t, nil, statestore.Options{})
		defer d.close()
		ahead := func(want time.Duration) {
			t.Helper()
			if got := d.apply("c", "SET", "k", "v").Version.Wall - time.Now().UnixMilli(); got != want.Milliseconds() {
				t.Errorf("the store's version is %d ms ahead, want %v", got, want)
			}
		}
		step := -time.Hour
		d.engine.SetSystemClock(func() time.Time { return time.Now().Add(step) })
		for range 9 {
			ahead(0)
			wait(15 * time.Second)
		}
		step = time.Hour
		wait(2 * time.Minute)
		ahead(time.Hour)
	})
}

// Invariant 43: no lock is held while the system's clock is read. This clock takes the
// lock, and would deadlock.
func TestInvariant43NoLockIsHeldWhileTheSystemsClockIsRead(t *testing.T) {
	e, err := Open(t.Context(), statestore.Options{}, nil, func(statestore.Notification) {})
	if err != nil {
		t.Fatal(err)
	}
	e.SetSystemClock(func() time.Time {
		e.mu.Lock()
		defer e.mu.Unlock()
		return time.Now()
	})
	await.Done(func() {
		e.Submit(parse("c", []string{"SET", "k", "v", "PX", "1"}), nil)
		e.expireSome()
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
		e.expireSome()
		await.Done(request.Wait)
		if left == 0 {
			t.Errorf("a request got its turn after %d expired keys", batches*expireBatch)
		}
		if keys := e.Usage().Keys; keys != 0 {
			t.Errorf("%d keys are left", keys)
		}
	})
}
