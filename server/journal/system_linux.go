package journal

import (
	"os"
	"syscall"
)

// isAlone reports whether nothing else has a file open that has no name any more: neither another process
// nor a backup. Only then the system grants a lease on it.
func isAlone(file *os.File) bool {
	_, _, failed := syscall.Syscall(syscall.SYS_FCNTL, file.Fd(), syscall.F_SETLEASE, syscall.F_WRLCK)
	return failed == 0
}
