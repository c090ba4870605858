package journal

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"go.etcd.io/bbolt"

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
// one that is under way. Commits go on meanwhile; only on Windows and with 32-bit addresses, a
// commit may wait for a slow w. The file may grow until Backup ends, and is not compacted.
// Close of the journal ends Backup with an error, but not a Write of w that waits.
//
// A program can call it by a timer, for instance. To get a backup of a running store from
// another process, use the function [Backup].
func (f *File) Backup(ctx context.Context, w io.Writer) error {
	return about(f.path, f.backup(ctx, func(int64) (io.Writer, error) { return w, nil }))
}

// backup calls begin with the number of bytes that it then writes to its result.
func (f *File) backup(ctx context.Context, begin func(size int64) (io.Writer, error)) error {
	db, err := f.reader(ctx)
	if err != nil {
		return err
	}
	defer f.readerEnds()
	return f.guard(func() error {
		return db.View(func(tx *bbolt.Tx) error {
			w, err := begin(tx.Size())
			if err != nil {
				return err
			}
			writer := &backupWriter{ctx: ctx, file: f, w: w}
			if _, err = tx.WriteTo(writer); writer.err != nil {
				return writer.err // bbolt v1.5.0 does not wrap it
			}
			return err
		})
	})
}

// reader returns the database, which stays open until readerEnds. It waits while the file is
// loaded or replaced.
func (f *File) reader(ctx context.Context) (*bbolt.DB, error) {
	for {
		f.mu.Lock()
		db, ready, closed := f.db, f.ready, f.closed
		if db != nil && !closed && !f.stuck {
			f.readers++
			f.mu.Unlock()
			return db, nil
		}
		stuck := f.stuck
		f.mu.Unlock()
		if closed || stuck {
			return nil, ErrClosed
		}
		select {
		case <-ready:
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
}

func (f *File) readerEnds() {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.readers--; f.readers == 0 && f.idle != nil {
		close(f.idle)
		f.idle = nil
	}
}

// backupWriter ends a backup with its context, and when the journal closes.
type backupWriter struct {
	ctx  context.Context
	file *File
	w    io.Writer
	err  error
}

func (b *backupWriter) Write(p []byte) (n int, err error) {
	defer func() { b.err = err }()
	failpoint.Hit(failpoint.DuringBackup)
	if b.ctx.Err() != nil {
		return 0, context.Cause(b.ctx)
	}
	b.file.mu.Lock()
	closed := b.file.closed
	b.file.mu.Unlock()
	if closed {
		return 0, ErrClosed
	}
	return b.w.Write(p)
}

// Backup writes a backup of the journal in dir to a new file. If a process has the journal open,
// that process is asked for the backup, and goes on meanwhile; it must run on this machine, and
// tenure.holder in dir must be readable. The error matches [ErrInUse] if it cannot be asked,
// [ErrNoData] if there is no journal, [ErrExists] if there is such a file, and [ErrUnsafe] if a
// symbolic link is in place of a file in dir. After an error it leaves nothing.
//
// The backup is checked before it gets its name, as with [Check]. It has the values of all keys;
// its mode is 0600. progress gets bytes, then records.
func Backup(ctx context.Context, dir, file string, progress Progress) (report Report, err error) {
	if _, err := os.Lstat(file); err == nil {
		return Report{}, about(file, ErrExists)
	} else if !errors.Is(err, fs.ErrNotExist) {
		return Report{}, about(file, err)
	}
	copied, err := os.CreateTemp(filepath.Dir(file), "."+filepath.Base(file)+".*") // mode 0600
	if err != nil {
		return Report{}, about(file, err)
	}
	defer func() {
		if remove := os.Remove(copied.Name()); !errors.Is(remove, fs.ErrNotExist) {
			err = together(err, about(copied.Name(), remove))
		}
	}()
	online, err := copyJournal(ctx, dir, copied, progress)
	if failed := new(unwritten); errors.As(err, failed) {
		err = about(file, failed.error)
	}
	if err == nil {
		err = about(file, copied.Sync())
	}
	if err = together(err, about(file, copied.Close())); err != nil {
		return Report{}, err
	}
	report, err = inspectFile(ctx, copied.Name(), filepath.Join(dir, fileName), progress)
	if err != nil {
		return report, err
	}
	report.File, report.Online = file, online
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

// copyJournal copies the journal in dir to a file, and reports whether a running process wrote it. An
// error of that file is an unwritten; others have what about adds.
func copyJournal(ctx context.Context, dir string, to *os.File, progress Progress) (online bool, err error) {
	path := filepath.Join(dir, fileName)
	if _, err := lstatRegular(path); errors.Is(err, fs.ErrNotExist) {
		return false, noData(dir)
	} else if err != nil {
		return false, about(path, err)
	}
	unlock, err := acquireToRead(dir)
	if errors.Is(err, ErrInUse) {
		return true, askForBackup(ctx, dir, to, progress)
	}
	if err != nil {
		return false, err
	}
	defer func() { err = together(err, about(dir, unlock())) }()
	from, err := openRegular(path, os.O_RDONLY)
	if err != nil {
		return false, about(path, err)
	}
	defer from.Close()
	info, err := from.Stat()
	if err != nil {
		return false, about(path, err)
	}
	writer := &progressWriter{w: contextWriter{ctx, to}, progress: progress, total: uint64(info.Size())}
	_, err = io.Copy(writer, from)
	if err = asUnwritten(err, to); errors.As(err, new(unwritten)) {
		return false, err
	}
	return false, about(path, err)
}

// An unwritten is an error of the file that is written, not of the one that is read.
type unwritten struct{ error }

func (u unwritten) Unwrap() error { return u.error }

// asUnwritten returns err as an unwritten if it is an error of that file.
func asUnwritten(err error, to *os.File) error {
	if named := (*fs.PathError)(nil); errors.As(err, &named) && named.Path == to.Name() {
		return unwritten{err}
	}
	return err
}

// contextWriter ends with its context.
type contextWriter struct {
	ctx context.Context
	w   io.Writer
}

func (c contextWriter) Write(p []byte) (int, error) {
	if c.ctx.Err() != nil {
		return 0, context.Cause(c.ctx)
	}
	return c.w.Write(p)
}

func noData(dir string) error {
	return fmt.Errorf("journal: %s: %w: there is no %s in it; give the directory of a durable store", dir, ErrNoData, fileName)
}
