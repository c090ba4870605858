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
	dataFile     = "tenure.log" // see package journal
	beforeSuffix = ".before"    // of the copy
	sameSuffix   = ".same"      // of a link to the file of which it is a copy

	sector = 512 // what a disk writes whole or not at all

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
	content := mixed(before, after, fault != NotSynced, random)
	_, err = file.WriteAt(content, 0)
	return true, errors.Join(err, file.Truncate(int64(len(content))), file.Close())
}

// mixed returns after without some of the sectors that were written since before, and perhaps without its
// end. If commits are not synced, only the end of several of them is missing: a hole in front of a commit
// would be refused, and the loss of what was acknowledged is to be found.
func mixed(before, after []byte, synced bool, random *rand.Rand) []byte {
	content := bytes.Clone(after)
	if !synced || random.IntN(2) == 0 {
		content = content[:len(before)+random.IntN(len(after)-len(before)+1)]
	}
	if !synced {
		return content
	}
	before = append(before, make([]byte, len(after)-len(before))...) // a file grows by zeros
	kept := random.Float64()
	for at := 0; at < len(content); at += sector {
		if random.Float64() >= kept {
			copy(content[at:min(at+sector, len(content))], before[at:])
		}
	}
	return content
}
