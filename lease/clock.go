package lease

import (
	"sync/atomic"
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
var system steady

// SystemClock is the default Clock: the time since the program started, time in which the machine was
// suspended included. Linux counts that in CLOCK_BOOTTIME. Elsewhere, and where a sandbox forbids reading
// it, the wall clock stands in: a step forward ends a tenure early, which is safe; a step back changes
// nothing. In a testing/synctest bubble SystemClock follows virtual time.
func SystemClock() time.Duration {
	boot, ok := sinceBoot() // before time.Now: what passes in between must not count as suspended
	now := time.Now()
	wall := now.Round(0) // without Go's monotonic time, which a bubble does not have
	if now == wall {
		return time.Duration(wall.UnixNano())
	}
	withSuspend := wall.Sub(processStart.Round(0))
	if ok && bootTime {
		withSuspend = boot - bootAtStart
	}
	return system.read(now.Sub(processStart), withSuspend)
}

// steady is a clock that never goes back.
type steady struct {
	suspended atomic.Int64 // time that Go's monotonic clock has not counted; it never falls
}

// read returns the monotonic time plus the most by which the clock that counts suspended time was ever
// ahead of it.
func (c *steady) read(monotonic, withSuspend time.Duration) time.Duration {
	for {
		known := c.suspended.Load()
		if int64(withSuspend-monotonic) <= known {
			return monotonic + time.Duration(known)
		}
		c.suspended.CompareAndSwap(known, int64(withSuspend-monotonic))
	}
}
