package journal

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/tenurelock/tenure/hlc"
	"github.com/tenurelock/tenure/internal/engine"
	"github.com/tenurelock/tenure/statestore"
)

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
// A backup of which only the last commit is missing, as [ErrDamaged] says of such a file, is
// accepted.
//
// After an error it leaves nothing in dir, and no directory that it created. progress gets records.
// The report is about the new journal. It has a warning if the bound of the versions is more than
// two minutes ahead of the clock: either this machine's clock is behind, and then versions may be
// issued twice, or the clock of the lost store was ahead.
func RestoreBackup(ctx context.Context, backup, dir string, progress Progress) (report Report, err error) {
	s, err := scanGiven(backup)
	if errors.Is(err, fs.ErrNotExist) {
		return Report{}, fmt.Errorf("journal: %s: %w: it does not exist; give the file of a backup", backup, ErrNoData)
	}
	if err != nil {
		return Report{}, about(backup, err)
	}
	defer s.file.Close()
	claimed, err := claim(ctx, dir, false)
	if err != nil {
		return Report{}, err
	}
	report, err = s.restoreIn(ctx, claimed, progress)
	if source := new(unreadable); errors.As(err, source) {
		err = about(backup, source.error)
	}
	if err != nil {
		claimed.abandon()
		return Report{}, err
	}
	report.Warnings = append(report.Warnings, claimed.warnings...)
	return report, claimed.release()
}

// restoreIn makes a journal in a directory that has none. After an error it has left nothing.
func (s *scan) restoreIn(ctx context.Context, dir *directory, progress Progress) (Report, error) {
	path, created := filepath.Join(dir.path, fileName), filepath.Join(dir.path, newName)
	if _, err := os.Lstat(path); err == nil {
		return Report{}, about(path, ErrExists)
	}
	if err := os.RemoveAll(created); err != nil {
		return Report{}, about(created, err)
	}
	err := s.restoreTo(ctx, created, progress)
	if err != nil {
		return Report{}, together(about(path, err), about(created, removeIfThere(created)))
	}
	report, err := inspectFile(ctx, created, path, nil)
	if err == nil {
		err = about(path, os.Rename(created, path))
	}
	if err != nil {
		return Report{}, together(err, about(created, removeIfThere(created)))
	}
	if err := syncDirectory(dir.path); err != nil {
		return Report{}, together(about(path, err), about(path, removeIfThere(path)))
	}
	return report, nil
}

// An unreadable is an error of the file that is read, not of the one that is written.
type unreadable struct{ error }

func (u unreadable) Unwrap() error { return u.error }

// restoreTo writes the records to a new file, with a new identity and a higher bound.
func (s *scan) restoreTo(ctx context.Context, path string, progress Progress) error {
	bound := hlc.Timestamp{Wall: time.Now().Add(statestore.MaxSkew).UnixMilli()}
	var sums totals
	step := func() {
		if sums.count%1024 == 0 {
			progress.call(sums.count, s.want.count)
		}
	}
	return writeRecords(ctx, path, func() totals { return sums }, step, func(put func(id, value []byte) error) error {
		keep := func(r statestore.Record) error {
			sums.add(r.ID, r.Value)
			return put(r.ID, r.Value)
		}
		var written error
		err := s.each(ctx, func(id, value []byte) error {
			record := statestore.Record{ID: id, Value: value}
			item, err := record.Decode()
			if err != nil {
				return recordError(err)
			}
			if item.Version.Compare(bound) > 0 {
				bound = item.Version
			}
			if item.Kind == statestore.KindIdentity || item.Kind == statestore.KindBound {
				return nil
			}
			written = keep(record)
			return written
		})
		if err != nil && written == nil && ctx.Err() == nil {
			err = unreadable{err}
		}
		if err != nil {
			return err
		}
		bound.Node = ""
		return together(
			keep(statestore.Item{Kind: statestore.KindIdentity, Identity: engine.NewIdentity(), HoldOff: true}.Record()),
			keep(statestore.Item{Kind: statestore.KindBound, Version: bound}.Record()),
		)
	})
}
