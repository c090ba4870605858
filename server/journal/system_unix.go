//go:build unix

package journal

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"syscall"
)

// noFollow makes the opening of a symbolic link fail.
const noFollow = syscall.O_NOFOLLOW

// rightsOf returns the rights of the owner, the group and all users.
func rightsOf(info fs.FileInfo) fs.FileMode { return info.Mode().Perm() }

// checkOwner refuses a file of another user, who could change it at any time.
func checkOwner(info fs.FileInfo) error {
	stat, ok := info.Sys().(*syscall.Stat_t)
	if own := uint32(os.Geteuid()); ok && stat.Uid != own && stat.Uid != 0 {
		return fmt.Errorf("%w: it belongs to user %d, and this process runs as user %d; run it as user %[2]d, or chown the "+
			"directory and its files",
			ErrUnsafe, stat.Uid, own)
	}
	return nil
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
	return together(err, opened.Close())
}
