package lease

import (
	"syscall"
	"time"
	"unsafe"
)

// SystemClock is the default Clock: CLOCK_BOOTTIME, which counts suspended time and does not
// follow steps of the wall clock.
func SystemClock() time.Duration {
	const clockBoottime = 7 // <linux/time.h>; package syscall has no name for it
	var now syscall.Timespec
	_, _, failed := syscall.RawSyscall(syscall.SYS_CLOCK_GETTIME, clockBoottime, uintptr(unsafe.Pointer(&now)), 0)
	if failed != 0 { // a sandbox may forbid it
		return sinceStart()
	}
	return time.Duration(now.Nano())
}
