package lease

import "time"

// Clock returns the time since an origin of its own. A tenure measures itself
// with it. It must never go back, must go on while the machine is suspended, and
// may differ in rate from the store's clock by less than Margin is of TTL.
// It must be safe for concurrent use and must not block.
type Clock func() time.Duration

// MonotonicClock returns a Clock that counts from now, on Go's monotonic time. It
// stands still while a Linux machine is suspended, so it is no substitute for
// SystemClock; it follows virtual time, so inside a testing/synctest bubble it is
// the one to use.
func MonotonicClock() Clock {
	origin := time.Now()
	return func() time.Duration { return time.Since(origin) }
}

// steadier returns the larger of monotonic and wall time elapsed: where no clock
// counts suspended time, the wall clock shows it, and a step of the wall clock
// forward ends a tenure early rather than late.
func steadier(origin time.Time) time.Duration {
	now := time.Now()
	return max(now.Sub(origin), now.Round(0).Sub(origin.Round(0)))
}
