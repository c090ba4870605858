package journal

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"syscall"
)

// A directory has the data of one journal, and this process has its lock.
type directory struct {
	path     string
	made     []string // what was created for it: the directory and those above it, the deepest first
	warnings []string // what its owner should change
	root     *os.Root // stays the same directory when that is moved
	lock     *directoryLock
}

// claim takes the lock of a directory, and creates the directory if it does not exist. With owner,
// another user must not own it. The error names the file and what to do.
func claim(ctx context.Context, path string, owner bool) (_ *directory, err error) {
	d := &directory{path: path}
	defer func() {
		if err != nil {
			d.abandon()
		}
	}()
	if d.made, err = makeDirectory(path); err != nil {
		return nil, about(path, err)
	}
	if d.warnings, err = inspectRights(path, owner); err != nil {
		return nil, err
	}
	if d.root, err = os.OpenRoot(path); err != nil {
		return nil, about(path, err)
	}
	if d.lock, err = acquire(ctx, path); err != nil {
		return nil, err
	}
	return d, nil
}

// release frees the directory.
func (d *directory) release() error {
	return together(about(d.lock.Path(), d.lock.Close()), about(d.path, d.root.Close()))
}

// abandon frees the directory, and removes what claim created, because no data came to it. What it
// cannot remove stays: that harms nothing.
func (d *directory) abandon() {
	if d.lock != nil {
		d.lock.closeAndRemove()
	}
	if d.root != nil {
		_ = d.root.Close()
	}
	for _, made := range d.made {
		_ = os.Remove(made) // only if it is empty
	}
}

// makeDirectory creates a directory, and those above it, for their owner only, durably. It returns
// what it created, the deepest first, also with an error.
func makeDirectory(dir string) (made []string, err error) {
	path := dir
	info, err := os.Stat(path)
	for errors.Is(err, fs.ErrNotExist) && filepath.Dir(path) != path { // a drive may be missing
		made, path = append(made, path), filepath.Dir(path)
		info, err = os.Stat(path)
	}
	switch {
	case err != nil:
		return nil, err
	case !info.IsDir():
		return nil, syscall.ENOTDIR
	}
	err = os.MkdirAll(dir, 0o700)
	for i := 0; i < len(made) && err == nil; i++ {
		err = syncDirectory(filepath.Dir(made[i]))
	}
	return made, err
}

// inspectRights refuses a directory of data, or a file in it, that another user can change: that
// user could put other data in its place, which a restart would believe. As the directory of each
// new user of many systems has a group of its own with the right to write, a group causes a
// warning only. The rights of the directories above are not checked. The superuser of the system
// may own everything; other owners are refused only with owner. Where the system has no mode bits,
// nothing is refused.
func inspectRights(dir string, owner bool) (warnings []string, err error) {
	info, err := os.Stat(dir)
	if err != nil {
		return nil, about(dir, err)
	}
	mode, ok := rightsOf(info)
	if !ok {
		return nil, nil
	}
	if err := checkOwner(info); err != nil && owner {
		return nil, about(dir, err)
	}
	if mode&0o002 != 0 {
		return nil, about(dir, fmt.Errorf("%w: all users may write to it (mode %04o); chmod go-w it, or use a directory in it, which is made for its owner only", ErrUnsafe, mode))
	}
	if mode&0o020 != 0 {
		warnings = append(warnings, fmt.Sprintf("%s: its group may write to it (mode %04o), and replace the data; chmod g-w it", dir, mode))
	}
	path := filepath.Join(dir, fileName)
	info, err = lstatRegular(path)
	if errors.Is(err, fs.ErrNotExist) {
		return warnings, nil
	}
	if err != nil {
		return warnings, about(path, err)
	}
	if err := checkOwner(info); err != nil && owner {
		return warnings, about(path, err)
	}
	file, _ := rightsOf(info)
	switch reachable := mode&0o010*0o7 | mode&0o001*0o7; { // by those that may enter the directory
	case file&0o002 != 0:
		return warnings, about(path, fmt.Errorf("%w: all users may write to it (mode %04o); chmod 600 it", ErrUnsafe, file))
	case file&reachable&0o066 != 0:
		warnings = append(warnings, fmt.Sprintf("%s: other users may read it (mode %04o), and it has the values of all keys; chmod 600 it", path, file))
	}
	return warnings, nil
}

// checkEmpty refuses a directory without a journal that has other files: these may be the data of a store.
func (d *directory) checkEmpty() error {
	entries, err := os.ReadDir(d.path)
	own := []string{lockName, newName, holderName, holderName + ".new"}
	for _, entry := range entries {
		if entry.Type().IsRegular() && !slices.Contains(own, entry.Name()) {
			return fmt.Errorf("%w: it does not exist, and a new one begins in a directory without other files; %s is there",
				ErrForeign, filepath.Join(d.path, entry.Name()))
		}
	}
	return err
}

// lstatRegular returns what is known about a file in a directory of data. It refuses whatever is
// no regular file: opening a named pipe waits for another process, and no signal ends that; a
// symbolic link may lead to a file that is not of the journal.
func lstatRegular(path string) (fs.FileInfo, error) {
	info, err := os.Lstat(path)
	switch {
	case err != nil:
		return nil, err
	case info.Mode()&fs.ModeSymlink != 0:
		return nil, fmt.Errorf("%w: it is a symbolic link, which is not followed; use the directory that has the file itself", ErrUnsafe)
	case !info.Mode().IsRegular():
		return nil, fmt.Errorf("%w: it is not a regular file (%v)", ErrForeign, info.Mode().Type())
	}
	return info, nil
}

// openRegular opens a file in a directory of data. It follows no symbolic link.
func openRegular(path string, flag int) (*os.File, error) {
	if _, err := lstatRegular(path); err != nil {
		return nil, err
	}
	return os.OpenFile(path, flag|noFollow, 0)
}

// openGiven opens a file that the user named, such as a backup, to read it. It may be a link.
func openGiven(path string) (*os.File, error) {
	info, err := os.Stat(path)
	switch {
	case err != nil:
		return nil, err
	case info.IsDir():
		return nil, syscall.EISDIR
	case !info.Mode().IsRegular(): // such as a named pipe
		return nil, fmt.Errorf("%w: it is not a regular file (%v)", ErrForeign, info.Mode().Type())
	}
	return os.Open(path)
}

func removeIfThere(path string) error {
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}
