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
var errReplaced = errors.New("another file is in its place: the directory was moved or replaced while this process ran; " +
	"stop a store before you move its data")

// errLoaded is why a journal is not loaded a second time.
var errLoaded = errors.New("it is in use by another store of this process; open another directory for each store")

// damaged returns an error that matches ErrDamaged.
func damaged(format string, arguments ...any) error {
	return fmt.Errorf("%w: "+format, append([]any{ErrDamaged}, arguments...)...)
}

// A classified error matches another one, which its text does not name.
type classified struct {
	error
	class error
}

func (c classified) Unwrap() []error { return []error{c.error, c.class} }

// withCause adds the error of the system to an error of bbolt. bbolt v1.5.0: when the file
// cannot grow, the error has its cause as text.
func withCause(err error) error {
	for _, errno := range []syscall.Errno{syscall.ENOSPC, syscall.EDQUOT, syscall.EFBIG, syscall.EROFS, syscall.EIO} {
		if err != nil && !errors.Is(err, errno) && strings.HasSuffix(err.Error(), ": "+errno.Error()) {
			return classified{err, errno}
		}
	}
	return err
}

// advice returns what an operator can do about err; empty if nothing is known.
func advice(err error) string {
	switch {
	case errors.Is(err, statestore.ErrDamaged), errors.Is(err, statestore.ErrNewerFormat):
		return "" // it says what to do
	case errors.Is(err, syscall.ENOSPC), errors.Is(err, syscall.EDQUOT):
		return "free space on the disk, or raise the quota, and try again"
	case errors.Is(err, syscall.EFBIG):
		return "raise the limit on the size of files, and try again"
	case errors.Is(err, syscall.EROFS):
		return "mount the disk writable, or use a directory on another one"
	case errors.Is(err, fs.ErrPermission):
		return "run it as the user that owns it, give this user the rights to it, or use another directory"
	case errors.Is(err, syscall.ELOOP):
		return "a symbolic link points to itself, or is not followed: give a real directory"
	case errors.Is(err, syscall.EISDIR):
		return "give the file, not its directory"
	case errors.Is(err, syscall.ENOTDIR):
		return "a part of the path is a file: give a directory"
	case errors.Is(err, fs.ErrExist):
		return "there is something else with that name: use another directory"
	case errors.Is(err, syscall.EIO):
		return "the disk reports errors: look at the log of the system, and replace the disk or restore a backup on another one"
	case errors.Is(err, syscall.EMFILE), errors.Is(err, syscall.ENFILE):
		return "raise the limit on open files"
	case errors.Is(err, ErrDamaged):
		return `stop the store, see "tenure check", and restore a backup into an empty directory with "tenure restore"`
	case errors.Is(err, ErrExists):
		return "use another name, or move it away first"
	case errors.Is(err, ErrForeign):
		return "use another directory"
	case errors.Is(err, ErrNewer):
		return "use that version or a newer one"
	}
	return ""
}

// about returns err with the file that it is about and what to do.
func about(path string, err error) error {
	if err == nil {
		return nil
	}
	wrapped := fmt.Errorf("journal: %w", err)
	var named *fs.PathError
	if !errors.As(err, &named) || named.Path != path {
		wrapped = fmt.Errorf("journal: %s: %w", path, err)
	}
	if cure := advice(err); cure != "" {
		wrapped = fmt.Errorf("%w; %s", wrapped, cure)
	}
	return wrapped
}

// An errorList is several errors in one line.
type errorList []error

func (l errorList) Error() string {
	var texts []string
	for _, err := range l {
		texts = append(texts, err.Error())
	}
	return strings.Join(texts, "; ")
}

func (l errorList) Unwrap() []error { return l }

// together is errors.Join with a text of one line, and without nesting one error.
func together(errs ...error) error {
	var list errorList
	for _, err := range errs {
		if err != nil {
			list = append(list, err)
		}
	}
	switch len(list) {
	case 0:
		return nil
	case 1:
		return list[0]
	}
	return list
}
