package watchdog

import (
	"os"

	"golang.org/x/sys/unix"
)

// setTimeout sets how many seconds a device waits, and returns how many it will. Tests without a device replace it.
var setTimeout = func(file *os.File, seconds int) (int, error) {
	conn, err := file.SyscallConn()
	if err != nil {
		return 0, err
	}
	failed := conn.Control(func(fd uintptr) {
		if err = unix.IoctlSetPointerInt(int(fd), unix.WDIOC_SETTIMEOUT, seconds); err == nil {
			seconds, err = unix.IoctlGetInt(int(fd), unix.WDIOC_GETTIMEOUT)
		}
	})
	if failed != nil {
		return 0, failed
	}
	return seconds, err
}
