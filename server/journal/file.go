package journal

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"strconv"
	"sync"
	"syscall"
	"time"

	"go.etcd.io/bbolt"
	bbolterrors "go.etcd.io/bbolt/errors"

	"github.com/tenurelock/tenure/internal/diskroom"
	"github.com/tenurelock/tenure/statestore"
)

// The names in the directory.
const (
	fileName   = "tenure.db"
	newName    = "tenure.db.new"
	lockName   = "tenure.lock"
	holderName = "tenure.holder"
	socketName = "tenure.sock"
)

// startRoom is how many bytes a disk must have free, so that a store that says that it runs can also
// make some small changes.
const startRoom = 64 << 10

// progressInterval is how often a long compaction logs how far it is.
const progressInterval = 2 * time.Second

// Options are the options of Open. The zero value works.
type Options struct {
	// Logger receives what happens: how far a long compaction is, and why the file could not
	// be compacted. nil keeps silent. It gets nothing about Load, whose caller can count the records.
	Logger *slog.Logger
}

// A File is the journal in one directory. It implements [statestore.Journal]. Backup may be
// called by any goroutine at any time.
type File struct {
	dir     *directory
	path    string
	logger  *slog.Logger
	control *control // answers requests for backups; nil if that is not possible
	silent  bool     // clients of a process before this one may not have noticed its end
	began   time.Time

	// Of the goroutine that calls Load and Commit.
	totals     totals      // of what is committed
	opened     os.FileInfo // of the file that db has
	floor      int64       // the file is not compacted while it is smaller
	overhead   float64     // nor while it is smaller than this times the live data
	compaction *compaction // that is under way, or nil

	life  context.Context // ends with Close
	end   context.CancelFunc
	tasks sync.WaitGroup // the goroutine of a compaction

	mu      sync.Mutex
	loaded  bool          // Load was called
	failure error         // of the first operation that failed
	db      *bbolt.DB     // nil until the file is loaded, while it is replaced, and after Close
	ready   chan struct{} // closed when db is set, or the journal is closed
	stuck   bool          // bbolt panicked: its locks may be held for ever
	readers int           // backups that read db
	idle    chan struct{} // closed when readers falls to 0; nil if no goroutine waits for that
	closed  bool
}

var _ statestore.Journal = (*File)(nil)

// Open opens the journal in a directory, and creates both if they do not exist. It waits for a
// second for another process that has the directory, and then returns an error that matches
// [ErrInUse]. Other errors match [ErrUnsafe], [ErrForeign], [ErrNewer] or [ErrDamaged], or are those
// of the system. All name the file and what to do.
//
// Close frees the directory.
func Open(dir string, options Options) (*File, error) {
	if options.Logger == nil {
		options.Logger = slog.New(slog.DiscardHandler)
	}
	if whole, err := filepath.Abs(dir); err == nil { // the process may change its directory
		dir = whole
	}
	claimed, err := claim(context.Background(), dir, true)
	if err != nil {
		return nil, err
	}
	for _, warning := range claimed.warnings {
		options.Logger.Warn("journal: " + warning)
	}
	f := &File{
		dir:    claimed,
		path:   filepath.Join(dir, fileName),
		logger: options.Logger,
		silent: fellSilent(dir),
		began:  time.Now(),
		ready:  make(chan struct{}),
	}
	f.life, f.end = context.WithCancel(context.Background())
	if err := f.prepare(); err != nil {
		claimed.abandon()
		return nil, about(f.path, err)
	}
	if err := f.listen(); err != nil {
		return nil, together(err, f.Close())
	}
	return f, nil
}

// prepare removes what an interrupted compaction left, creates the file if there is none, and
// looks whether it is a journal. It refuses a disk without room.
func (f *File) prepare() error {
	if err := removeIfThere(filepath.Join(f.dir.path, newName)); err != nil {
		return err
	}
	file, err := openRegular(f.path, os.O_RDWR)
	missing := errors.Is(err, fs.ErrNotExist)
	if err != nil && !missing {
		return err
	}
	defer file.Close() // of nothing, if it is missing
	if free, known := diskroom.Free(f.dir.path); known && free < startRoom {
		return fmt.Errorf("the disk has %d KiB free, and a store needs %d KiB to start: %w", free>>10, startRoom>>10, syscall.ENOSPC)
	}
	if missing {
		return f.create()
	}
	info, err := file.Stat()
	if err != nil {
		return err
	}
	s, err := openScan(file, info.Size())
	if err != nil {
		return err
	}
	return s.complete()
}

