package lease

import (
	"sync"
	"time"
)

// Clock returns the time since some fixed moment. Tenures measure their deadlines with it.
// It must never go back, and must go on while the machine is suspended. In a TTL it may
// gain or lose less than Margin against the store's clock. It must be safe for concurrent
// use and must not block.
type Clock func() time.Duration

// The moment from which SystemClock counts, on Go's clock and on the one that counts suspended time.
var (
	processStart          = time.Now()
	bootAtStart, bootTime = sinceBoot()
)

// system is the state of SystemClock.
var system struct {
	sync.Mutex
	steady
}

// SystemClock is the default Clock: the time since the program started, or on Linux since the machine
// did, time in which the machine was suspended included. Linux counts that in CLOCK_BOOTTIME. Elsewhere,
// and where a sandbox forbids reading it, the wall clock stands in: a step forward ends a tenure early,
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
	if ok && bootTime {
		// The processes of a machine agree on this clock.
		return bootAtStart + system.read(now.Sub(processStart), boot-bootAtStart, false)
	}
	return bootAtStart + system.read(now.Sub(processStart), wall.Sub(processStart.Round(0)), true)
}

// steady is a clock that never goes back.
type steady struct {
	ahead     time.Duration // how far the other clock was ahead of the monotonic one
	suspended time.Duration // time that the monotonic clock has not counted
}

// leastSuspend is the least rise of a wall clock that counts: less is the work of NTP, or of the
// scheduler between two readings.
const leastSuspend = 50 * time.Millisecond

// read returns the monotonic time plus each rise of the clock that counts suspended time above it. steps
// says that this clock may be set: then a rise counts from where it was set back to.
func (c *steady) read(monotonic, withSuspend time.Duration, steps bool) time.Duration {
	least := time.Duration(0)
	if steps {
		c.ahead, least = min(c.ahead, withSuspend-monotonic), leastSuspend
	}
	if rise := withSuspend - monotonic - c.ahead; rise > least {
		c.ahead += rise
		c.suspended += rise
	}
	return monotonic + c.suspended
}
