package lease

import (
	"time"

	"github.com/tenurelock/tenure/internal/steady"
)

// The moment from which SystemClock counts, on the clock that counts suspended time and on Go's. In this
// order, because a pause in between must not hide as much suspended time later.
var (
	bootAtStart, bootTime = sinceBoot()
	processStart          = time.Now()
)

var system = steady.Clock{Boots: bootTime}

// SystemClock is the default Clock: the time since the program started, or on Linux since the machine
// did, time in which the machine was suspended included. Linux counts that in CLOCK_BOOTTIME. Elsewhere,
// and from when a sandbox forbids reading it, the wall clock stands in: a step forward ends a tenure early,
// which is safe; a step back changes nothing. In a testing/synctest bubble SystemClock follows virtual time.
func SystemClock() time.Duration {
	now := time.Now()
	if wall := now.Round(0); now == wall { // without Go's monotonic time, which a bubble does not have
		return time.Duration(wall.UnixNano())
	}
	return bootAtStart + system.Read(readClocks) // the processes of a machine agree on this clock
}

func readClocks() steady.Reading {
	boot, ok := sinceBoot() // before time.Now: what passes in between must not count as suspended
	now := time.Now()
	return steady.Reading{
		Monotonic: now.Sub(processStart), Wall: now.Round(0).Sub(processStart.Round(0)), Boot: boot - bootAtStart, BootOK: ok,
	}
}
