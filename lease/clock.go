package lease

import (
	"sync"
	"time"

	"github.com/tenurelock/tenure/internal/steady"
)

// Clock returns the time since some fixed moment. Tenures measure their deadlines with it.
// It must never go back, and must go on while the machine is suspended. In a TTL it may
// gain or lose less than Margin against the store's clock. It must be safe for concurrent
// use and must not block.
type Clock func() time.Duration

// The moment from which SystemClock counts, on the clock that counts suspended time and on Go's. In this
// order, because a pause in between must not hide as much suspended time later.
var (
	bootAtStart, bootTime = sinceBoot()
	processStart          = time.Now()
)

// system is the state of SystemClock.
var system = struct {
	sync.Mutex
	steady.Clock
}{Clock: steady.Clock{Boots: bootTime}}

// SystemClock is the default Clock: the time since the program started, or on Linux since the machine
// did, time in which the machine was suspended included. Linux counts that in CLOCK_BOOTTIME. Elsewhere,
// and from when a sandbox forbids reading it, the wall clock stands in: a step forward ends a tenure early,
// which is safe; a step back changes nothing. In a testing/synctest bubble SystemClock follows virtual time.
func SystemClock() time.Duration {
	system.Lock() // while the clocks are read too: an older reading would look like a step back
	defer system.Unlock()
	boot, ok := sinceBoot() // before time.Now: what passes in between must not count as suspended
	now := time.Now()
	wall := now.Round(0) // without Go's monotonic time, which a bubble does not have
	if now == wall {
		return time.Duration(wall.UnixNano())
	}
	// The processes of a machine agree on this clock.
	return bootAtStart + system.Read(steady.Reading{
		Monotonic: now.Sub(processStart), Wall: wall.Sub(processStart.Round(0)), Boot: boot - bootAtStart, BootOK: ok,
	})
}