// create makes a file without records. A crash leaves it whole or not at all.
func (f *File) create() error {
	path := filepath.Join(f.dir.path, newName)
	err := withCause(writeFile(path, func(db *bbolt.DB) error { return begin(db) }))
	if err == nil {
		err = os.Rename(path, f.path)
	}
	if err != nil {
		return together(err, removeIfThere(path))
	}
	return syncDirectory(f.dir.path)
}

// writeFile creates a file that write fills, and syncs it.
func writeFile(path string, write func(*bbolt.DB) error) error {
	db, err := bbolt.Open(path, 0o600, &bbolt.Options{
		OpenFile:       openWithoutLink,
		Timeout:        lockTimeout,
		PageSize:       pageSize,
		NoSync:         true, // once, at the end
		NoGrowSync:     true,
		NoFreelistSync: true,
		FreelistType:   bbolt.FreelistMapType,
		NoStatistics:   true,
	})
	if err != nil {
		return err
	}
	err = write(db)
	if err == nil {
		err = db.Sync()
	}
	return together(err, db.Close())
}

// openWithoutLink is os.OpenFile, but follows no symbolic link.
func openWithoutLink(path string, flag int, mode os.FileMode) (*os.File, error) {
	return os.OpenFile(path, flag|noFollow, mode)
}

// begin writes what a file without records has.
func begin(db *bbolt.DB) error {
	return db.Update(func(tx *bbolt.Tx) error {
		if _, err := tx.CreateBucket(recordsBucket); err != nil {
			return err
		}
		header, err := tx.CreateBucket(aboutBucket)
		if err != nil {
			return err
		}
		return together(
			header.Put(formatEntry, binary.BigEndian.AppendUint32(nil, format)),
			header.Put(totalsEntry, totals{}.encode()),
		)
	})
}

// Load implements [statestore.Journal]. It reads the file once, from beginning to end, and
// checks all of it. Then it compacts the file if that is due. A million keys take about two
// seconds, and ctx can end it. A second call is refused, and does no harm to the first user of
// the journal: a journal belongs to one store. The process before is gone since an unknown time. It fell
// silent if it ended without Close, in an earlier run of the machine.
func (f *File) Load(ctx context.Context, each func(statestore.Record) error) (former statestore.Former, err error) {
	f.mu.Lock()
	failure, loaded := f.failure, f.loaded
	f.loaded = true
	f.mu.Unlock()
	switch {
	case failure != nil:
		return former, failure
	case loaded:
		return former, about(f.path, errLoaded)
	}
	if err := f.load(ctx, each); err != nil {
		return former, f.fail(err)
	}
	return statestore.Former{Silent: f.silent}, nil
}

func (f *File) load(ctx context.Context, each func(statestore.Record) error) error {
	if err := f.read(ctx, each); err != nil {
		return err
	}
	err := f.guard(func() error {
		db, err := openBolt(f.path)
		if err != nil {
			return err
		}
		return f.use(db)
	})
	if err == nil {
		err = f.compactIfLarge(ctx)
	}
	if err == nil {
		err = f.settle() // nothing waits for a commit yet
	}
	return err
}

// read calls each for all records, and keeps their totals.
func (f *File) read(ctx context.Context, each func(statestore.Record) error) error {
	s, err := scanFile(f.path)
	if err != nil {
		return err
	}
	defer s.file.Close()
	if err := s.complete(); err != nil {
		return err
	}
	err = s.each(ctx, func(id, value []byte) error {
		if err := each(own(id, value)); err != nil {
			return refusal{err}
		}
		return nil
	})
	f.totals = s.want
	return err
}

// A refusal is an error of the function that Load was given. It is not about the file.
type refusal struct{ error }

func (r refusal) Unwrap() error { return r.error }

// progress returns a function that logs now and then how far a compaction is. It is called once
// for each of count records.
func (f *File) progress(count uint64) func() {
	var done uint64
	last := time.Now()
	return func() {
		if done++; done%1024 == 0 && time.Since(last) >= progressInterval {
			last = time.Now()
			f.logger.Info("journal: compacting", "file", f.path, "records", done, "of", count)
		}
	}
}

