package testsupport

import (
	"runtime"
	"testing"
	"time"

	"github.com/tenurelock/tenure/internal/await"
)

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

// MustEndGoroutines waits until no more goroutines run than before.
func MustEndGoroutines(t *testing.T, before int) {
	t.Helper()
	await.Until(func() bool { return runtime.NumGoroutine() <= before }) // or it shows their stacks
}

// HeapInUse collects garbage and returns how many bytes of the heap are in use.
func HeapInUse() uint64 {
	var stats runtime.MemStats
	runtime.GC()
	runtime.GC() // a sync.Pool keeps its content for one collection more
	runtime.ReadMemStats(&stats)
	return stats.HeapAlloc
}
