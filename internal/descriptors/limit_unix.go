//go:build unix

package descriptors

import (
	"errors"
	"math"
	"syscall"
)

// limit returns how many files and sockets this process may have open; 0 if that is unknown
// or there is no limit.
func limit() int {
	var limit syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit); err != nil {
		return 0
	}
	soft := uint64(limit.Cur) // signed on some systems
	if soft >= math.MaxInt32 {
		return 0
	}
	return int(soft)
}

// Exhausted reports whether an error means that too many files are open, in the process or on
// the machine.
func Exhausted(err error) bool {
	return errors.Is(err, syscall.EMFILE) || errors.Is(err, syscall.ENFILE)
}
