package journal

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"github.com/gofrs/flock"
)

// lockTimeout is how long Open waits for a process that ends, such as the one before a restart.
const (
	lockTimeout = time.Second
	lockRetry   = 25 * time.Millisecond
)

// A holder is what the process that has the lock says about itself. The lock alone decides;
// what a dead process left behind is never believed.
type holder struct {
	PID    int    `json:"pid"`
	Host   string `json:"host"`
	Socket string `json:"socket,omitempty"` // where it is asked for a backup
	Secret string `json:"secret,omitempty"` // which the question contains
}

// acquire takes the lock of a directory. If another process has it, the error matches ErrInUse.
func acquire(ctx context.Context, dir string) (*flock.Flock, error) {
	path := filepath.Join(dir, lockName)
	if err := checkRegular(path); err != nil {
		return nil, about(path, err)
	}
	lock := flock.New(path, flock.SetPermissions(0o600))
	bounded, cancel := context.WithTimeout(ctx, lockTimeout)
	defer cancel()
	if _, err := lock.TryLockContext(bounded, lockRetry); err == nil {
		return lock, nil
	} else if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	} else if !errors.Is(err, context.DeadlineExceeded) {
		return nil, about(path, err)
	}
	return nil, fmt.Errorf("journal: %s: %w by %s; stop that process, or use another directory", dir, ErrInUse, holderOf(dir))
}

// acquireToRead takes the lock together with other readers; unlock frees it. It does not wait:
// a process that has the lock can be asked for a copy.
func acquireToRead(dir string) (unlock func() error, err error) {
	path := filepath.Join(dir, lockName)
	if err := checkRegular(path); err != nil {
		return nil, about(path, err)
	}
	lock := flock.New(path, flock.SetPermissions(0o600))
	switch locked, err := lock.TryRLock(); {
	case errors.Is(err, syscall.EROFS):
		return func() error { return nil }, nil // no store ran here, and none can start
	case err != nil:
		return nil, about(path, err)
	case !locked:
		return nil, fmt.Errorf("journal: %s: %w by %s", dir, ErrInUse, holderOf(dir))
	}
	return lock.Close, nil
}

// holderOf describes the process that has the lock.
func holderOf(dir string) string {
	found, err := readHolder(dir)
	own, _ := os.Hostname()
	switch {
	case err != nil:
		return "another process, which reads it or has just started" // it left no name
	case found.Host != own:
		return fmt.Sprintf("process %d on host %s", found.PID, found.Host)
	case found.PID == os.Getpid():
		return fmt.Sprintf("this process (%d)", found.PID)
	case !alive(found.PID):
		return "another process, which reads it or has just started" // the name is of a dead one
	}
	return fmt.Sprintf("process %d", found.PID)
}

func readHolder(dir string) (holder, error) {
	path := filepath.Join(dir, holderName)
	if err := checkRegular(path); err != nil {
		return holder{}, err
	}
	content, err := os.ReadFile(path)
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

// writeHolder says which process has the lock. The caller has it.
func writeHolder(dir string, h holder) error {
	content, err := json.Marshal(h)
	if err != nil {
		return err
	}
	path := filepath.Join(dir, holderName)
	if err := removeIfThere(path); err != nil {
		return about(path, err)
	}
	file, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return about(path, err)
	}
	_, err = file.Write(append(content, '\n'))
	return about(path, errors.Join(err, file.Close()))
}

// checkRegular refuses what is there but is not a regular file: opening a named pipe waits for
// another process, and no signal ends that.
func checkRegular(path string) error {
	info, err := os.Stat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil:
		return err
	case !info.Mode().IsRegular() && !info.IsDir(): // reading a directory fails by itself
		return fmt.Errorf("%w: it is not a regular file (%v)", ErrForeign, info.Mode().Type())
	}
	return nil
}

// openRegular opens a regular file to read it.
func openRegular(path string) (*os.File, error) {
	if err := checkRegular(path); err != nil {
		return nil, err
	}
	return os.Open(path)
}
