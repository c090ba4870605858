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

// The moment from which SystemClock counts, on the clock that counts suspended time and on Go's. In this
// order, because a pause in between must not hide as much suspended time later.
var (
	bootAtStart, bootTime = sinceBoot()
	processStart          = time.Now()
)

// system is the state of SystemClock.
var system = struct {
	sync.Mutex
	steady
}{steady: steady{boots: bootTime}}

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
	return bootAtStart + system.read(reading{now.Sub(processStart), wall.Sub(processStart.Round(0)), boot - bootAtStart, ok})
}

// reading is what three clocks show at the same moment, as time since the same start.
type reading struct {
	monotonic time.Duration // does not count suspended time
	wall      time.Duration // counts it, and may be set
	boot      time.Duration // counts it, if ok
	ok        bool
}

// steady is a clock that never goes back.
type steady struct {
	boots     bool          // the clock since boot counts suspended time, and not the wall clock
	ahead     time.Duration // how far the one that counts was ahead of the monotonic clock
	wallAhead time.Duration // how far the wall clock was, when boots was true last
	suspended time.Duration // time that the monotonic clock has not counted
}

// leastSuspend is the least rise of a wall clock that counts: less is the work of NTP, or of the
// scheduler between two readings.
const leastSuspend = 50 * time.Millisecond

// read returns the monotonic time plus each rise above it of the clock that counts suspended time. A rise
// of the wall clock counts from where it was set back to.
func (c *steady) read(r reading) time.Duration {
	if c.boots && !r.ok {
		// For good, and from where the wall clock was at the latest reading: steps of it before that are
		// no suspended time.
		c.boots, c.ahead = false, c.wallAhead
	}
	ahead, least := r.boot-r.monotonic, time.Duration(0)
	if c.boots {
		c.wallAhead = r.wall - r.monotonic
	} else {
		ahead, least = r.wall-r.monotonic, leastSuspend
		c.ahead = min(c.ahead, ahead)
	}
	if rise := ahead - c.ahead; rise > least {
		c.ahead += rise
		c.suspended += rise
	}
	return r.monotonic + c.suspended
}
