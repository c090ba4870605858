package journal

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/gofrs/flock"
)

// lockTimeout is how long Open waits for a process that ends, such as the one before a restart.
const (
	lockTimeout = time.Second
	lockRetry   = 25 * time.Millisecond
)

// maxHolder bounds the file that names the holder.
const maxHolder = 16 << 10

// A holder is what the process that has the lock says about itself. The lock alone decides who has it;
// of a dead process its pid is not believed.
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

// A directoryLock is the lock of a directory: a file that one process locks.
type directoryLock struct {
	*flock.Flock
	created bool // the file was not there before
}

// newLock returns the lock of a directory, which is not taken.
func newLock(dir string) (*directoryLock, error) {
	path := filepath.Join(dir, lockName)
	_, err := lstatRegular(path)
	created := errors.Is(err, fs.ErrNotExist)
	if err != nil && !created {
		return nil, err
	}
	return &directoryLock{flock.New(path, flock.SetFlag(lockFlags()), flock.SetPermissions(0o600)), created}, nil
}

// take takes the lock, unless another process has it. A process that removes
// the file holds its lock, so a lock of a file that is no longer there locks nothing.
func (l *directoryLock) take(try func() (bool, error)) (bool, error) {
	if locked, err := try(); err != nil || !locked {
		return false, err
	}
	locked, err := l.Stat()
	there, gone := os.Lstat(l.Path())
	if err == nil && gone == nil && os.SameFile(locked, there) {
		return true, nil
	}
	if errors.Is(gone, fs.ErrNotExist) {
		gone = nil
	}
	return false, together(err, gone, l.Close())
}

// closeAndRemove frees the lock, and removes the file if this process created it. The caller has
// the lock to write. Windows removes no open file; there a file that another process has opened
// meanwhile stays.
func (l *directoryLock) closeAndRemove() {
	if l.created && os.Remove(l.Path()) == nil {
		l.created = false
	}
	_ = l.Close()
	if l.created {
		_ = os.Remove(l.Path())
	}
}

// acquire takes the lock of a directory. It waits for a moment for a process that ends. If another
// process has it, the error matches ErrInUse.
func acquire(ctx context.Context, dir string) (*directoryLock, error) {
	bounded, cancel := context.WithTimeout(ctx, lockTimeout)
	defer cancel()
	for {
		lock, err := newLock(dir)
		if err != nil {
			return nil, about(filepath.Join(dir, lockName), err)
		}
		locked, err := lock.take(func() (bool, error) { return lock.TryLockContext(bounded, lockRetry) })
		switch {
		case locked:
			return lock, nil
		case ctx.Err() != nil:
			return nil, context.Cause(ctx)
		case bounded.Err() != nil:
			return nil, fmt.Errorf("journal: %s: %w by %s; stop that process, or use another directory", dir, ErrInUse, holderOf(dir))
		case err != nil:
			return nil, about(lock.Path(), err)
		}
	}
}

// held reports whether a process has the lock of a directory. What such a process has committed can be
// read all the same.
func held(dir string) bool {
	lock, err := newLock(dir)
	if err != nil || lock.created {
		return false
	}
	free, err := lock.TryRLock()
	_ = lock.Close()
	return !free && err == nil
}

// holderOf describes the process that has the lock.
func holderOf(dir string) string {
	found, err := readHolder(dir)
	own, _ := os.Hostname()
	switch {
	case err != nil || found.Host == own && !alive(found.PID): // there is no name yet, or that of a process that is gone
		return "another process, which has just started"
	case found.Host != own:
		return fmt.Sprintf("process %d on host %s", found.PID, found.Host)
	case found.PID == os.Getpid():
		return fmt.Sprintf("this process (%d)", found.PID)
	}
	return fmt.Sprintf("process %d", found.PID)
}

func readHolder(dir string) (found holder, err error) {
	file, err := openRegular(filepath.Join(dir, holderName), os.O_RDONLY)
	if err != nil {
		return found, err
	}
	defer file.Close()
	err = json.NewDecoder(io.LimitReader(file, maxHolder)).Decode(&found)
	if err == nil && found.PID <= 0 {
		err = errors.New("no process id")
	}
	return found, err
}

// writeHolder says which process has the lock, durably: at each moment the directory has this name or the
// one before. The caller has the lock.
func (d *directory) writeHolder(h holder) error {
	content, err := json.Marshal(h)
	if err != nil {
		return err
	}
	path := filepath.Join(d.path, holderName)
	err = removeIfThere(path + ".new")
	if err == nil {
		var file *os.File
		if file, err = createFile(path+".new", append(content, '\n')); err == nil {
			err = together(file.Sync(), file.Close())
		}
	}
	if err == nil {
		err = together(os.Rename(path+".new", path), syncDirectory(d.path))
	}
	return err
}

// createFile creates a file for its owner only. It must not be there.
func createFile(path string, content []byte) (*os.File, error) {
	file, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return nil, err
	}
	if _, err = file.WriteAt(content, 0); err != nil {
		return nil, together(err, file.Close(), os.Remove(path))
	}
	return file, nil
}

// remove removes a file of the directory, if it is there. It may have been moved: what has its name now
// belongs to another journal.
func (d *directory) remove(name string) error {
	if err := d.root.Remove(name); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return about(filepath.Join(d.path, name), err)
	}
	return nil
}
