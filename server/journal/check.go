package journal

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"go.etcd.io/bbolt"

	"github.com/tenurelock/tenure/statestore"
)

// farAhead is how far ahead of the clock the bound of the versions may be without a warning. A
// store has it half a minute ahead of its clock, and a restore a minute.
const farAhead = 2 * time.Minute

// A Report says what is in a journal or a backup.
type Report struct {
	File      string `json:"file"`
	Online    bool   `json:"online"`    // a running process has the journal; this is about a copy of it
	Bytes     int64  `json:"bytes"`     // of the file
	FreeBytes int64  `json:"freeBytes"` // of the file, for records to come
	LiveBytes uint64 `json:"liveBytes"` // of the records
	Records   uint64 `json:"records"`
	Keys      uint64 `json:"keys"`
	Fences    uint64 `json:"fences"`   // of keys that are gone
	Replies   uint64 `json:"replies"`  // that are remembered
	Identity  string `json:"identity"` // of the data; empty if no store has used the journal yet
	Bound     string `json:"bound"`    // no version above it was issued; a time without a node
	// Warnings say what is wrong beside the data, and what to do.
	Warnings []string `json:"warnings,omitempty"`
	// Clean is true if no damage was found.
	Clean bool `json:"clean"`
}

// Check reads a journal or a backup from beginning to end, and checks each page, each record,
// and the totals. path is the directory of a store or the file of a backup. Check changes
// nothing. If a process has the journal open, that process is asked for a copy, which needs
// room in the directory for temporary files (TMPDIR); otherwise no store can start meanwhile.
//
// The error matches [ErrDamaged], [ErrForeign] or [ErrNewer] if that is what was found, with the
// page or the record; [ErrNoData] if there is nothing; [ErrUnsafe] if a symbolic link is in place of
// a file of the directory; [ErrInUse] if a process has the journal and cannot be asked. Other
// rights that [Open] would refuse are a warning in the report. The report is complete if there is no error. progress gets records.
func Check(ctx context.Context, path string, progress Progress) (Report, error) {
	s, err := openSource(ctx, path)
	if err != nil {
		return Report{}, err
	}
	report, err := inspectFile(ctx, s.path, s.name, progress)
	report.Online = s.online
	report.Warnings = append(report.Warnings, s.warnings...)
	return report, together(err, s.close())
}

// inspectFile reads all of a file that no process writes. The report and errors call it name.
func inspectFile(ctx context.Context, path, name string, progress Progress) (Report, error) {
	report := Report{File: name}
	s, err := scanGiven(path)
	if err != nil {
		return report, about(name, err)
	}
	defer s.file.Close()
	report.Bytes = s.pages.size
	err = s.complete()
	if err == nil {
		err = s.inspect(ctx, &report, progress)
	}
	if err == nil && s.pages.fitsBolt() {
		err = checkBolt(path)
	}
	if err != nil {
		return report, about(name, err)
	}
	report.Clean = true
	return report, nil
}

// inspect decodes every record.
func (s *scan) inspect(ctx context.Context, report *Report, progress Progress) error {
	err := s.each(ctx, func(id, value []byte) error {
		report.Records++
		report.LiveBytes += uint64(len(id)) + uint64(len(value))
		if report.Records%1024 == 0 {
			progress.call(report.Records, s.want.count)
		}
		item, err := statestore.Record{ID: id, Value: value}.Decode()
		if err != nil {
			return recordError(err)
		}
		switch item.Kind {
		case statestore.KindKey:
			report.Keys++
		case statestore.KindFence:
			report.Fences++
		case statestore.KindReply:
			report.Replies++
		case statestore.KindIdentity:
			report.Identity = item.Identity
		case statestore.KindBound:
			report.Bound = item.Version.String()
			if ahead := time.Duration(item.Version.Wall-time.Now().UnixMilli()) * time.Millisecond; ahead > farAhead {
				report.Warnings = append(report.Warnings, fmt.Sprintf("%s: its versions are %v ahead of the clock of this machine: if this clock is wrong, set it, and restore again; "+
					"otherwise clients refuse the versions until the clock has caught up", report.File, ahead.Round(time.Second)))
			}
		}
		return nil
	})
	report.FreeBytes = report.Bytes - int64(s.pages.used+2)*pageSize
	return err
}

// recordError adds a sentinel of this package to err, the error of a record that cannot be decoded.
// Its text stays the same: it says everything.
func recordError(err error) error {
	if errors.Is(err, statestore.ErrNewerFormat) {
		return classified{err, ErrNewer}
	}
	return classified{err, ErrDamaged}
}

// checkBolt lets bbolt check a file that a scan has found to be sound.
func checkBolt(path string) (err error) {
	defer func() {
		if reason := recover(); reason != nil {
			err = damaged("bbolt: %v", reason)
		}
	}()
	db, err := bbolt.Open(path, 0, &bbolt.Options{Timeout: lockTimeout, ReadOnly: true, NoStatistics: true, FreelistType: bbolt.FreelistMapType})
	if err != nil {
		return err
	}
	defer db.Close()
	return db.View(func(tx *bbolt.Tx) error {
		var first error
		for problem := range tx.Check() { // to the end, or its goroutine stays
			if first == nil {
				first = damaged("bbolt: %w", problem)
			}
		}
		return first
	})
}

// A source is a file to read that no process changes.
type source struct {
	path     string
	name     string // for messages
	online   bool   // path is a copy
	warnings []string
	unlock   func() error
}

func (s *source) close() error {
	var err error
	if s.online {
		err = about(s.path, os.Remove(s.path))
	}
	if s.unlock != nil {
		err = together(err, about(s.name, s.unlock()))
	}
	return err
}

// openSource returns the journal in the directory path, a copy of it if a process has it open,
// or the backup path.
func openSource(ctx context.Context, path string) (*source, error) {
	info, err := os.Stat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("journal: %s: %w: it does not exist; give the directory of a durable store, or the file of a backup", path, ErrNoData)
	}
	if err != nil {
		return nil, about(path, err)
	}
	dir := path
	if !info.IsDir() {
		if filepath.Base(path) != fileName {
			return &source{path: path, name: path}, nil
		}
		dir = filepath.Dir(path) // of a store, or a backup with the same name
	}
	file := filepath.Join(dir, fileName)
	if _, err := lstatRegular(file); errors.Is(err, fs.ErrNotExist) {
		return nil, noData(dir)
	} else if err != nil {
		return nil, about(file, err) // without the rights to the directory, the data may be there
	}
	warnings, unsafe := inspectRights(dir, false)
	if unsafe != nil { // a store refuses it; to read it does no harm
		warnings = append(warnings, strings.TrimPrefix(unsafe.Error(), "journal: "))
	}
	unlock, err := acquireToRead(dir)
	if err == nil {
		return &source{path: file, name: file, warnings: warnings, unlock: unlock}, nil
	}
	if !errors.Is(err, ErrInUse) {
		return nil, err
	}
	copied, err := os.CreateTemp("", "tenure-*.db") // mode 0600
	if err != nil {
		return nil, about(os.TempDir(), err)
	}
	s := &source{path: copied.Name(), name: file, online: true, warnings: warnings}
	err = askForBackup(ctx, dir, copied, nil)
	if failed := new(unwritten); errors.As(err, failed) {
		err = fmt.Errorf("%w, or set TMPDIR to a directory on another disk", about(os.TempDir(), failed.error))
	}
	if err := together(err, about(copied.Name(), copied.Close())); err != nil {
		return nil, together(err, s.close())
	}
	return s, nil
}
