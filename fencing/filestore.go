package fencing

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"sync/atomic"

	"golang.org/x/sync/semaphore"

	"github.com/tenurelock/tenure/hlc"
	"github.com/tenurelock/tenure/internal/operror"
)

var (
	// ErrInUse: another FileStore, of this process or of another one, has the file.
	ErrInUse = errors.New("in use")
	// ErrDamaged: the file does not hold what a FileStore wrote.
	ErrDamaged = errors.New("damaged")
)

// FileStore keeps the highest token of a [Checker] in a file, so that a restarted checker
// refuses the tokens that it refused before. When [FileStore.Persist] returns nil, the token
// survives a crash of the process, of the system, and a loss of power, as far as the disk keeps
// what it was told to keep. Use one file for each resource:
//
//	store, err := fencing.OpenFileStore("/var/lib/press-7/fence")
//	defer store.Close()
//	checker, err := fencing.NewChecker("press-7", store.Highest(), store.Persist)
//
// Two more names belong to it. The name with ".lock" is a file that one FileStore at a time
// holds locked; it stays after Close, and must not be removed while a store is open. The name
// with ".new" is a file that exists while a token is written; what a crash leaves of it is
// removed when the store is opened. All have the mode 0600. A user that can write to the directory can
// put another file in their place, so use a directory that belongs to the program's user.
//
// Where the file does not exist, no token was seen, and the first one is admitted. So a file that
// is lost, or restored from a backup, admits tokens of former tenures. No file can tell: keep it
// on the disk of the resource that it protects, so that both are lost together.
//
// It is safe for concurrent use.
type FileStore struct {
	path string
	disk disk
	lock io.Closer

	turn    *semaphore.Weighted // taken while a call writes, or closes
	closed  bool                // changes in turns only
	floor   hlc.Token           // the highest token that may be in the file; changes in turns only
	highest atomic.Pointer[hlc.Token]
}

// OpenFileStore opens the file at path, or creates it, and locks it until Close. The directory
// must exist. It writes the file once, even if it has not changed: the token in it might not
// have reached the disk before a crash, and a directory that cannot be written is found now and
// not when the next tenure begins.
//
// An error that matches ErrInUse means that another FileStore has the file; OpenFileStore
// does not wait for it. One that matches ErrDamaged means that the file does not hold what a
// FileStore wrote, and one that matches [errors.ErrUnsupported] that the system cannot lock
// files. Others come from the file system, such as [fs.ErrNotExist] for the directory.
func OpenFileStore(path string) (*FileStore, error) {
	path, err := filepath.Abs(path) // the program may change its directory
	if err != nil || path == string(filepath.Separator) {
		return nil, fmt.Errorf("fencing: open file store %q: give the path of a file", path)
	}
	lock, err := lockFile(path + ".lock")
	if errors.Is(err, fs.ErrNotExist) {
		err = fmt.Errorf("%w; create the directory %s", err, filepath.Dir(path))
	}
	if err != nil {
		return nil, fmt.Errorf("fencing: open file store %q: %w", path, err)
	}
	s, err := openFileStore(path, systemDisk{}, lock)
	if err != nil {
		return nil, fmt.Errorf("fencing: open file store %q: %w", path, errors.Join(err, lock.Close()))
	}
	return s, nil
}

func openFileStore(path string, disk disk, lock io.Closer) (*FileStore, error) {
	s := &FileStore{path: path, disk: disk, lock: lock, turn: semaphore.NewWeighted(1)}
	content, err := disk.Read(path, maxRecord+1)
	switch {
	case errors.Is(err, fs.ErrNotExist):
	case err != nil:
		return nil, err
	default:
		if s.floor, err = parseRecord(content); err != nil {
			return nil, fmt.Errorf("%w; a checker without the token would admit former tenures: wait until no writer of an "+
				"earlier tenure can still run, then remove the file", err)
		}
	}
	// The rename that brought this token may be lost yet, if the crash was one of the process alone.
	if err := s.write(s.floor); err != nil {
		return nil, err
	}
	highest := s.floor
	s.highest.Store(&highest)
	return s, nil
}

// Highest returns the highest token that is durable: the last that Persist stored, by this
// store or before. The zero token: none.
func (s *FileStore) Highest() hlc.Token { return *s.highest.Load() }

// Persist stores a token, for [NewChecker]. When it returns nil the token is durable.
// For a token that is durable already it writes nothing. With any other error than the
// following the token may or may not be durable; Persist can be called again with the same or
// a higher one.
//
//   - *StaleTokenError (ErrStaleToken): a higher token is in the file, or may be. Nothing changed.
//   - ErrMissingToken, hlc.ErrMalformed: token is zero, or malformed. Nothing changed.
//   - [os.ErrClosed]: the store is closed. Nothing changed.
//   - the cause of the end of ctx, if it ended before the write began. Nothing changed. A write
//     that has begun does not end with ctx.
func (s *FileStore) Persist(ctx context.Context, token hlc.Token) (err error) {
	defer func() { err = operror.New("fencing: persist in", s.path, err) }()
	if err := validate(token); err != nil {
		return err
	}
	if s.turn.Acquire(ctx, 1) != nil {
		return context.Cause(ctx)
	}
	defer s.turn.Release(1)
	switch {
	case s.closed:
		return os.ErrClosed
	case token.Compare(s.floor) < 0:
		return &StaleTokenError{Resource: s.path, Token: token, Highest: s.floor}
	case token == s.Highest():
		return nil
	}
	s.floor = token // even if write fails, the file may have it
	if err := s.write(token); err != nil {
		return err
	}
	s.highest.Store(&token)
	return nil
}

