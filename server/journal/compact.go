package journal

import (
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"sync"
	"syscall"
	"time"

	"go.etcd.io/bbolt"
	bbolterrors "go.etcd.io/bbolt/errors"

	"github.com/tenurelock/tenure/internal/failpoint"
	"github.com/tenurelock/tenure/statestore"
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

	// missedLimit is how many bytes may be committed while a copy is made, before commits wait for
	// it: they are held in memory.
	missedLimit = 32 << 20
	// lastStep is for how many bytes a commit waits until the copy has them, and is synced.
	lastStep = 64 << 10
)

var spaceConstant int64 = 1 << 20 // smaller in a test

// A compaction makes a copy of the file, beside commits. It reads the file as it was at its beginning,
// and then gets what was committed since, in order, until it has caught up. Then the copy has the
// records of the file, and the next commit puts it in place of that.
type compaction struct {
	ctx   context.Context // ends the goroutine
	began time.Time
	size  int64 // of the file, then

	// Of the goroutine that commits.
	missed []statestore.Group // that were committed, and the copy does not have
	bytes  int                // of their records
	step   int                // with at most so many bytes, they are the last: the commit waits for them
	most   int64              // a commit waits if the file is larger: it grows while its former pages are read

	missing chan []statestore.Group // taken when the copy has all before; closed after the last
	ended   chan struct{}           // closed after the following are set
	db      *bbolt.DB               // the copy, synced; nil if there is an error
	sums    totals                  // of the copy
	err     error
}

// compactIfLarge begins to compact the file if it is large compared with its records, and goes on
// with a compaction that is under way. It returns an error only if the journal cannot be used any
// more: if there is no room for the copy, the file stays as it is for now.
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
	if c := f.compaction; c != nil {
		return f.proceed(c.bytes > missedLimit || size > c.most)
	}
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
	return f.beginCompaction(ctx, size)
}

// settle waits until no compaction is under way.
func (f *File) settle() error {
	for f.compaction != nil {
		if err := f.proceed(true); err != nil {
			return err
		}
	}
	return nil
}

// beginCompaction starts the goroutine that makes a copy of the file, which has size bytes. It ends with
// ctx.
func (f *File) beginCompaction(ctx context.Context, size int64) error {
	c := &compaction{
		ctx:     ctx,
		began:   time.Now(),
		size:    size,
		step:    lastStep,
		most:    2 * size,
		missing: make(chan []statestore.Group),
		ended:   make(chan struct{}),
		sums:    f.totals,
	}
	f.compaction = c
	s, err := scanFile(f.path) // of the same commit as tx: there is none meanwhile
	if err != nil {
		c.err = err
		return f.endCompaction()
	}
	var tx *bbolt.Tx // keeps the pages that s reads
	err = f.guard(func() (err error) {
		tx, err = f.db.Begin(false)
		return err
	})
	if err != nil {
		return together(err, s.file.Close())
	}
	f.tasks.Go(func() {
		defer close(c.ended)
		c.err = f.guard(func() (err error) {
			c.db, err = f.copyTo(c, s, tx)
			return err
		})
	})
	return nil
}

// note keeps a batch that was committed for the copy. Its bytes belong to the caller.
func (c *compaction) note(batch []statestore.Group) {
	for _, group := range batch {
		kept := make(statestore.Group, 0, len(group))
		for _, record := range group {
			c.bytes += len(record.ID) + len(record.Value)
			gone := record.Value == nil
			if record = own(record.ID, record.Value); gone {
				record.Value = nil
			}
			kept = append(kept, record)
		}
		c.missed = append(c.missed, kept)
	}
}

// proceed gives the copy what it missed, if it can take that now; with wait, once it can. If little was
// missed, it also puts the copy in place of the file. Each time, that may be twice as much: so the
// copy catches up with any load.
func (f *File) proceed(wait bool) error {
	c := f.compaction
	if wait {
		select {
		case c.missing <- c.missed:
		case <-c.ended:
			return f.endCompaction()
		}
	} else {
		select {
		case c.missing <- c.missed:
		case <-c.ended:
			return f.endCompaction()
		default:
			return nil
		}
	}
	last := c.bytes <= c.step
	c.missed, c.bytes, c.step, c.most = nil, 0, 2*c.step, math.MaxInt64
	if !last {
		return nil
	}
	close(c.missing)
	<-c.ended
	return f.endCompaction()
}

