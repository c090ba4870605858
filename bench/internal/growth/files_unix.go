//go:build unix

package growth

import (
	"math"

	"golang.org/x/sys/unix"
)

// openFiles returns how many files a process may have open. Go raises the limit of its programs to the
// highest that the system allows, so the servers have it too.
func openFiles() uint64 {
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		return math.MaxUint64
	}
	return uint64(limit.Cur)
}
