package journal

import (
	"context"
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
// A file without an end, as a crash leaves it, is accepted up to its last commit that is whole; the report
// has a warning then.
//
// After an error it leaves nothing in dir, and no directory that it created. progress gets records.
// The report is about the new journal. It has a warning if the bound of the versions is more than
// two minutes ahead of the clock: either this machine's clock is behind, and then versions may be
// issued twice, or the clock of the lost store was ahead.
func RestoreBackup(ctx context.Context, backup, dir string, progress Progress) (report Report, err error) {
	file, err := openGiven(backup)
	s, err := newSource(&source{name: backup}, file, err)
	if err != nil {
		return Report{}, err
	}
	defer func() { err = together(err, s.close()) }()
	claimed, err := claim(ctx, dir, false)
	if err != nil {
		return Report{}, err
	}
	if report, err = s.restoreIn(ctx, claimed, progress); err != nil {
		claimed.abandon()
		return Report{}, err
	}
	report.Warnings = append(report.Warnings, claimed.warnings...)
	if !s.closed || s.at < s.size {
		report.Warnings = append(report.Warnings, backup+": it does not have its end: what came last may be missing")
	}
	return report, claimed.release()
}

// restoreIn makes a journal in a directory that has none. After an error it has left nothing.
func (s *source) restoreIn(ctx context.Context, dir *directory, progress Progress) (report Report, err error) {
	path := filepath.Join(dir.path, fileName)
	if _, err := os.Lstat(path); err == nil {
		return Report{}, about(path, ErrExists)
	}
	created := filepath.Join(dir.path, newName)
	if err := os.RemoveAll(created); err != nil {
		return Report{}, about(created, err)
	}
	if err := dir.remove(holderName); err != nil { // of the data that was there
		return Report{}, err
	}
	to, err := createLog(created)
	if err != nil {
		return Report{}, about(path, err)
	}
	err = about(s.name, s.restoreTo(ctx, to, progress))
	if err = together(err, about(path, to.err), about(path, to.file.Close())); err == nil {
		report, err = inspectFile(ctx, created, path, nil)
	}
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

// restoreTo writes the records to a new file, with a new identity and a higher bound. An error of that is
// in the writer.
func (s *source) restoreTo(ctx context.Context, to *writer, progress Progress) error {
	if err := s.index(ctx); err != nil {
		return err
	}
	bound := hlc.Timestamp{Wall: time.Now().Add(statestore.MaxSkew).UnixMilli()}
	err := s.items(ctx, progress, func(record statestore.Record, item statestore.Item) error {
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
	_ = to.close() // kept
	return err
}
