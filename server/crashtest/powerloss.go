package crashtest

import (
	"bytes"
	"errors"
	"io/fs"
	"math/rand/v2"
	"os"
	"time"

	"github.com/tenurelock/tenure/internal/failpoint"
)

// PowerLoss is the end of a life in which the power is lost during a commit: of what was not
// synced yet, any sectors are on the disk. The process copies its file before the commit, and
// deletes the copy when the disk has confirmed the commit. If it was killed between, the next
// Start makes a file of both.
const PowerLoss failpoint.Point = "by a loss of power, or soon after a commit"

const (
	dataFile     = "tenure.db" // see package journal
	beforeSuffix = ".before"   // of the copy
	sameSuffix   = ".same"     // of a link to the file of which it is a copy

	pageSize = 4096 // of the file; the first two pages say which others count
	sector   = 512  // what a disk writes whole or not at all

	// longestCommit is about how long a commit takes.
	longestCommit = time.Millisecond
)

// beforeLoss keeps what the disk has before a commit.
func beforeLoss(data string) error {
	content, err := os.ReadFile(data)
	if err != nil {
		return err
	}
	if err := os.Link(data, data+sameSuffix); err != nil {
		return err
	}
	const part = ".part"
	if err := os.WriteFile(data+part, content, 0o600); err != nil {
		return err
	}
	return os.Rename(data+part, data+beforeSuffix)
}

// afterLoss makes a file that a disk may have after the power was lost, and reports whether it
// was lost.
func afterLoss(data string, fault Fault, random *rand.Rand) (lost bool, err error) {
	defer func() {
		for _, name := range []string{data + beforeSuffix, data + sameSuffix} {
			if gone := os.Remove(name); gone != nil && !errors.Is(gone, fs.ErrNotExist) {
				err = errors.Join(err, gone)
			}
		}
	}()
	before, err := os.ReadFile(data + beforeSuffix)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	was, err := os.Stat(data + sameSuffix)
	if err != nil {
		return false, err
	}
	is, err := os.Stat(data)
	if err != nil || !os.SameFile(was, is) {
		return false, err // a compaction has put a copy in its place, which was synced before
	}
	after, err := os.ReadFile(data)
	if err != nil {
		return false, err
	}
	file, err := os.OpenFile(data, os.O_RDWR, 0)
	if err != nil {
		return false, err
	}
	_, err = file.WriteAt(mixed(before, after, fault != NotSynced, random), 0)
	return true, errors.Join(err, file.Close())
}

// mixed returns after without some of the sectors that were written since before. If commits are
// synced, the pages that say which others count are written when all others are on the disk.
func mixed(before, after []byte, synced bool, random *rand.Rand) []byte {
	content := bytes.Clone(after)
	before = append(before, make([]byte, max(0, len(after)-len(before)))...) // a file grows by zeros
	const heads = 2 * pageSize
	first, end := heads, len(content)
	switch {
	case !synced:
		first = 0
	case !bytes.Equal(before[:heads], after[:heads]):
		first, end = 0, heads
	}
	kept := random.Float64()
	for at := first; at < end; at += sector {
		if random.Float64() >= kept {
			copy(content[at:min(at+sector, end)], before[at:])
		}
	}
	return content
}
