package testsupport

import (
	"runtime"
	"testing"
	"time"
)

// MustBeLost waits for the channel that a connection closes when it is lost.
func MustBeLost(t *testing.T, lost <-chan struct{}) {
	t.Helper()
	receive(t, lost, "the loss of the connection is not noticed")
}

// receive returns what comes from a channel, and fails the test if nothing does within Patience.
func receive[T any](t testing.TB, from <-chan T, failure string) (value T) {
	t.Helper()
	select {
	case value = <-from:
	case <-time.After(Patience):
		t.Fatal(failure)
	}
	return value
}

// SettleGoroutines waits until the number of goroutines stays the same, so that a test can
// count from there.
func SettleGoroutines(t *testing.T) {
	t.Helper()
	for last, same := 0, 0; same < 20; time.Sleep(5 * time.Millisecond) {
		if now := runtime.NumGoroutine(); now == last {
			same++
		} else {
			last, same = now, 0
		}
	}
}

// Eventually polls until happened reports true, for Patience at most. what completes the
// sentence "it never comes that …".
func Eventually(t testing.TB, what string, happened func() bool) {
	t.Helper()
	for deadline := time.Now().Add(Patience); !happened(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("it never comes that %s", what)
		}
	}
}

// IsDone reports whether a channel is closed.
func IsDone(done <-chan struct{}) bool {
	select {
	case <-done:
		return true
	default:
		return false
	}
}

// MustEndGoroutines waits until no more goroutines run than before.
func MustEndGoroutines(t *testing.T, before int) {
	t.Helper()
	deadline := time.Now().Add(Patience)
	for runtime.NumGoroutine() > before {
		if time.Now().After(deadline) {
			stacks := make([]byte, 1<<20)
			t.Fatalf("%d goroutines, %d before:\n%s", runtime.NumGoroutine(), before, stacks[:runtime.Stack(stacks, true)])
		}
		time.Sleep(time.Millisecond)
	}
}

// HeapInUse collects garbage and returns how many bytes of the heap are in use.
func HeapInUse() uint64 {
	var stats runtime.MemStats
	runtime.GC()
	runtime.GC() // a sync.Pool keeps its content for one collection more
	runtime.ReadMemStats(&stats)
	return stats.HeapAlloc
}
