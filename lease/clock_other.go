//go:build !linux

package lease

import "time"

// SystemClock is the default Clock: the larger of the monotonic and the wall time since the
// program started. Not every system has a clock that counts suspended time.
func SystemClock() time.Duration { return sinceStart() }
