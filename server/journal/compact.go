package journal

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"go.etcd.io/bbolt"
	bbolterrors "go.etcd.io/bbolt/errors"
)

// A bbolt file never shrinks. It gets larger than its records when they are removed, because
// pages stay half empty. So a copy takes its place when the file is larger than spaceFactor
// times the live data plus spaceConstant.
const (
	spaceFactor = 3

	// fill is how full the pages of a copy are. Full pages would split with the next records,
	// and the file would double.
	fill = 0.8
	// copyBatch is how many bytes one transaction of a copy has: it holds them in memory.
	copyBatch = 4 << 20
)

var spaceConstant int64 = 1 << 20 // smaller in a test

// compactIfLarge compacts the file if it is large compared with its records. It returns an
// error only if the journal cannot be used any more: if there is no room for the copy, the
// file stays as it is for now.
func (f *File) compactIfLarge(ctx context.Context) error {
	info, err := os.Stat(f.path)
	if err != nil {
		return err
	}
	if !os.SameFile(info, f.opened) {
		// The directory was moved, and another store uses the new one. What is committed here, that
		// store does not see; and a copy of its file, in its place, would lose what it commits later.
		return errReplaced
	}
	size := info.Size()
	f.db.AllocSize = step(size)
	live := int64(f.totals.bytes)
	if size <= max(spaceFactor*live+spaceConstant, int64(f.overhead*float64(live)), f.floor) {
		return nil
	}
	f.mu.Lock()
	reading := f.readers > 0 // a backup reads the file: later
	f.mu.Unlock()
	if reading {
		return nil
	}
	return f.compact(ctx, size)
}

// compact replaces the file, which has size bytes, by a copy.
func (f *File) compact(ctx context.Context, size int64) error {
	start := time.Now()
	path := filepath.Join(f.dir.path, newName)
	if err := f.copyTo(ctx, path); err != nil {
		err = together(err, removeIfThere(path))
		if errors.Is(err, ErrDamaged) || errors.Is(err, syscall.EIO) {
			return err
		}
		f.floor = size + size/2 // then it is tried again
		if ctx.Err() == nil {
			f.logger.Warn("journal: the file stays large: it could not be compacted", "file", f.path, "bytes", size, "error", err)
		}
		return nil
	}
	db := f.takeIdleDB()
	if db == nil { // a backup has begun: later
		return removeIfThere(path)
	}
	if err := f.replace(db, path); err != nil {
		return err
	}
	info, err := os.Stat(f.path)
	if err != nil {
		return err
	}
	live := int64(f.totals.bytes)
	f.floor, f.overhead = 0, 0
	if info.Size() > (spaceFactor*live+spaceConstant)*2/3 {
		// Records of less than 36 bytes, which a store does not write: their entries in the
		// pages need more than the bound. Do not compact with each commit.
		f.overhead = spaceFactor * float64(info.Size()) / float64(max(live, spaceConstant/16))
	}
	f.logger.Info("journal: compacted", "file", f.path, "before", size, "after", info.Size(), "records", f.totals.count,
		"took", time.Since(start).Round(time.Millisecond))
	return nil
}

// copyTo writes the records to a new file, reads that back, and syncs it.
func (f *File) copyTo(ctx context.Context, path string) error {
	s, err := scanFile(f.path)
	if err != nil {
		return err
	}
	defer s.file.Close()
	return writeRecords(ctx, path, func() totals { return s.want }, f.progress(s.want.count), func(put func(id, value []byte) error) error {
		return s.each(ctx, put)
	})
}

// writeRecords creates a file with the records that produce passes to its argument, in
// any order, and reads it back. sums is called at the end and returns their totals.
func writeRecords(ctx context.Context, path string, sums func() totals, step func(), produce func(put func(id, value []byte) error) error) error {
	err := writeFile(path, func(db *bbolt.DB) (err error) {
		if err := begin(db); err != nil {
			return err
		}
		tx, err := db.Begin(true)
		if err != nil {
			return err
		}
		defer func() {
			if rollback := tx.Rollback(); !errors.Is(rollback, bbolterrors.ErrTxClosed) {
				err = together(err, rollback)
			}
		}()
		waiting := 0
		err = produce(func(id, value []byte) error {
			step()
			if waiting >= copyBatch {
				if err := tx.Commit(); err != nil {
					return err
				}
				if tx, err = db.Begin(true); err != nil {
					return err
				}
				waiting = 0
			}
			waiting += len(id) + len(value)
			bucket := tx.Bucket(recordsBucket)
			bucket.FillPercent = fill
			record := own(id, value) // bbolt keeps the bytes until the commit
			return bucket.Put(record.ID, record.Value)
		})
		if err != nil {
			return err
		}
		if err := tx.Bucket(aboutBucket).Put(totalsEntry, sums().encode()); err != nil {
			return err
		}
		return tx.Commit()
	})
	if err != nil {
		return withCause(err)
	}
	if err := verify(ctx, path); err != nil {
		return fmt.Errorf("the copy %s: %w", path, err)
	}
	return nil
}

// verify reads a file from beginning to end.
func verify(ctx context.Context, path string) error {
	s, err := scanFile(path)
	if err != nil {
		return err
	}
	defer s.file.Close()
	if err := s.complete(); err != nil {
		return err
	}
	return s.each(ctx, func([]byte, []byte) error { return nil })
}

// replace puts a synced file in the place of the journal. A crash leaves one or the other, with
// the same records.
func (f *File) replace(db *bbolt.DB, path string) error {
	if err := db.Close(); err != nil { // Windows renames no file over one that is open
		return err
	}
	if err := os.Rename(path, f.path); err != nil {
		return err
	}
	if err := syncDirectory(f.dir.path); err != nil {
		return err
	}
	return f.openDB()
}
