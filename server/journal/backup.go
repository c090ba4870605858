package journal

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/tenurelock/tenure/hlc"
	"github.com/tenurelock/tenure/internal/engine"
	"github.com/tenurelock/tenure/internal/failpoint"
	"github.com/tenurelock/tenure/statestore"
)

// copyTo copies the commits that are whole, checks them, and returns the error of w. The copy has a frame
// that closes it, so a missing end of it is noticed.
func (s *source) copyTo(ctx context.Context, w io.Writer) error {
	_, err := w.Write(head(s.salt))
	for frame := range s.frames(ctx) {
		if err != nil {
			return err
		}
		failpoint.Hit(failpoint.DuringBackup)
		_, err = w.Write(frame)
	}
	if s.checkEnd(); err == nil && s.err == nil && !s.closed {
		_, err = w.Write(seal(make([]byte, frameHead), s.salt, s.number+1))
	}
	return err
}

// Backup writes a backup of the journal in dir to a new file. A process that has the journal open goes on
// meanwhile. The error matches [ErrNoData] if there is no journal, [ErrExists] if there is such a file, and
// [ErrUnsafe] if a symbolic link is in place of the journal. After an error it leaves nothing.
//
// The backup is checked before it gets its name, as with [Check]. It has the values of all keys;
// its mode is 0600. A crash may leave an empty file with that name.
func Backup(ctx context.Context, dir, file string) (report Report, err error) {
	if _, err := os.Lstat(file); err == nil {
		return Report{}, about(file, ErrExists)
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
	written := s.copyTo(ctx, copied)
	err = together(s.about(s.err), about(file, together(written, copied.Sync(), copied.Close())))
	if err == nil {
		report, err = Check(ctx, copied.Name())
	}
	if err == nil {
		err = about(file, publish(copied.Name(), file))
	}
	report.File, report.Online = file, s.online
	return report, err
}

// publish gives a file another name, unless there is one with that name. An empty file reserves the name: a
// rename would replace a file, and not all file systems have hard links.
func publish(temporary, name string) error {
	reserved, err := createFile(name, nil)
	if errors.Is(err, fs.ErrExist) {
		return ErrExists
	}
	if err != nil {
		return err
	}
	if err := together(reserved.Close(), os.Rename(temporary, name)); err != nil {
		return together(err, os.Remove(name))
	}
	return syncDirectory(filepath.Dir(name))
}

// RestoreBackup makes a journal in dir from a backup. dir must have none; it is created if it
// does not exist. The error matches [ErrExists] if it has one, [ErrInUse] if a process uses it,
// [ErrNoData] if there is no backup, [ErrUnsafe] if all users may write to dir, and the errors of
// [Check] if the backup is not sound. Another user may own dir: give it to the user of the store
// afterwards.
//
// What changed after the backup is lost. So the data get a new identity, which ends the tenures
// that clients have: a holder does not go on by data that may not know it. And the bound of the
// versions becomes the wall clock plus a minute, unless the backup's is later: no version and no
// token is issued twice, provided that the clock of this machine, now, is not behind the clock
// of the lost store by more than the minute. A fence that was raised after the backup is as it
// was in the backup; new tokens are above it all the same.
//
// After an error it leaves no data in dir.
// The report is about the new journal. It has a warning if the bound of the versions is more than
// two minutes ahead of the clock: either this machine's clock is behind, and then versions may be
// issued twice, or the clock of the lost store was ahead.
func RestoreBackup(ctx context.Context, backup, dir string) (report Report, err error) {
	s, err := openBackup(backup)
	if err != nil {
		return Report{}, err
	}
	defer func() { err = together(err, s.close()) }()
	locked, err := lockDirectory(dir, false)
	if err != nil {
		return Report{}, err
	}
	defer func() { err = together(err, locked.release()) }()
	path := locked.join(fileName)
	if _, err := os.Lstat(path); err == nil {
		return Report{}, about(path, ErrExists)
	}
	var unsound error
	err = locked.create(func(to *writer) error {
		unsound = s.restoreTo(ctx, to)
		return unsound
	})
	if unsound != nil {
		return Report{}, s.about(unsound)
	}
	if err != nil {
		return Report{}, about(path, err)
	}
	if report, err = Check(ctx, dir); err != nil {
		err = together(err, removeIfThere(path))
	}
	report.Online = false // it is this process
	return report, err
}

// restoreTo writes the records to a new file, with a new identity and a higher bound.
func (s *source) restoreTo(ctx context.Context, to *writer) error {
	if err := s.complete(ctx); err != nil {
		return err
	}
	bound := hlc.Timestamp{Wall: time.Now().Add(statestore.MaxSkew).UnixMilli()}
	err := s.items(ctx, func(record statestore.Record, item statestore.Item) error {
		if item.Version.Compare(bound) > 0 {
			bound = item.Version
		}
		if item.Kind != statestore.KindIdentity && item.Kind != statestore.KindBound {
			to.put(record)
			to.syncFull()
		}
		return nil
	})
	bound.Node = ""
	to.put(statestore.Item{Kind: statestore.KindIdentity, Identity: engine.NewIdentity(), HoldOff: true}.Record())
	to.put(statestore.Item{Kind: statestore.KindBound, Version: bound}.Record())
	return err
}
