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
// [ErrNoData] if there is no backup, and the errors of [Check] if it is not sound.
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
// progress gets records. The report is about the new journal.
func RestoreBackup(ctx context.Context, backup, dir string, progress Progress) (report Report, err error) {
	s, err := scanFile(backup)
	if errors.Is(err, fs.ErrNotExist) {
		return Report{}, fmt.Errorf("journal: %s: %w: it does not exist; give the file of a backup", backup, ErrNoData)
	}
	if err != nil {
		return Report{}, about(backup, err)
	}
	defer s.file.Close()
	if err := makeDirectory(dir); err != nil {
		return Report{}, about(dir, err)
	}
	lock, err := acquire(ctx, dir)
	if err != nil {
		return Report{}, err
	}
	defer func() { err = errors.Join(err, about(dir, lock.Close())) }()
	path := filepath.Join(dir, fileName)
	if _, err := os.Lstat(path); err == nil {
		return Report{}, about(path, ErrExists)
	}
	created := filepath.Join(dir, newName)
	if err := os.RemoveAll(created); err != nil {
		return Report{}, about(created, err)
	}
	if err := s.restoreTo(ctx, created, progress); err != nil {
		return Report{}, errors.Join(about(backup, err), removeIfThere(created))
	}
	report, err = inspectFile(ctx, created, nil)
	if err != nil {
		return report, errors.Join(err, removeIfThere(created))
	}
	report.File = path
	if err := os.Rename(created, path); err != nil {
		return report, about(path, err)
	}
	return report, about(path, syncDirectory(dir))
}

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
		err := s.each(ctx, func(id, value []byte) error {
			record := statestore.Record{ID: id, Value: value}
			item, err := record.Decode()
			if err != nil {
				return recordError(id, err)
			}
			if item.Version.Compare(bound) > 0 {
				bound = item.Version
			}
			if item.Kind == statestore.KindIdentity || item.Kind == statestore.KindBound {
				return nil
			}
			return keep(record)
		})
		if err != nil {
			return err
		}
		bound.Node = ""
		return errors.Join(
			keep(statestore.Item{Kind: statestore.KindIdentity, Identity: engine.NewIdentity(), HoldOff: true}.Record()),
			keep(statestore.Item{Kind: statestore.KindBound, Version: bound}.Record()),
		)
	})
}
