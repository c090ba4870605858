package journal

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/tenurelock/tenure/statestore"
)

// The names in the directory.
const (
	fileName   = "tenure.log"
	newName    = "tenure.log.new"
	lockName   = "tenure.lock"
	holderName = "tenure.holder"
)

// Options are the options of Open. The zero value works.
type Options struct {
	// Logger receives what happens: that a commit was cut off that a crash had left unfinished, that the
	// file was compacted, or why it could not be. nil keeps silent.
	Logger *slog.Logger
}

// A File is the journal in one directory. It implements [statestore.Journal]. Backup may be
// called by any goroutine at any time.
type File struct {
	dir    *directory
	path   string
	logger *slog.Logger
	self   holder
	began  time.Time

	log        writer      // its error is errNotLoaded, or why the file may not be what was committed
	found      *scan       // the file as Open has found it; nil after Load was called
	closed     bool        // the file ends with a frame that closes it
	failure    error       // of the first operation that failed
	limit      int64       // a larger file is compacted
	compaction *compaction // that is under way, or nil

	life  context.Context // ends with Close; nil after it
	end   context.CancelFunc
	tasks sync.WaitGroup
}

var _ statestore.Journal = (*File)(nil)

// Open opens the journal in a directory, and creates both if they do not exist. If another process has the directory,
// the error matches [ErrInUse]. Other errors match [ErrUnsafe], [ErrForeign], [ErrNewer] or [ErrDamaged], or are
// those of the system. All name the file and what to do.
//
// Close frees the directory.
func Open(dir string, options Options) (*File, error) {
	options.Logger = cmp.Or(options.Logger, slog.New(slog.DiscardHandler))
	if whole, err := filepath.Abs(dir); err == nil { // the process may change its directory
		dir = whole
	}
	locked, err := lockDirectory(dir, true)
	if err != nil {
		return nil, err
	}
	for _, warning := range locked.warnings {
		options.Logger.Warn("journal: " + warning)
	}
	f := &File{dir: locked, path: locked.join(fileName), logger: options.Logger, began: time.Now()}
	f.life, f.end = context.WithCancel(context.Background())
	if err := f.prepare(); err != nil {
		return nil, together(about(f.path, err), locked.release())
	}
	return f, nil
}

// prepare removes what an interrupted compaction left, creates the file if there is none, opens it if
// it is a journal that has its end, and names this process as its holder.
func (f *File) prepare() error {
	_, err := os.Lstat(f.path)
	if errors.Is(err, fs.ErrNotExist) {
		if err = f.dir.checkEmpty(); err == nil {
			err = f.dir.create(func(*writer) error { return nil })
		}
	} else if err == nil {
		err = removeIfThere(f.dir.join(newName))
	}
	if err != nil {
		return err
	}
	file, err := openRegular(f.path, os.O_RDWR)
	if err != nil {
		return err
	}
	f.log = writer{file: file, err: errNotLoaded}
	if f.found, err = scanFile(file); err == nil {
		err = f.takeOver(f.found)
	}
	if err == nil {
		err = f.dir.writeHolder(f.self)
	}
	if err != nil {
		_ = file.Close()
	}
	return err
}

// takeOver looks how the process before has left the file, and refuses a file without an end that it had.
func (f *File) takeOver(s *scan) error {
	closed, err := s.endsClosed()
	if err != nil {
		return err
	}
	f.closed = closed
	former, err := readHolder(f.dir.path)
	left := !errors.Is(err, fs.ErrNotExist) // unless it was stopped
	if former.Salt != s.salt {              // a crash came before a copy took its place
		former.Synced = 0
	}
	if closed {
		former.Synced = s.size - closingFrame
	} else if !left {
		return errNoEnd
	}
	host, _ := os.Hostname() // if it fails, errors of other processes lack the name
	f.self = holder{PID: os.Getpid(), Host: host, Boot: boot(), Salt: s.salt, Synced: former.Synced}
	f.self.Silent = left && (err != nil || former.Silent || former.Boot != f.self.Boot)
	return nil
}

// Load implements [statestore.Journal]. It reads the file twice, from beginning to end, and
// checks all of it. A million keys take about a second, and ctx can end it. A second call is refused, and
// does no harm to the first user of the journal: a journal belongs to one store. The process before is
// gone since an unknown time. It fell silent if it ended without Close, in an earlier run of the machine.
func (f *File) Load(ctx context.Context, each func(statestore.Record) error) (former statestore.Former, err error) {
	switch {
	case f.failure != nil:
		return former, f.failure
	case f.found == nil:
		return former, about(f.path, errLoaded)
	}
	if err := f.load(ctx, each); err != nil {
		return former, f.fail(err)
	}
	return statestore.Former{Silent: f.self.Silent}, nil
}

