package member

import "syscall"

// freeOn returns how many bytes a user may still write to the disk of a directory.
func freeOn(dir string) (free int64, known bool) {
	var disk syscall.Statfs_t
	if syscall.Statfs(dir, &disk) != nil {
		return 0, false
	}
	return int64(disk.Bavail) * int64(disk.Bsize), true
}
