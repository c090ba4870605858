//go:build !unix

package journal

import "os"

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