// Close unlocks the file. It waits for a Persist that is under way. It may be called more
// than once.
func (s *FileStore) Close() error {
	_ = s.turn.Acquire(context.Background(), 1) // which never ends
	defer s.turn.Release(1)
	if s.closed {
		return nil
	}
	s.closed = true
	return operror.New("fencing: close file store", s.path, s.lock.Close())
}

// write replaces the file. A crash leaves the old file or the new one, complete. The new file
// is durable before it has its name, and the name before write returns: a failed attempt begins
// again with another file, because what a failed sync left is unknown.
func (s *FileStore) write(token hlc.Token) error {
	temporary := s.path + ".new"
	if err := s.disk.Remove(temporary); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	err := s.disk.Create(temporary, appendRecord(nil, token))
	if err == nil {
		err = s.disk.Rename(temporary, s.path)
	}
	if err != nil {
		_ = s.disk.Remove(temporary) // what stays is removed by the next attempt
		return err
	}
	return s.disk.SyncDirectory(filepath.Dir(s.path))
}

// A record is the content of the file: a line that says what it is, the token, and a checksum of both
// lines, for sha256sum too.
const (
	recordTitle  = "tenure fence 1\n"
	recordToken  = "highest "
	recordDigest = "sha256 "
	// maxRecord is the longest record. A token has at most 1024 bytes.
	maxRecord = len(recordTitle) + len(recordToken) + 1024 + 1 + len(recordDigest) + 2*sha256.Size + 1
)

func appendRecord(dst []byte, token hlc.Token) []byte {
	begin := len(dst)
	dst = append(append(dst, recordTitle...), recordToken...)
	if !token.IsZero() {
		dst = append(dst, token.String()...)
	}
	dst = append(dst, '\n')
	return fmt.Appendf(dst, "%s%x\n", recordDigest, sha256.Sum256(dst[begin:]))
}

// parseRecord returns the token of a record; the zero token if it has none. The error matches ErrDamaged.
// It accepts no other text than appendRecord writes.
func parseRecord(record []byte) (hlc.Token, error) {
	rest, begins := bytes.CutPrefix(record, []byte(recordTitle+recordToken))
	text, _, complete := bytes.Cut(rest, []byte("\n"))
	if !begins || !complete {
		return hlc.Token{}, fmt.Errorf("%w: it does not begin with %q and a token", ErrDamaged, recordTitle+recordToken)
	}
	var token hlc.Token
	if err := token.UnmarshalText(text); err != nil {
		return hlc.Token{}, fmt.Errorf("%w: %w", ErrDamaged, err)
	}
	if !bytes.Equal(record, appendRecord(nil, token)) {
		return hlc.Token{}, fmt.Errorf("%w: its checksum is of another token than %q", ErrDamaged, text)
	}
	return token, nil
}

// A disk is the operations of a FileStore, so that tests can stop between two of them, and
// lose what is not durable.
type disk interface {
	// Read returns at most so many bytes of a regular file.
	Read(path string, most int) ([]byte, error)
	// Create writes a file that does not exist, for its owner only. When it returns nil the content is durable.
	Create(path string, content []byte) error
	Rename(from, to string) error
	Remove(path string) error
	// SyncDirectory makes the names in a directory durable, where Rename has not done so.
	SyncDirectory(path string) error
}

// systemDisk is the disk of the operating system. How Rename and SyncDirectory make names durable depends
// on the system.
type systemDisk struct{}

func (systemDisk) Read(path string, most int) ([]byte, error) {
	if err := checkRegular(path); err != nil {
		return nil, err
	}
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	content, err := io.ReadAll(io.LimitReader(file, int64(most)))
	return content, errors.Join(err, file.Close())
}

func (systemDisk) Create(path string, content []byte) error {
	file, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	_, err = file.Write(content)
	if err == nil {
		err = file.Sync()
	}
	return errors.Join(err, file.Close())
}

func (systemDisk) Remove(path string) error { return os.Remove(path) }

// checkRegular refuses links and devices: a link would be replaced by a file, so that two stores
// could use the file under two names.
func checkRegular(path string) error {
	info, err := os.Lstat(path)
	if err == nil && !info.Mode().IsRegular() {
		err = fmt.Errorf("%s is no regular file (mode %v); give the path of the file itself", path, info.Mode())
	}
	return err
}
