//go:build !unix

package journal

import (
	"io/fs"
	"os"
)

// noFollow is no flag here. A file is checked before it is opened, and a link is refused then.
const noFollow = 0

// lockFlags are the flags with which a lock is opened, and created.
func lockFlags() int { return os.O_CREATE | os.O_RDONLY }

// rightsOf returns false: Windows has access control lists in place of mode bits, and a new
// directory inherits the list of the directory above it.
func rightsOf(fs.FileInfo) (mode fs.FileMode, ok bool) { return 0, false }

func checkOwner(fs.FileInfo) error { return nil }

// alive reports whether a process of this machine exists.
func alive(pid int) bool {
	process, err := os.FindProcess(pid) // fails on Windows if there is none
	if err != nil {
		return false
	}
	_ = process.Release()
	return true
}

// syncDirectory does nothing: Windows does not sync directories. NTFS keeps their changes in
// its own journal, in order.
func syncDirectory(string) error { return nil }
