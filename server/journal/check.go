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

	"github.com/tenurelock/tenure/statestore"
)

// farAhead is how far ahead of the clock the bound of the versions may be without a warning. A
// store has it half a minute ahead of its clock, and a restore a minute.
const farAhead = 2 * time.Minute

// A Report says what is in a journal or a backup.
type Report struct {
	File      string `json:"file"`
	Online    bool   `json:"online"`    // a running process has the journal; this is about one of its commits
	Bytes     int64  `json:"bytes"`     // of the file
	LiveBytes uint64 `json:"liveBytes"` // of the records
	Records   uint64 `json:"records"`
	Keys      uint64 `json:"keys"`
	Fences    uint64 `json:"fences"`   // of keys that are gone
	Replies   uint64 `json:"replies"`  // that are remembered
	Changes   uint64 `json:"changes"`  // of leases, in their history
	Identity  string `json:"identity"` // of the data; empty if no store has used the journal yet
	Bound     string `json:"bound"`    // no version above it was issued; a time without a node
	// Warnings say what is wrong beside the data, and what to do.
	Warnings []string `json:"warnings,omitempty"`
	// Clean is true if no damage was found.
	Clean bool `json:"clean"`
}

// Check reads a journal or a backup from beginning to end, and checks all bytes and each record.
// path is the directory of a store or the file of a backup. Check changes nothing, and a process that has
// the journal open goes on meanwhile.
//
// The error matches [ErrDamaged], [ErrForeign] or [ErrNewer] if that is what was found, with the
// commit or the record; [ErrNoData] if there is nothing; [ErrUnsafe] if a symbolic link is in place of
// a file of the directory. Other rights that [Open] would refuse are a warning in the report. The report
// is complete if there is no error.
func Check(ctx context.Context, path string) (report Report, err error) {
	s, err := openSource(path)
	if err != nil {
		return Report{}, err
	}
	defer func() { err = together(err, s.close()) }()
	report, err = s.inspect(ctx)
	return report, s.about(err)
}

// inspect decodes every record.
func (s *source) inspect(ctx context.Context) (Report, error) {
	report := Report{File: s.name, Online: s.online, Bytes: s.size, Warnings: s.warnings}
	if err := s.complete(ctx); err != nil {
		return report, err
	}
	if rest := s.size - s.at; rest > 0 && !s.online {
		report.Warnings = append(report.Warnings, fmt.Sprintf(
			"a crash left its last commit unfinished; the next start cuts off %d bytes", rest))
	}
	err := s.items(ctx, func(_ statestore.Record, item statestore.Item) error {
		report.Records++
		switch item.Kind {
		case statestore.KindKey:
			report.Keys++
		case statestore.KindFence:
			report.Fences++
		case statestore.KindReply:
			report.Replies++
		case statestore.KindChange:
			report.Changes++
		case statestore.KindIdentity:
			report.Identity = item.Identity
		case statestore.KindBound:
			report.Bound = item.Version.String()
			if ahead := time.Duration(item.Version.Wall-time.Now().UnixMilli()) * time.Millisecond; ahead > farAhead {
				report.Warnings = append(report.Warnings, fmt.Sprintf(
					"its versions are %v ahead of the clock of this machine: if this clock is wrong, set it, and restore again; "+
						"otherwise clients refuse the versions until the clock has caught up", ahead.Round(time.Second)))
			}
		}
		return nil
	})
	report.LiveBytes, report.Clean = uint64(s.live), err == nil
	return report, err
}

// items calls do for each record that index has found, decoded.
func (s *scan) items(ctx context.Context, do func(statestore.Record, statestore.Item) error) error {
	for record := range s.counting(ctx) {
		item, err := record.Decode()
		switch {
		case errors.Is(err, statestore.ErrNewerFormat):
			return fmt.Errorf("%w: %w", ErrNewer, err)
		case err != nil:
			return damaged("%w", err)
		}
		if err := do(record, item); err != nil {
			return err
		}
	}
	return s.err
}

// A source is a file to read.
type source struct {
	*scan
	opened   *os.File
	name     string // for messages
	cure     string // of damage
	online   bool   // a process has the journal
	open     bool   // it has, or ended without closing the file: that may lack its end
	holder   holder // what that process says about itself
	warnings []string
}

func (s *source) close() error { return s.about(s.opened.Close()) }

// about returns err with the name of the source and what to do.
func (s *source) about(err error) error { return withCure(s.name, err, s.cure) }

// complete indexes the file, and refuses one without the end that it must have.
func (s *source) complete(ctx context.Context) error {
	if s.index(ctx) == nil {
		s.checkEnd()
	}
	return s.err
}

// checkEnd notes an error if the file does not have the end that it must have.
func (s *source) checkEnd() {
	if s.err == nil {
		s.err = s.checkSynced(s.holder)
	}
	if s.err == nil && !s.open && (!s.closed || s.at < s.size) {
		s.err = errNoEnd
	}
}

// openSource returns the journal in the directory path, or the backup path.
func openSource(path string) (*source, error) {
	if info, err := os.Stat(path); err == nil && info.IsDir() {
		path = filepath.Join(path, fileName)
	}
	if filepath.Base(path) == fileName { // of a store, or a backup with the same name
		file, err := openRegular(path, os.O_RDONLY)
		return begin(&source{name: path, cure: cureStore}, file, err)
	}
	return openBackup(path)
}

// openBackup returns the backup path, which may be a link.
func openBackup(path string) (*source, error) {
	var file *os.File
	_, err := regular(path, os.Stat)
	if err == nil {
		file, err = os.Open(path)
	}
	return begin(&source{name: path, cure: cureBackup}, file, err)
}

// begin returns s with its file, or why that cannot be read. A process that has the journal, or takes it, only
// appends to it.
func begin(s *source, file *os.File, err error) (*source, error) {
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("journal: %s: %w: it does not exist; "+
			"give the directory of a durable store, or the file of a backup", s.name, ErrNoData)
	}
	if err != nil {
		return nil, s.about(err)
	}
	s.opened = file
	if s.cure == cureStore {
		dir := filepath.Dir(s.name)
		var unsafe, left error
		if s.warnings, unsafe = inspectRights(dir, false); unsafe != nil { // a store refuses it; to read it does no harm
			s.warnings = append(s.warnings, strings.TrimPrefix(unsafe.Error(), "journal: "))
		}
		s.holder, left = readHolder(dir)
		s.online = held(dir)
		s.open = s.online || !errors.Is(left, fs.ErrNotExist)
	}
	if s.scan, err = scanFile(file); err != nil {
		return nil, together(s.about(err), s.close())
	}
	return s, nil
}
