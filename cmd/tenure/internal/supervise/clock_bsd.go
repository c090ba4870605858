//go:build unix && !linux

package supervise

import (
	"time"

	"golang.org/x/sys/unix"
)

// now is the time on a clock that supervisor and guard share.
func now() time.Duration { return onClock(unix.CLOCK_MONOTONIC) }
