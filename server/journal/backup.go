package journal

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/tenurelock/tenure/internal/failpoint"
)

// Progress is told how far a long operation is, in bytes or records. It is called often, by the
// goroutine that called the operation. nil is not called.
type Progress func(done, total uint64)

func (p Progress) call(done, total uint64) {
	if p != nil {
		p(done, total)
	}
}

// Backup writes a copy of the file to w, as it is after one of the commits: the last one, or
// one that is under way. Commits go on meanwhile. It needs the file only: Close does not end it.
//
// A program can call it by a timer, for instance. To get a backup of a running store from
// another process, use the function [Backup].
func (f *File) Backup(ctx context.Context, w io.Writer) error {
	file, err := openRegular(f.path, os.O_RDONLY)
	s, err := newSource(&source{name: f.path}, file, err)
	if err != nil {
		return err
	}
	return together(s.copyTo(ctx, w, nil), about(f.path, s.err), s.close())
}

// copyTo copies the commits that are whole, checks them, and returns the error of w. The copy has a frame
// that closes it, so a missing end of it is noticed. progress gets bytes.
func (s *scan) copyTo(ctx context.Context, w io.Writer, progress Progress) error {
	_, err := w.Write(head(s.salt))
	for frame := range s.frames(ctx) {
		failpoint.Hit(failpoint.DuringBackup)
		progress.call(uint64(s.at), uint64(s.size))
		if err == nil {
			_, err = w.Write(frame)
		}
		if err != nil {
			return err
		}
	}
	if err == nil && s.err == nil && !s.closed {
		_, err = w.Write(seal(make([]byte, frameHead), s.salt, s.number+1))
	}
	return err
}

// Backup writes a backup of the journal in dir to a new file. A process that has the journal open goes on
// meanwhile. The error matches [ErrNoData] if there is no journal, [ErrExists] if there is such a file, and
// [ErrUnsafe] if a symbolic link is in place of the journal. After an error it leaves nothing.
//
// The backup is checked before it gets its name, as with [Check]. It has the values of all keys;
// its mode is 0600. progress gets bytes, then records.
func Backup(ctx context.Context, dir, file string, progress Progress) (report Report, err error) {
	if _, err := os.Lstat(file); err == nil {
		return Report{}, about(file, ErrExists)
	} else if !errors.Is(err, fs.ErrNotExist) {
		return Report{}, about(file, err)
	}
	s, err := openSource(filepath.Join(dir, fileName))
	if err != nil {
		return Report{}, err
	}
	defer func() { err = together(err, s.close()) }()
	copied, err := os.CreateTemp(filepath.Dir(file), "."+filepath.Base(file)+".*") // mode 0600
	if err != nil {
		return Report{}, about(file, err)
	}
	defer func() { err = together(err, about(file, removeIfThere(copied.Name()))) }()
	err = s.copyTo(ctx, copied, progress)
	if err == nil {
		err = copied.Sync()
	}
	if err = together(about(s.name, s.err), about(file, together(err, copied.Close()))); err != nil {
		return Report{}, err
	}
	if report, err = inspectFile(ctx, copied.Name(), file, progress); err != nil {
		return report, err
	}
	report.Online = s.online
	return report, about(file, publish(copied.Name(), file))
}

// publish gives a file its name, unless there is one with that name.
func publish(temporary, name string) error {
	err := os.Link(temporary, name)
	switch {
	case err == nil:
		err = os.Remove(temporary)
	case errors.Is(err, fs.ErrExist):
		return ErrExists
	default: // a file system without hard links
		if _, err := os.Lstat(name); err == nil {
			return ErrExists
		}
		err = os.Rename(temporary, name)
	}
	if err != nil {
		return err
	}
	return syncDirectory(filepath.Dir(name))
}
