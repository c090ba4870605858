//go:build unix

package terminal

import (
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// readable reports whether a read of a terminal would return at once. It waits for that.
func readable(in *os.File, wait time.Duration) (bool, error) {
	polled := []unix.PollFd{{Fd: int32(in.Fd()), Events: unix.POLLIN}}
	n, err := unix.Poll(polled, int(wait.Milliseconds()))
	if err == unix.EINTR {
		return false, nil
	}
	return n > 0, err
}
