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

// newHolder returns what this process says about itself.
func newHolder() holder {
	host, _ := os.Hostname() // if it fails, errors of other processes lack the name
	return holder{PID: os.Getpid(), Host: host, Boot: boot()}
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

// fellSilent reports whether clients of a process before this one may not have noticed its end, because its
// machine was gone without a word: it has left its name, in another run of the machine. A process that is
// killed leaves its name too, but the system closes its connections. The caller has the lock.
func fellSilent(former holder, err error) bool {
	if errors.Is(err, fs.ErrNotExist) {
		return false // a clean stop, or none was there
	}
	return err != nil || former.Silent || former.Boot != boot()
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
	if err != nil {
		return false, together(err, l.Close())
	}
	there, err := os.Lstat(l.Path())
	if err == nil && os.SameFile(locked, there) {
		return true, nil
	}
	if errors.Is(err, fs.ErrNotExist) {
		err = nil
	}
	return false, together(err, l.Close())
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
	retry := time.NewTicker(lockRetry)
	defer retry.Stop()
	for {
		lock, err := newLock(dir)
		if err != nil {
			return nil, about(filepath.Join(dir, lockName), err)
		}
		switch locked, err := lock.take(lock.TryLock); {
		case err != nil:
			return nil, about(lock.Path(), err)
		case locked:
			return lock, nil
		}
		select {
		case <-retry.C:
		case <-bounded.Done():
			if ctx.Err() != nil {
				return nil, context.Cause(ctx)
			}
			return nil, fmt.Errorf("journal: %s: %w by %s; stop that process, or use another directory", dir, ErrInUse, holderOf(dir))
		}
	}
}

// held reports whether a process has the lock of a directory. What such a process has committed can be
// read all the same.
func held(dir string) bool {
	path := filepath.Join(dir, lockName)
	if _, err := lstatRegular(path); err != nil {
		return false
	}
	lock := flock.New(path, flock.SetFlag(lockFlags()&^os.O_CREATE))
	free, err := lock.TryRLock()
	_ = lock.Close()
	return !free && err == nil
}

// holderOf describes the process that has the lock.
func holderOf(dir string) string {
	found, err := readHolder(dir)
	own, _ := os.Hostname()
	switch {
	case err != nil:
		return "another process, which has just started" // it left no name
	case found.Host != own:
		return fmt.Sprintf("process %d on host %s", found.PID, found.Host)
	case found.PID == os.Getpid():
		return fmt.Sprintf("this process (%d)", found.PID)
	case !alive(found.PID):
		return "another process, which has just started" // the name is of a dead one
	}
	return fmt.Sprintf("process %d", found.PID)
}

func readHolder(dir string) (holder, error) {
	path := filepath.Join(dir, holderName)
	file, err := openRegular(path, os.O_RDONLY)
	if err != nil {
		return holder{}, err
	}
	defer file.Close()
	content, err := io.ReadAll(io.LimitReader(file, maxHolder))
	if err != nil {
		return holder{}, err
	}
	var found holder
	if err := json.Unmarshal(content, &found); err != nil {
		return holder{}, err
	}
	if found.PID <= 0 {
		return holder{}, errors.New("no process id")
	}
	return found, nil
}

// writeHolder says which process has the lock, durably: at each moment the directory has this name or the
// one before. The caller has the lock.
func (d *directory) writeHolder(h holder) error {
	content, err := json.Marshal(h)
	if err != nil {
		return err
	}
	path := filepath.Join(d.path, holderName)
	if err := removeIfThere(path + ".new"); err != nil {
		return about(path, err)
	}
	file, err := os.OpenFile(path+".new", os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return about(path, err)
	}
	_, err = file.Write(append(content, '\n'))
	err = together(err, file.Sync(), file.Close())
	if err == nil {
		err = os.Rename(path+".new", path)
	}
	if err == nil {
		err = syncDirectory(d.path)
	}
	return about(path, err)
}

// remove removes files of the directory, if they are there. It may have been moved: what has its name now
// belongs to another journal.
func (d *directory) remove(names ...string) error {
	var errs []error
	for _, name := range names {
		if err := d.root.Remove(name); err != nil && !errors.Is(err, fs.ErrNotExist) {
			errs = append(errs, about(filepath.Join(d.path, name), err))
		}
	}
	return together(errs...)
}
