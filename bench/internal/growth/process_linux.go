package growth

import (
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// processorTime returns the processor time that a process has used so far, in seconds: what getrusage says of
// the own process, in nanoseconds and for others too. The C function clock_getcpuclockid gives the clock the
// same number.
func processorTime(process int) (float64, error) {
	const allThreads = 2
	var used unix.Timespec
	if err := unix.ClockGettime(int32(^process)<<3|allThreads, &used); err != nil {
		return 0, fmt.Errorf("its processor time is not known, perhaps because it has ended: %w", err)
	}
	return float64(used.Nano()) / 1e9, nil
}

// resident returns how many bytes of a process are in memory.
func resident(process int) (float64, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/statm", process))
	if err != nil {
		return 0, err
	}
	var size, pages float64
	_, err = fmt.Sscan(string(text), &size, &pages)
	return pages * float64(os.Getpagesize()), err
}
