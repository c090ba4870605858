package journal

import (
	"os"
	"syscall"
)

// isAlone reports whether nothing else uses a file that a copy has replaced: it has no other name, such as a
// hard link in a snapshot of the directory, and neither another process nor a backup has it open. Only then the
// system grants a lease on it.
func isAlone(file *os.File) bool {
	var stat syscall.Stat_t
	if syscall.Fstat(int(file.Fd()), &stat) != nil || stat.Nlink > 0 {
		return false
	}
	_, _, failed := syscall.Syscall(syscall.SYS_FCNTL, file.Fd(), syscall.F_SETLEASE, syscall.F_WRLCK)
	return failed == 0
}
