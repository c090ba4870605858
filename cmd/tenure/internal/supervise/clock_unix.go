//go:build unix

package supervise

import (
	"time"

	"golang.org/x/sys/unix"
)

func onClock(clock int32) time.Duration {
	var t unix.Timespec
	if err := unix.ClockGettime(clock, &t); err != nil {
		_ = unix.ClockGettime(unix.CLOCK_MONOTONIC, &t) // both processes meet the same refusal
	}
	return time.Duration(t.Nano())
}