// openBolt gives a file to bbolt. It was checked before.
func openBolt(path string) (*bbolt.DB, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	options := bbolt.Options{
		OpenFile:        openWithoutLink,
		Timeout:         lockTimeout,
		PageSize:        pageSize,
		NoFreelistSync:  true, // fewer bytes for each commit; the load reads the whole file anyway
		FreelistType:    bbolt.FreelistMapType,
		NoStatistics:    true,
		InitialMmapSize: mapSize(info.Size()),
	}
	db, err := bbolt.Open(path, 0o600, &options)
	if err != nil && options.InitialMmapSize > 0 {
		options.InitialMmapSize = 0 // there may be a limit on addresses
		db, err = bbolt.Open(path, 0o600, &options)
	}
	if errors.Is(err, bbolterrors.ErrTimeout) {
		return nil, fmt.Errorf("%w by a program for bbolt files; end it, and start again", ErrInUse)
	}
	if err == nil {
		db.AllocSize = step(info.Size())
	}
	return db, err
}

// use makes db the database of the journal: it has the file.
func (f *File) use(db *bbolt.DB) error {
	info, err := os.Stat(f.path)
	if err != nil {
		return err
	}
	f.opened = info
	f.mu.Lock()
	f.db = db
	close(f.ready)
	f.mu.Unlock()
	return nil
}

// mapSize returns how many bytes of addresses the file gets. While a backup reads, bbolt cannot
// map more, and a commit that needs more waits. Where addresses are plenty, it never does.
// On Windows the file becomes as large as what is mapped.
func mapSize(size int64) int {
	switch {
	case runtime.GOOS == "windows":
		return 0
	case strconv.IntSize == 32:
		return int(min(max(2*size, 1<<26), 1<<29))
	}
	return int(max(4*size, 1<<30))
}

const plentyOfAddresses = strconv.IntSize == 64 && runtime.GOOS != "windows"

// step returns by how many bytes a file grows at a time: each time costs a sync.
func step(size int64) int { return int(min(max(size/16, 16<<10), 16<<20)) }

// Commit implements [statestore.Journal]: it writes the batch in one transaction, and returns
// when the disk has it. A write that has begun does not end with ctx: only the disk can end it.
// Now and then a commit begins to compact the file, which goes on beside the next ones; one of them
// puts the copy in place of the file, and takes a few milliseconds longer.
func (f *File) Commit(ctx context.Context, batch []statestore.Group) error {
	if failure := f.whyFailed(); failure != nil {
		return failure
	}
	if f.db == nil {
		if _, err := f.Load(ctx, func(statestore.Record) error { return nil }); err != nil {
			return err
		}
	}
	if len(batch) == 0 {
		return nil
	}
	if ctx.Err() != nil {
		return f.fail(context.Cause(ctx))
	}
	sums := f.totals
	defer f.preferCommit()()
	if err := f.guard(func() error { return commitTo(f.db, batch, &sums) }); err != nil {
		return f.fail(err)
	}
	f.totals = sums
	if f.compaction != nil {
		f.compaction.note(batch)
	}
	if err := f.compactIfLarge(f.life); err != nil {
		return f.fail(fmt.Errorf("compact: %w", err))
	}
	return nil
}

// commitTo writes a batch in one transaction, and updates the totals.
func commitTo(db *bbolt.DB, batch []statestore.Group, sums *totals) error {
	// Not Update: after a fault it rolls back, and reads the file again in a goroutine of its
	// own, where the next fault would end the process without a reason (bbolt v1.5.0).
	tx, err := db.Begin(true)
	if err != nil {
		return err
	}
	if err := put(tx, batch, sums); err != nil {
		return together(err, tx.Rollback())
	}
	return tx.Commit()
}

// commitPatience is how long a commit waits for backups of other processes.
const commitPatience = 2 * time.Second

