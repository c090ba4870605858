package lease

import (
	"syscall"
	"time"
	"unsafe"
)

// sinceBoot returns CLOCK_BOOTTIME, which counts suspended time and does not follow steps of the wall
// clock. It reports whether the process may read it.
func sinceBoot() (time.Duration, bool) {
	const clockBoottime = 7 // <linux/time.h>; package syscall has no name for it
	var now syscall.Timespec
	_, _, failed := syscall.RawSyscall(syscall.SYS_CLOCK_GETTIME, clockBoottime, uintptr(unsafe.Pointer(&now)), 0)
	return time.Duration(now.Nano()), failed == 0
}
