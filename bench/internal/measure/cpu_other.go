//go:build !linux

package measure

import "time"

// ProcessorTime is not known: only Linux has clocks of other processes.
func ProcessorTime(int) (time.Duration, bool) { return 0, false }
