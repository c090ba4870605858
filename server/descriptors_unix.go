//go:build unix

package server

import (
	"errors"
	"math"
	"syscall"
)

// descriptors returns how many files and sockets this process may have open; 0 where that
// is unknown or has no limit.
func descriptors() int {
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

// isOutOfDescriptors reports whether there are too many open files, in the process or on
// the machine.
func isOutOfDescriptors(err error) bool {
	return errors.Is(err, syscall.EMFILE) || errors.Is(err, syscall.ENFILE)
}
