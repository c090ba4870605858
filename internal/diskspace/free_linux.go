package diskspace

import (
	"os"
	"syscall"
)

// Free returns how many bytes this process may still write to the disk of a directory. Quotas do not
// count. known is false where the system, or a file system of its own kind, does not say.
func Free(dir string) (free int64, known bool) {
	var disk syscall.Statfs_t
	if syscall.Statfs(dir, &disk) != nil || disk.Blocks == 0 {
		return 0, false
	}
	blocks := disk.Bavail
	if os.Geteuid() == 0 {
		blocks = disk.Bfree // with those that are kept for the superuser
	}
	return int64(blocks) * int64(disk.Bsize), true
}
