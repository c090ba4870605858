package journal

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/tenurelock/tenure/internal/closed"
	"github.com/tenurelock/tenure/internal/diskspace"
	"github.com/tenurelock/tenure/internal/failpoint"
)

// A file only grows. A copy of the records that count takes its place when it is larger than spaceFactor
// times the live data, as the load or the copy before has found it, plus spaceConstant.
const (
	spaceFactor = 3

	// missedLimit is how many bytes may be committed while a copy is made, before commits wait for it.
	missedLimit = 32 << 20
	// syncFrames is after how many frames of a copy the disk gets them: more at once would delay commits.
	syncFrames = 16
	// leftFree is how many bytes of the disk a copy leaves, or what commits may take beside it, if that is
	// more: if a commit finds no space, the store ends.
	leftFree = 4 << 20
	// lastStep is for about how many bytes a commit waits until the copy has them.
	lastStep = 64 << 10
)

// They are others in a test.
var (
	spaceConstant int64 = 1 << 20
	// closeToRename says that the system renames no file that is open.
	closeToRename = runtime.GOOS == "windows"
)

func limitFor(live int64) int64 { return spaceFactor*live + spaceConstant }

// A compaction makes a copy of the file, beside commits: first of what was committed when it began, then
// of what was committed since. When it has nearly all, the next commit copies the rest, and puts the copy
// in place of the file.
type compaction struct {
	began     time.Time
	size      int64        // of the file, then
	committed atomic.Int64 // its size now
	passed    atomic.Int64 // how much of it was read: twice what there was, and once what was committed since
	ended     chan struct{}

	// Set before ended is closed.
	source scan    // of the file
	to     *writer // the copy, with all before source.at; nil if there is an error
	live   int64
	err    error
}

// compactIfLarge begins to compact the file if it is large, and goes on with a compaction that is under
// way. A commit waits for the copy until ctx ends: the disk has it already. If there is no space for the copy,
// the file stays as it is for now. Other errors end the journal.
func (f *File) compactIfLarge(ctx context.Context) {
	c := f.compaction
	if c == nil {
		if f.log.size > f.limit {
			f.beginCompaction()
		}
		return
	}
	c.committed.Store(f.log.size)
	for f.log.size-c.size > c.allowed() && ctx.Err() == nil {
		time.Sleep(time.Millisecond)
	}
	if closed.Is(c.ended) {
		f.endCompaction()
	}
}

// allowed returns how much may be committed until the copy goes on: half of the live data, as large as it
// was at the copy before, in the time of the copy, and then a part of what it gets. So it catches up.
func (c *compaction) allowed() int64 { return max(missedLimit, c.passed.Load()/(4*spaceFactor)) }

// beginCompaction starts the goroutine that makes the copy. It ends with the journal.
func (f *File) beginCompaction() {
	c := &compaction{began: time.Now(), size: f.log.size, ended: make(chan struct{})}
	c.committed.Store(f.log.size)
	f.compaction = c
	source := scan{file: f.log.file, size: f.log.size, salt: f.log.salt, at: headSize, passed: &c.passed}
	f.tasks.Go(func() {
		defer close(c.ended)
		defer c.passed.Store(math.MaxInt64)
		c.err = c.copy(f.life, source, f.dir.join(newName))
	})
}

// copy makes the copy.
func (c *compaction) copy(ctx context.Context, s scan, path string) error {
	if err := s.index(ctx); err != nil {
		return err
	}
	salt := rand.Uint32()
	file, err := createFile(path, head(salt))
	if err != nil {
		return err
	}
	c.to = newWriter(file, salt)
	for record := range s.counting(ctx) {
		failpoint.Hit(failpoint.DuringCompaction)
		c.to.put(record)
		if c.flushFull(); c.to.err != nil {
			break
		}
	}
	c.live, s.counts = s.live, nil
	for s.err == nil && c.to.err == nil && c.committed.Load()-s.at > lastStep {
		c.follow(ctx, &s, c.committed.Load())
	}
	c.source = s
	return together(s.err, c.to.sync())
}

// flushFull writes the next frame of the copy, if it is full, and leaves commits their space on the disk.
func (c *compaction) flushFull() {
	if len(c.to.frame) < fullFrame {
		return
	}
	c.to.flush()
	if c.to.number%syncFrames == 0 {
		_ = c.to.sync() // kept
	}
	need := max(leftFree, c.size+c.size/spaceFactor-c.committed.Load())
	free, known := diskspace.Free(filepath.Dir(c.to.file.Name()))
	if known && free < need && c.to.err == nil {
		c.to.err = fmt.Errorf("the disk has %d KiB free, and commits need %d KiB beside a copy: %w",
			free>>10, need>>10, syscall.ENOSPC)
	}
}

// follow appends to the copy what was committed since s was read.
func (c *compaction) follow(ctx context.Context, s *scan, committed int64) error {
	s.size = committed
	for frame := range s.frames(ctx) {
		c.to.frame = append(c.to.frame, payload(frame)...)
		c.flushFull()
	}
	if s.err == nil && s.at != committed {
		s.err = damaged("commit %d, at %d, is not readable any more", s.number+1, s.at)
	}
	return together(s.err, c.to.sync())
}

// endCompaction gives the copy the rest, and puts it in place of the file.
func (f *File) endCompaction() {
	c, before := f.compaction, f.log.size
	f.compaction = nil
	err := c.err
	if err == nil {
		err = c.follow(f.life, &c.source, before)
	}
	if err == nil {
		err = f.replace(c.to)
	}
	if err == nil {
		f.limit = limitFor(c.live)
		f.logger.Info("journal: compacted", "file", f.path, "before", before, "after", f.log.size,
			"took", time.Since(c.began).Round(time.Millisecond))
		return
	}
	if c.to != nil {
		err = together(err, c.to.discard())
	}
	if errors.Is(err, ErrDamaged) || errors.Is(err, syscall.EIO) {
		f.log.err = err
	}
	f.limit = before + before/2 // then it is tried again
	f.logger.Warn("journal: the file stays large: it could not be compacted",
		"file", f.path, "bytes", before, "error", err)
}

// replace puts the copy, which is synced, in place of the file, and returns why the file stays. A crash
// leaves one or the other. If it is not known which, the journal ends.
func (f *File) replace(to *writer) error {
	if f.log.err = f.checkPlace(); f.log.err != nil {
		return f.log.err
	}
	f.self.Salt, f.self.Synced = to.salt, to.size
	if err := f.dir.writeHolder(f.self); err != nil {
		return err
	}
	from, file := f.log.file, to.file
	if closeToRename {
		_, _ = from.Close(), file.Close() // they are synced
	}
	kept := system.rename(file.Name(), f.path)
	if kept == nil {
		f.log = *to
	} else {
		file = from
	}
	if closeToRename {
		file, f.log.err = openRegular(f.path, os.O_RDWR)
	}
	f.log.file = file
	if kept == nil {
		f.log.err = together(f.log.err, system.syncDirectory(f.dir.path)) // or a loss of power may bring the old one back
		f.tasks.Go(func() { _ = from.Close() })                           // the system frees it, which may take a while
	}
	return kept
}
