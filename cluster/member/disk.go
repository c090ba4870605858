package member

import (
	"fmt"
	"path/filepath"

	"go.etcd.io/etcd/server/v3/storage/wal"

	"github.com/tenurelock/tenure/internal/diskspace"
)

// startSpace is how much a member writes soon after its start, besides the segments of its log.
const startSpace = 16 << 20

// checkSpace returns an error if the disk of a directory has no space for a member to start. etcd takes a
// segment of its log and the next one before it needs them, and where it cannot, it says that the log
// cannot be repaired, or ends soon after.
func checkSpace(dir string) error {
	needed := int64(startSpace)
	for _, segment := range []string{"*.wal", "*.tmp"} {
		if there, _ := filepath.Glob(filepath.Join(dir, "etcd", "member", "wal", segment)); len(there) == 0 {
			needed += wal.SegmentSizeBytes
		}
	}
	if free, known := diskspace.Free(dir); known && free < needed {
		return fmt.Errorf("the disk of %s has %d MiB free, and this member needs %d MiB to start; free space on it",
			dir, free>>20, needed>>20)
	}
	return nil
}