// preferCommit ends backups of other processes that hold up a commit: where addresses are
// scarce, a commit that needs more of them waits until no backup reads. The result ends that.
func (f *File) preferCommit() (stop func()) {
	if plentyOfAddresses || f.control == nil {
		return func() {}
	}
	timer := time.AfterFunc(commitPatience, func() {
		f.mu.Lock()
		reading := f.readers > 0
		f.mu.Unlock()
		if !reading {
			return
		}
		f.logger.Warn("journal: ending a backup that holds up a commit: back up again, to a faster disk", "file", f.path)
		f.control.endBackups()
	})
	return func() { timer.Stop() }
}

// put writes the records of a batch, in order, and their totals.
func put(tx *bbolt.Tx, batch []statestore.Group, sums *totals) error {
	records := tx.Bucket(recordsBucket)
	for _, group := range batch {
		for _, record := range group {
			if len(record.ID) == 0 || len(record.ID) > statestore.MaxID {
				return fmt.Errorf("a record has an identifier of %d bytes; 1 to %d are allowed", len(record.ID), statestore.MaxID)
			}
			if old := records.Get(record.ID); old != nil {
				sums.remove(record.ID, old)
			} else if record.Value == nil {
				continue
			}
			if record.Value == nil {
				if err := records.Delete(record.ID); err != nil {
					return err
				}
				continue
			}
			sums.add(record.ID, record.Value)
			if err := records.Put(record.ID, record.Value); err != nil {
				return err
			}
		}
	}
	return tx.Bucket(aboutBucket).Put(totalsEntry, sums.encode())
}

// fail makes err the failure of the journal, with the file and what to do.
func (f *File) fail(err error) error {
	if errors.As(err, new(refusal)) {
		err = fmt.Errorf("journal: %s: %w", f.path, err)
	} else {
		err = about(f.path, err)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.failure = err
	return err
}

// whyFailed returns the error of the first operation that failed.
func (f *File) whyFailed() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.failure
}

// guard calls operation, and returns an error instead of a panic of bbolt, or of a fault because
// a page could not be read from the disk.
func (f *File) guard(operation func() error) (err error) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		if reason := recover(); reason != nil {
			f.mu.Lock()
			f.stuck = true
			f.mu.Unlock()
			f.logger.Error("journal: panic", "file", f.path, "reason", reason, "stack", string(debug.Stack()))
			err = damaged("bbolt: %v", reason)
		}
	}()
	return withCause(operation())
}

// Standing implements [statestore.Journal]: it returns nil, because no other process can take over.
func (f *File) Standing() error { return nil }

// Close implements [statestore.Journal]. It ends backups and a compaction that are under way, and frees
// the directory. Later calls do nothing.
func (f *File) Close() error {
	f.mu.Lock()
	if f.closed {
		f.mu.Unlock()
		return nil
	}
	f.closed = true
	if f.db == nil {
		close(f.ready)
	}
	if f.failure == nil {
		f.failure = about(f.path, ErrClosed)
	}
	stuck := f.stuck
	f.mu.Unlock()
	f.end()
	if !stuck {
		f.tasks.Wait()
	}
	var errs []error
	if f.control != nil {
		errs = append(errs, about(f.path, f.control.close()))
	}
	if db := f.takeDB(); db != nil {
		errs = append(errs, about(f.path, db.Close()))
	}
	errs = append(errs, f.dir.remove(socketName))
	if !f.silent || time.Since(f.began) > statestore.SilentFor { // else the next process must know it too
		errs = append(errs, f.dir.remove(holderName))
	}
	return together(append(errs, f.dir.release())...)
}

// takeDB waits until no backup reads, sets f.db to nil, and returns what it was. It returns nil if
// bbolt panicked: then closing the database may wait for ever. The process must end soon.
func (f *File) takeDB() *bbolt.DB {
	f.mu.Lock()
	defer f.mu.Unlock()
	db := f.db
	f.db = nil
	for f.readers > 0 && !f.stuck {
		if f.idle == nil {
			f.idle = make(chan struct{})
		}
		idle := f.idle
		f.mu.Unlock()
		<-idle
		f.mu.Lock()
	}
	if f.stuck {
		return nil
	}
	return db
}

// takeIdleDB is takeDB, but it returns nil at once if a backup reads. New backups wait until
// use.
func (f *File) takeIdleDB() *bbolt.DB {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.readers > 0 || f.stuck {
		return nil
	}
	db := f.db
	f.db = nil
	f.ready = make(chan struct{})
	return db
}
