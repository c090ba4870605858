//go:build darwin || dragonfly || freebsd || linux || netbsd || openbsd

package fencing

import (
	"errors"
	"fmt"
	"io"
	"os"
	"syscall"
)

// lockFile locks a file, which it creates if it does not exist. The lock ends with the process.
func lockFile(path string) (io.Closer, error) {
	file, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|syscall.O_NOFOLLOW, 0o600)
	if err != nil {
		return nil, err
	}
	if err := flock(file, syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		if errors.Is(err, syscall.EWOULDBLOCK) {
			err = fmt.Errorf("%w: another store has locked %s; close it, or stop its process", ErrInUse, path)
		}
		return nil, errors.Join(err, file.Close())
	}
	return lockedFile{file}, nil
}

type lockedFile struct{ *os.File }

// Close unlocks the file before it closes it: a process that is being started may have a copy
// of the descriptor for a moment, and the lock with it.
func (f lockedFile) Close() error {
	return errors.Join(flock(f.File, syscall.LOCK_UN), f.File.Close())
}

func flock(file *os.File, how int) error {
	for {
		if err := syscall.Flock(int(file.Fd()), how); err != syscall.EINTR {
			return os.NewSyscallError("flock", err)
		}
	}
}