// endCompaction puts the copy in place of the file, if there is one.
func (f *File) endCompaction() error {
	c, path := f.compaction, filepath.Join(f.dir.path, newName)
	f.compaction = nil
	switch err := c.err; {
	case errors.Is(err, ErrDamaged), errors.Is(err, syscall.EIO):
		return err
	case err != nil:
		f.floor = c.size + c.size/2 // then it is tried again
		if c.ctx.Err() == nil {
			f.logger.Warn("journal: the file stays large: it could not be compacted", "file", f.path, "bytes", c.size, "error", err)
		}
		return nil
	case c.sums != f.totals:
		return together(damaged("a copy of it has other records"), c.db.Close(), removeIfThere(path))
	}
	old := f.takeIdleDB()
	if old == nil { // a backup has begun: later
		return together(c.db.Close(), removeIfThere(path))
	}
	if err := f.replace(old, c.db, path); err != nil {
		return err
	}
	size, live := f.opened.Size(), int64(f.totals.bytes)
	f.floor, f.overhead = 0, 0
	if size > (spaceFactor*live+spaceConstant)*2/3 {
		// Records of less than 36 bytes, which a store does not write: their entries in the
		// pages need more than the bound. Do not compact with each commit.
		f.overhead = spaceFactor * float64(size) / float64(max(live, spaceConstant/16))
	}
	f.logger.Info("journal: compacted", "file", f.path, "before", c.size, "after", size, "records", f.totals.count,
		"took", time.Since(c.began).Round(time.Millisecond))
	return nil
}

// copyTo makes the copy, and returns it open, synced, when c.missing is closed. After an error it leaves
// nothing. It closes s and tx.
func (f *File) copyTo(c *compaction, s *scan, tx *bbolt.Tx) (_ *bbolt.DB, err error) {
	path := filepath.Join(f.dir.path, newName)
	release := sync.OnceValue(func() error { return together(tx.Rollback(), s.file.Close()) })
	var db *bbolt.DB
	defer func() {
		if err == nil {
			return
		}
		if db != nil {
			err = together(err, db.Close())
		}
		err = together(err, release(), removeIfThere(path))
	}()
	err = writeRecords(c.ctx, path, func() totals { return s.want }, f.progress(s.want.count), func(put func(id, value []byte) error) error {
		err := s.each(c.ctx, func(id, value []byte) error {
			failpoint.Hit(failpoint.DuringCompaction)
			return put(id, value)
		})
		return together(err, release())
	})
	if err != nil {
		return nil, err
	}
	if db, err = openBolt(path); err != nil {
		return nil, err
	}
	db.NoSync = true // once for all batches that it takes
	for {
		select {
		case missed, open := <-c.missing:
			if !open {
				db.NoSync = false
				return db, nil
			}
			for batch := range slices.Chunk(missed, 4096) {
				if err := commitTo(db, batch, &c.sums); err != nil {
					return nil, err
				}
			}
			if err := db.Sync(); err != nil {
				return nil, err
			}
		case <-c.ctx.Done():
			return nil, context.Cause(c.ctx)
		}
	}
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
				if err := together(tx.Commit(), db.Sync()); err != nil {
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

// replace puts the copy, which is synced and has the same records, in place of the file. A crash leaves
// one or the other.
func (f *File) replace(old, db *bbolt.DB, path string) error {
	if runtime.GOOS == "windows" { // it renames no file that is open
		if err := together(old.Close(), db.Close()); err != nil {
			return err
		}
	}
	err := os.Rename(path, f.path)
	if err == nil {
		err = syncDirectory(f.dir.path)
	}
	if runtime.GOOS == "windows" && err == nil {
		db, err = openBolt(f.path)
	} else {
		f.tasks.Go(func() { _ = old.Close() }) // the system frees the blocks of a large file then, which takes long
	}
	if err == nil {
		err = f.use(db)
	}
	if err != nil {
		err = together(err, db.Close())
	}
	return err
}
