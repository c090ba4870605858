package lease

import "time"

// Clock returns the time since some fixed moment. Tenures measure their deadlines with it.
// It must never go back, and must go on while the machine is suspended. In a TTL it may
// gain or lose less than Margin against the store's clock. It must be safe for concurrent
// use and must not block.
type Clock func() time.Duration

// MonotonicClock returns a Clock that counts from now, on Go's monotonic time. Use it in a
// testing/synctest bubble, where it follows virtual time. It is not a substitute for
// SystemClock, because it stands still while a Linux machine is suspended.
func MonotonicClock() Clock {
	origin := time.Now()
	return func() time.Duration { return time.Since(origin) }
}

var processStart = time.Now()

// sinceStart returns the larger of the monotonic and the wall time since the program started.
// Wall time includes suspended time. A step of it forward ends a tenure early, which is safe.
func sinceStart() time.Duration {
	now := time.Now()
	return max(now.Sub(processStart), now.Round(0).Sub(processStart.Round(0)))
}
