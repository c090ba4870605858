// Package steady makes a clock that never goes back, and that counts the time in which a machine is
// suspended, of clocks that do one or the other. The deadlines of tenures are measured with it.
package steady

import "time"

// Reading is what three clocks show at the same moment, as time since the same start.
type Reading struct {
	Monotonic time.Duration // does not count suspended time
	Wall      time.Duration // counts it, and may be set
	Boot      time.Duration // counts it, if BootOK
	BootOK    bool
}

// Clock is the state of such a clock. The zero value trusts the wall clock. It is not safe for concurrent
// use.
type Clock struct {
	// Boots says that the clock since boot counts suspended time, and not the wall clock. Read makes it
	// false when that clock cannot be read.
	Boots bool

	ahead     time.Duration // how far the one that counts was ahead of the monotonic clock
	wallAhead time.Duration // how far the wall clock was, when Boots was true last
	suspended time.Duration // time that the monotonic clock has not counted
}

// leastSuspend is the least rise of a wall clock that counts: less is the work of NTP, or of the
// scheduler between two readings.
const leastSuspend = 50 * time.Millisecond

// Read returns the monotonic time plus each rise above it of the clock that counts suspended time. A rise
// of the wall clock counts from where it was set back to.
func (c *Clock) Read(r Reading) time.Duration {
	if c.Boots && !r.BootOK {
		// For good, and from where the wall clock was at the latest reading: steps of it before that are
		// no suspended time.
		c.Boots, c.ahead = false, c.wallAhead
	}
	ahead, least := r.Boot-r.Monotonic, time.Duration(0)
	if c.Boots {
		c.wallAhead = r.Wall - r.Monotonic
	} else {
		ahead, least = r.Wall-r.Monotonic, leastSuspend
		c.ahead = min(c.ahead, ahead)
	}
	if rise := ahead - c.ahead; rise > least {
		c.ahead += rise
		c.suspended += rise
	}
	return r.Monotonic + c.suspended
}
