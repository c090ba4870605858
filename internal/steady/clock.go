// Package steady makes a clock that never goes back, and that counts the time in which a machine is
// suspended, of clocks that do one or the other. The deadlines of tenures are measured with it.
package steady

import (
	"sync"
	"sync/atomic"
	"time"
)

// Reading is what three clocks show at the same moment, as time since the same start.
type Reading struct {
	Monotonic time.Duration // does not count suspended time
	Wall      time.Duration // counts it, and may be set
	Boot      time.Duration // counts it, if BootOK; read before Monotonic
	BootOK    bool
}

// Clock is the state of such a clock. The zero value trusts the wall clock. It is safe for concurrent
// use, and takes no lock while the clock since boot can be read: thousands of tenures read it.
type Clock struct {
	// Boots says that the clock since boot counts suspended time, and not the wall clock. That ends for good
	// when that clock cannot be read. It must not be changed.
	Boots bool

	suspended atomic.Int64 // time that the monotonic clock has not counted
	wallAhead atomic.Int64 // how far the wall clock was ahead of it, when the clock since boot was read last
	bootless  atomic.Bool  // the clock since boot could not be read

	mu    sync.Mutex
	ahead time.Duration // how far the wall clock, since it counts, was ahead of the monotonic clock
}

// Suspended returns for how long the machine was suspended, by the latest Read.
func (c *Clock) Suspended() time.Duration { return time.Duration(c.suspended.Load()) }

// leastSuspend is the least rise of a wall clock that counts: less is the work of NTP, or of the
// scheduler between two readings.
const leastSuspend = 50 * time.Millisecond

// Read returns the monotonic time plus each rise above it of the clock that counts suspended time. A rise
// of the wall clock counts from where it was set back to.
func (c *Clock) Read(read func() Reading) time.Duration {
	if c.Boots && !c.bootless.Load() {
		if r := read(); r.BootOK {
			c.wallAhead.Store(int64(r.Wall - r.Monotonic))
			return r.Monotonic + c.atLeast(r.Boot-r.Monotonic)
		}
	}
	c.mu.Lock() // while the clocks are read too: an older reading would look like a step back
	defer c.mu.Unlock()
	r := read()
	if c.Boots && !c.bootless.Swap(true) {
		c.ahead = time.Duration(c.wallAhead.Load()) // steps of the wall clock before that are no suspended time
	}
	ahead := r.Wall - r.Monotonic
	c.ahead = min(c.ahead, ahead)
	if rise := ahead - c.ahead; rise > leastSuspend {
		c.ahead += rise
		c.suspended.Add(int64(rise))
	}
	return r.Monotonic + time.Duration(c.suspended.Load())
}

// atLeast returns the time that the monotonic clock has not counted, after a reading that shows so much of it.
func (c *Clock) atLeast(shown time.Duration) time.Duration {
	for {
		known := c.suspended.Load()
		if int64(shown) <= known {
			return time.Duration(known)
		}
		if c.suspended.CompareAndSwap(known, int64(shown)) {
			return shown
		}
	}
}
