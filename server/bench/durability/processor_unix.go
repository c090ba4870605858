//go:build unix

package durability

import (
	"syscall"
	"time"
)

// processorTime returns how much time of processors this process has used so far.
func processorTime() time.Duration {
	var usage syscall.Rusage
	_ = syscall.Getrusage(syscall.RUSAGE_SELF, &usage) // fails for other arguments only
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
}
