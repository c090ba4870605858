package journal

import (
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"syscall"

	"github.com/gofrs/flock"
)

// system is the calls that change the files of a directory. A test watches them, and makes them fail.
var system = struct {
	open          func(path string, flag int, mode fs.FileMode) (*os.File, error)
	writeAt       func(file *os.File, content []byte, at int64) (int, error)
	truncate      func(file *os.File, size int64) error
	sync          func(file *os.File) error
	rename        func(from, to string) error
	remove        func(path string) error
	syncDirectory func(path string) error
}{os.OpenFile, (*os.File).WriteAt, (*os.File).Truncate, (*os.File).Sync, os.Rename, os.Remove, syncDirectory}

// A directory has the data of one journal, and this process has its lock.
type directory struct {
	path     string
	warnings []string // what its owner should change
	lock     *flock.Flock
}

// lockDirectory takes the lock of a directory, and creates the directory if it does not exist. With owner,
// another user must not own it. The error names the file and what to do.
func lockDirectory(path string, owner bool) (*directory, error) {
	if err := makeDirectory(path); err != nil {
		return nil, about(path, err)
	}
	warnings, err := inspectRights(path, owner)
	if err != nil {
		return nil, err
	}
	lock, err := acquire(path)
	return &directory{path: path, warnings: warnings, lock: lock}, err
}

// release frees the directory.
func (d *directory) release() error { return about(d.lock.Path(), d.lock.Close()) }

// join returns the path of a file in the directory.
func (d *directory) join(name string) string { return filepath.Join(d.path, name) }

// create makes the file of the journal, with what fill puts into it, and closes that.
func (d *directory) create(fill func(*writer) error) error {
	salt := rand.Uint32()
	return d.replace(fileName, head(salt), func(file *os.File) error {
		to := newWriter(file, salt)
		return together(fill(to), to.close())
	})
}

// checkEmpty refuses a directory without a journal that has other files: these may be the data of a store.
func (d *directory) checkEmpty() error {
	entries, err := os.ReadDir(d.path)
	own := []string{lockName, newName, holderName, holderName + ".new"}
	for _, entry := range entries {
		if entry.Type().IsRegular() && !slices.Contains(own, entry.Name()) {
			return fmt.Errorf("%w: it does not exist, and a new one begins in a directory without other files; %s is there",
				ErrForeign, d.join(entry.Name()))
		}
	}
	return err
}

// replace puts a new file, with content and what write adds, in place of one of the directory, durably: an error, a
// crash or a loss of power leaves the one before, or the new one.
func (d *directory) replace(name string, content []byte, write func(*os.File) error) error {
	path, made := d.join(name), d.join(name+".new")
	if err := removeIfThere(made); err != nil {
		return err
	}
	file, err := createFile(made, content)
	if err != nil {
		return err
	}
	if err = together(write(file), system.sync(file), file.Close()); err == nil {
		err = system.rename(made, path)
	}
	if err != nil {
		return together(err, removeIfThere(made))
	}
	return system.syncDirectory(d.path)
}

// makeDirectory creates a directory, and those above it, for their owner only, durably.
func makeDirectory(dir string) error {
	info, err := os.Stat(dir)
	above := filepath.Dir(dir)
	switch {
	case errors.Is(err, fs.ErrNotExist) && above != dir: // a drive may be missing
		if err := makeDirectory(above); err != nil {
			return err
		}
		if err := os.Mkdir(dir, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
			return err
		}
		return syncDirectory(above)
	case err == nil && !info.IsDir():
		return syscall.ENOTDIR
	}
	return err
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
	if err := checkRights(dir, info, owner,
		"chmod go-w it, or use a directory in it, which is made for its owner only"); err != nil {
		return nil, err
	}
	mode := rightsOf(info)
	if mode&0o020 != 0 {
		warnings = append(warnings, fmt.Sprintf(
			"%s: its group may write to it (mode %04o), and replace the data; chmod g-w it", dir, mode))
	}
	path := filepath.Join(dir, fileName)
	info, err = regular(path, os.Lstat)
	if errors.Is(err, fs.ErrNotExist) {
		return warnings, nil
	}
	if err != nil {
		return warnings, about(path, err)
	}
	if err := checkRights(path, info, owner, "chmod 600 it"); err != nil {
		return warnings, err
	}
	if file := rightsOf(info); mode&0o011 != 0 && file&0o044 != 0 {
		warnings = append(warnings, fmt.Sprintf(
			"%s: other users may read it (mode %04o), and it has the values of all keys; chmod 600 it", path, file))
	}
	return warnings, nil
}

func checkRights(path string, info fs.FileInfo, owner bool, cure string) error {
	if err := checkOwner(info); err != nil && owner {
		return about(path, err)
	}
	if mode := rightsOf(info); mode&0o002 != 0 {
		return about(path, fmt.Errorf("%w: all users may write to it (mode %04o); %s", ErrUnsafe, mode, cure))
	}
	return nil
}

// regular returns what stat knows about a file, and refuses whatever is no regular file: opening a named pipe
// waits for another process, and no signal ends that; a symbolic link in a directory of data may lead to a file
// that is not of the journal.
func regular(path string, stat func(string) (fs.FileInfo, error)) (fs.FileInfo, error) {
	info, err := stat(path)
	switch {
	case err != nil:
		return nil, err
	case info.Mode()&fs.ModeSymlink != 0:
		return nil, fmt.Errorf("%w: it is a symbolic link, which is not followed; use the directory that has the file itself",
			ErrUnsafe)
	case !info.Mode().IsRegular():
		return nil, fmt.Errorf("%w: it is not a regular file (%v)", ErrForeign, info.Mode().Type())
	}
	return info, nil
}

// openRegular opens a file in a directory of data. It follows no symbolic link.
func openRegular(path string, flag int) (*os.File, error) {
	if _, err := regular(path, os.Lstat); err != nil {
		return nil, err
	}
	return os.OpenFile(path, flag|noFollow, 0)
}

// createFile creates a file for its owner only. It must not be there.
func createFile(path string, content []byte) (*os.File, error) {
	file, err := system.open(path, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return nil, err
	}
	if _, err = system.writeAt(file, content, 0); err != nil {
		return nil, together(err, file.Close(), system.remove(path))
	}
	return file, nil
}

func removeIfThere(path string) error {
	if err := system.remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}
