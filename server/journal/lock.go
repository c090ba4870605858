package journal

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/gofrs/flock"
)

// A holder is what the process that has the lock says about itself. The lock alone decides who has it.
type holder struct {
	PID    int    `json:"pid"`
	Host   string `json:"host"`
	Boot   string `json:"boot"`             // see boot
	Silent bool   `json:"silent,omitempty"` // clients of a process before it may not have noticed its end
	Salt   uint32 `json:"salt"`             // of the file that it found
	Synced int64  `json:"synced"`           // bytes of that file that were on the disk
}

// boot names the present run of the machine. Where the system does not say it, it names the process: then each
// end but a clean one counts as the end of the machine.
var boot = sync.OnceValue(func() string {
	id, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return rand.Text()
	}
	return strings.TrimSpace(string(id))
})

// checkSynced returns an error if a file does not have what was on the disk before its process crashed.
func (s *scan) checkSynced(h holder) error {
	if h.Salt == s.salt && s.at < h.Synced {
		return damaged("commit %d, at %d, is not whole, and %d bytes were on the disk before the crash",
			s.number+1, s.at, h.Synced)
	}
	return nil
}

// lockTimeout is how long a start waits for the lock, and lockRetry how often it tries to take it.
const (
	lockTimeout = 50 * time.Millisecond
	lockRetry   = 10 * time.Millisecond
)

// newLock returns the lock of a directory, which is not taken: a file that one process locks.
func newLock(dir string, flags int) (*flock.Flock, error) {
	path := filepath.Join(dir, lockName)
	if _, err := regular(path, os.Lstat); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, about(path, err)
	}
	return flock.New(path, flock.SetFlag(flags), flock.SetPermissions(0o600)), nil
}

// acquire takes the lock of a directory. It waits for a check or a backup, which has it for a moment. If another
// process has it, the error matches ErrInUse.
func acquire(dir string) (*flock.Flock, error) {
	lock, err := newLock(dir, os.O_RDWR|os.O_CREATE|noFollow)
	if err != nil {
		return nil, err
	}
	bounded, cancel := context.WithTimeout(context.Background(), lockTimeout)
	defer cancel()
	_, err = lock.TryLockContext(bounded, lockRetry)
	if errors.Is(err, context.DeadlineExceeded) {
		by := "another process, which has just started"
		if found, err := readHolder(dir); err == nil {
			by = fmt.Sprintf("process %d on host %s", found.PID, found.Host)
		}
		err = fmt.Errorf("%w by %s; stop that process, or use another directory", ErrInUse, by)
	}
	if err != nil {
		return nil, about(dir, err)
	}
	return lock, nil
}

// held reports whether a process has the lock of a directory. What such a process has committed can be
// read all the same. It creates no lock: one of the superuser would keep the store out.
func held(dir string) bool {
	lock, err := newLock(dir, os.O_RDONLY|noFollow)
	if err != nil {
		return false
	}
	free, err := lock.TryRLock()
	_ = lock.Close()
	return !free && err == nil
}

func readHolder(dir string) (found holder, err error) {
	file, err := openRegular(filepath.Join(dir, holderName), os.O_RDONLY)
	if err != nil {
		return found, err
	}
	defer file.Close()
	return found, json.NewDecoder(file).Decode(&found)
}

// writeHolder says which process has the lock. The caller has the lock.
func (d *directory) writeHolder(h holder) error {
	content, err := json.Marshal(h)
	if err != nil {
		return err
	}
	return d.replace(holderName, append(content, '\n'), func(*os.File) error { return nil })
}
