//go:build !linux

package lease

import "time"

var processStart = time.Now()

// SystemClock is the default Clock: the larger of monotonic and wall time since
// the program started, since not every system has a clock that counts suspended
// time.
func SystemClock() time.Duration { return steadier(processStart) }
