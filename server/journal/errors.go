package journal

import (
	"errors"
	"fmt"
	"io/fs"
	"strings"
	"syscall"

	"github.com/tenurelock/tenure/statestore"
)

var (
	// ErrInUse matches an error because another process has the directory. The error says which.
	ErrInUse = errors.New("in use")
	// ErrDamaged matches an error because the file is not what a journal wrote: cut short,
	// changed, or unreadable.
	ErrDamaged = errors.New("damaged")
	// ErrForeign matches an error because the file belongs to another program.
	ErrForeign = errors.New("not a journal of tenure")
	// ErrNewer matches an error because a newer version of tenure wrote the file.
	ErrNewer = errors.New("written by a newer version of tenure")
	// ErrUnsafe matches an error because other users of the machine could change the data.
	ErrUnsafe = errors.New("not safe from other users")
	// ErrExists matches an error of Backup and RestoreBackup because they would overwrite data.
	ErrExists = errors.New("it exists already")
	// ErrNoData matches an error because the directory has no journal.
	ErrNoData = errors.New("no data")
	// ErrClosed matches an error of a journal that was closed.
	ErrClosed = errors.New("the journal is closed")
)

// errReplaced is why a journal ends when another file is in the place of its own.
var errReplaced = errors.New("another file is in its place: the directory was moved or replaced while this process " +
	"ran; stop a store before you move its data")

// errNoEnd is why a file is refused that a store has closed, or that Backup has made.
var errNoEnd = damaged("it does not have its end")

// errNotLoaded is why a journal is not written to at first.
var errNotLoaded = errors.New("it is not loaded")

// errLoaded is why a journal is not loaded a second time.
var errLoaded = errors.New("it is in use by another store of this process; open another directory for each store")

// damaged returns an error that matches ErrDamaged.
func damaged(format string, arguments ...any) error {
	return fmt.Errorf("%w: "+format, append([]any{ErrDamaged}, arguments...)...)
}

// cures say what an operator can do about an error. The first that fits counts.
var cures = []struct {
	of   error
	cure string
}{
	{statestore.ErrDamaged, ""}, {statestore.ErrNewerFormat, ""}, // they say it
	{syscall.ENOSPC, "; free space on the disk, or raise the quota, and try again"},
	{syscall.EDQUOT, "; free space on the disk, or raise the quota, and try again"},
	{syscall.ENOTDIR, "; a part of the path is a file: give a directory"},
	{fs.ErrPermission, "; run it as the user that owns it, give this user the rights to it, or use another directory"},
	{syscall.EIO, "; the disk reports errors: look at the log of the system, and replace the disk or restore a backup " +
		"on another one"},
	{ErrExists, "; use another name, or move it away first"},
	{ErrForeign, "; if it is a journal with another name, rename it back; else use another directory"},
	{ErrNewer, "; use that version or a newer one"},
}

// What an operator can do about ErrDamaged: of the file of a store, and of a backup.
const (
	cureStore  = `; stop the store, and restore a backup into an empty directory with "tenure restore"`
	cureBackup = "; this backup cannot be used: take another one"
)

// about returns err with the file of a store that it is about and what to do.
func about(path string, err error) error { return withCure(path, err, cureStore) }

// withCure returns err with the file that it is about and what to do. damaged is that for a damaged file.
func withCure(path string, err error, damaged string) error {
	if err == nil {
		return nil
	}
	wrapped := fmt.Errorf("journal: %w", err)
	var named *fs.PathError
	if !errors.As(err, &named) || named.Path != path {
		wrapped = fmt.Errorf("journal: %s: %w", path, err)
	}
	for _, c := range cures {
		if errors.Is(err, c.of) {
			return fmt.Errorf("%w%s", wrapped, c.cure)
		}
	}
	if errors.Is(err, ErrDamaged) {
		return fmt.Errorf("%w%s", wrapped, damaged)
	}
	return wrapped
}

// A line is several errors in one line.
type line struct{ error }

func (l line) Error() string { return strings.ReplaceAll(l.error.Error(), "\n", "; ") }
func (l line) Unwrap() error { return l.error }

// together is errors.Join with a text of one line.
func together(errs ...error) error {
	if err := errors.Join(errs...); err != nil {
		return line{err}
	}
	return nil
}
