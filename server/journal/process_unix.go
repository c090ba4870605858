//go:build unix

package journal

import (
	"errors"
	"os"
	"syscall"
)

// alive reports whether a process of this machine exists.
func alive(pid int) bool {
	err := syscall.Kill(pid, 0)
	return err == nil || errors.Is(err, syscall.EPERM)
}

// syncDirectory makes the names in a directory durable.
func syncDirectory(dir string) error {
	opened, err := os.Open(dir)
	if err != nil {
		return err
	}
	err = opened.Sync()
	if errors.Is(err, syscall.EINVAL) || errors.Is(err, syscall.ENOTSUP) {
		err = nil // some file systems do not sync directories, and need not
	}
	return errors.Join(err, opened.Close())
}
