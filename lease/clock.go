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

// SystemClock is the default Clock: the time since the program started, on Go's monotonic clock and with
// the time in which the machine was suspended. On Linux that is known from CLOCK_BOOTTIME. On other systems, and
// where a sandbox forbids to read it, the wall clock says it: a step of that forward ends a tenure early,
// which is safe, and a step back changes nothing. In a testing/synctest bubble SystemClock follows
// virtual time.
func SystemClock() time.Duration {
	boot, ok := sinceBoot() // before time.Now: what passes in between must not count as suspended
	now := time.Now()
	wall := now.Round(0) // without Go's monotonic time, which a bubble has not
	if now == wall {
		return time.Duration(wall.UnixNano())
	}
	since := wall.Sub(processStart.Round(0))
	if ok && bootTime {
		since = boot - bootAtStart
	}
	return system.read(now.Sub(processStart), since)
}

// steady is a clock that never goes back.
type steady struct {
	suspended atomic.Int64 // time that Go's monotonic clock has not counted; it never falls
}

// read returns the time on Go's monotonic clock and what a clock that counts suspended time was ever
// ahead of it.
func (c *steady) read(monotonic, since time.Duration) time.Duration {
	for {
		known := c.suspended.Load()
		if int64(since-monotonic) <= known {
			return monotonic + time.Duration(known)
		}
		c.suspended.CompareAndSwap(known, int64(since-monotonic))
	}
}