func (f *File) load(ctx context.Context, each func(statestore.Record) error) error {
	s := f.found
	f.found = nil
	if err := s.index(ctx); err != nil {
		return err
	}
	for r := range s.counting(ctx) {
		own := append(append(make([]byte, 0, len(r.ID)+len(r.Value)), r.ID...), r.Value...)
		if err := each(statestore.Record{ID: own[:len(r.ID):len(r.ID)], Value: own[len(r.ID):]}); err != nil {
			f.failure = fmt.Errorf("journal: %s: %w", f.path, err) // it is not about the file
			return err
		}
	}
	if s.err != nil {
		return s.err
	}
	if !s.closed || s.at < s.size {
		if err := f.repair(s); err != nil {
			return err
		}
	}
	// The next commit takes the place of the closing frame.
	f.log = writer{file: f.log.file, salt: s.salt, size: s.last, number: s.number - 1, frame: make([]byte, frameHead)}
	f.closed, f.limit = true, limitFor(s.live)
	f.self.Synced = f.log.size // or the next crash would excuse the loss of what this start has found
	return f.dir.writeHolder(f.self)
}

// repair cuts off what a crash left unfinished, makes the rest durable, and closes the file. The bytes of
// its last commit may be in the memory of the system only, and if the disk failed, the system may believe
// that the disk has them: so they are written again.
func (f *File) repair(s *scan) error {
	if f.closed { // when it was opened
		return errNoEnd
	}
	if err := s.checkSynced(f.self); err != nil {
		return err
	}
	w := writer{file: f.log.file, salt: s.salt, size: s.at, number: s.number, frame: make([]byte, frameHead)}
	if rest := s.size - s.at; rest > 0 {
		f.logger.Warn("journal: cut off the last commit, which a crash left unfinished", "file", f.path, "bytes", rest)
		if err := system.truncate(w.file, s.at); err != nil {
			return err
		}
	}
	last := make([]byte, s.at-s.last)
	if _, err := w.file.ReadAt(last, s.last); err != nil {
		return err
	}
	if _, err := system.writeAt(w.file, last, s.last); err != nil {
		return err
	}
	if !s.closed {
		s.last, s.at, s.number = s.at, s.at+closingFrame, s.number+1
		return w.close()
	}
	return w.sync()
}

// Commit implements [statestore.Journal]: it appends the batch to the file, and returns
// when the disk has it. A write that has begun does not end with ctx: only the disk can end it.
// Now and then a commit begins to compact the file, which goes on beside the next ones; one of them
// puts the copy in place of the file, and takes a few milliseconds longer.
func (f *File) Commit(ctx context.Context, batch []statestore.Group) error {
	if f.failure != nil {
		return f.failure
	}
	if len(batch) == 0 {
		return nil
	}
	if ctx.Err() != nil {
		return f.fail(context.Cause(ctx))
	}
	if f.log.err == nil {
		f.log.err = f.checkPlace()
	}
	before := f.log.size
	for _, group := range batch { // a large batch is divided, between groups
		for _, record := range group {
			f.log.put(record)
		}
		f.log.syncFull()
	}
	if f.log.sync() == nil {
		f.compactIfLarge(ctx)
	}
	f.closed = f.closed && f.log.size == before
	if f.log.err != nil {
		return f.fail(f.log.err)
	}
	return nil
}

// checkPlace returns an error if the file is no longer in its place, or is shorter than it was. The
// directory may have been moved, and another store may use the new one: it does not see what is committed
// here, and a copy in place of its file would lose what it commits later.
func (f *File) checkPlace() error {
	own, failed := f.log.file.Stat()
	there, err := os.Stat(f.path)
	switch {
	case failed != nil || err != nil:
		return together(failed, err)
	case !os.SameFile(own, there):
		return errReplaced
	case there.Size() < f.log.size:
		return damaged("it has %d bytes, and %d were written: another program has cut it", there.Size(), f.log.size)
	}
	return nil
}

// fail makes err the failure of the journal, unless it has one, with the file and what to do.
func (f *File) fail(err error) error {
	if f.failure == nil {
		f.failure = about(f.path, err)
	}
	return f.failure
}

// Standing implements [statestore.Journal]: it returns nil, because no other process can take over.
func (f *File) Standing() error { return nil }

// Close implements [statestore.Journal]. It ends a compaction that is under way, closes the file, so that
// a missing end of it is noticed, and frees the directory. Later calls do nothing.
func (f *File) Close() error {
	if f.life == nil {
		return nil
	}
	f.end()
	f.tasks.Wait()
	f.life = nil
	_ = f.fail(ErrClosed)
	var errs []error
	if c := f.compaction; c != nil && c.to != nil {
		errs = append(errs, about(f.path, c.to.discard()))
	}
	if f.log.err == nil && !f.closed {
		f.closed = f.log.close() == nil
		errs = append(errs, about(f.path, f.log.err))
	}
	// The next process must know of a loss of power for as long, and that a commit may be unfinished. If the
	// directory was moved, what is in its place belongs to another journal.
	if f.closed && (!f.self.Silent || time.Since(f.began) > statestore.SilentFor) && f.checkPlace() == nil {
		errs = append(errs, about(f.path, removeIfThere(f.dir.join(holderName))))
	}
	errs = append(errs, about(f.path, f.log.file.Close()))
	return together(append(errs, f.dir.release())...)
}
