package measure

import (
	"time"

	"golang.org/x/sys/unix"
)

// ProcessorTime returns the processor time that a process has used so far: what getrusage says of
// the own process, in nanoseconds and for others too. It returns false if the system does not say, or
// the process is gone. The C function clock_getcpuclockid gives the clock the same number.
func ProcessorTime(process int) (time.Duration, bool) {
	const allThreads = 2
	var used unix.Timespec
	if err := unix.ClockGettime(int32(^process)<<3|allThreads, &used); err != nil {
		return 0, false
	}
	return time.Duration(used.Nano()), true
}
