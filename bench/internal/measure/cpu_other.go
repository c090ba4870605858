//go:build !linux

package measure

import "time"

// processorTime is not known: only Linux has clocks of other processes.
func processorTime(int) (time.Duration, bool) { return 0, false }
