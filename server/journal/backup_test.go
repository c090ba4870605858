package journal_test

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/tenurelock/tenure/internal/await"
	"github.com/tenurelock/tenure/server/journal"
	"github.com/tenurelock/tenure/statestore"
)

// backupState returns the records of a backup, which is opened as a journal.
func backupState(t *testing.T, backup string) map[string]string {
	t.Helper()
	dir := t.TempDir()
	content, err := os.ReadFile(backup)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "tenure.log"), content, 0o600); err != nil {
		t.Fatal(err)
	}
	return load(t, open(t, dir))
}

func TestABackupOfARunningJournalIsOneOfItsStates(t *testing.T) {
	dir, backup := t.TempDir(), filepath.Join(t.TempDir(), "backup")
	file := open(t, dir)
	load(t, file)
	// Each commit changes both records: a copy with parts of two states shows it.
	stop, stopped := make(chan struct{}), make(chan struct{})
	value := func(i int) string { return strings.Repeat(string(rune('a'+i%26)), 3000) }
	commit(t, file, statestore.Group{key("first", value(0)), key("second", value(0))})
	go func() {
		defer close(stopped)
		for i := 1; ; i++ {
			select {
			case <-stop:
				return
			default:
				commit(t, file, statestore.Group{key("first", value(i)), key("second", value(i))})
			}
		}
	}()
	var report journal.Report
	var err error
	for i := 0; i < 10 && err == nil; i++ {
		_ = os.Remove(backup)
		report, err = journal.Backup(t.Context(), dir, backup, nil)
	}
	close(stop)
	await.Next(stopped)
	if err != nil {
		t.Fatal(err)
	}
	if !report.Online || !report.Clean || report.Records != 2 || report.File != backup {
		t.Errorf("the report is %+v", report)
	}
	if info, err := os.Stat(backup); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the backup has mode %v, error %v", info.Mode(), err)
	}
	state := keys(t, backupState(t, backup))
	if state["first"] != state["second"] || len(state["first"]) != 3000 {
		t.Errorf("the backup has records of two commits")
	}
}

func TestABackupOfAStoppedJournalIsItsFile(t *testing.T) {
	dir, backup := t.TempDir(), filepath.Join(t.TempDir(), "backup")
	file := open(t, dir)
	commit(t, file, statestore.Group{key("a", "1")})
	if err := file.Close(); err != nil {
		t.Fatal(err)
	}
	report, err := journal.Backup(t.Context(), dir, backup, nil)
	if err != nil || report.Online || report.Records != 1 {
		t.Errorf("Backup has report %+v, error %v", report, err)
	}
	wantKeys(t, backupState(t, backup), map[string]string{"a": "1"})
	if _, err := journal.Backup(t.Context(), dir, backup, nil); !errors.Is(err, journal.ErrExists) {
		t.Errorf("a second Backup to the same file has error %v", err)
	}
	left, _ := filepath.Glob(filepath.Join(filepath.Dir(backup), "*"))
	hidden, _ := filepath.Glob(filepath.Join(filepath.Dir(backup), ".*"))
	if len(left)+len(hidden) != 1 {
		t.Errorf("beside the backup there are %q %q", left, hidden)
	}
}

func TestNoBackupWithoutData(t *testing.T) {
	backup := filepath.Join(t.TempDir(), "backup")
	if _, err := journal.Backup(t.Context(), t.TempDir(), backup, nil); !errors.Is(err, journal.ErrNoData) {
		t.Errorf("Backup of an empty directory has error %v", err)
	}
}

// A backup needs the file only.
func TestABackupOutlivesTheJournal(t *testing.T) {
	dir := t.TempDir()
	file := open(t, dir)
	commit(t, file, statestore.Group{record("a", strings.Repeat("x", 1<<20))})
	var backup bytes.Buffer
	err := file.Backup(t.Context(), writerFunc(func(p []byte) (int, error) {
		if err := file.Close(); err != nil {
			t.Error(err)
		}
		return backup.Write(p)
	}))
	if err != nil {
		t.Error(err)
	}
	found, err := journal.Scan(backup.Bytes(), false)
	if err != nil || len(found["a"]) != 1<<20 {
		t.Errorf("the backup has %d records, error %v", len(found), err)
	}
	cause := errors.New("no room")
	err = file.Backup(t.Context(), writerFunc(func(p []byte) (int, error) { return 0, cause }))
	if !errors.Is(err, cause) {
		t.Errorf("Backup has error %v", err)
	}
}

// Of a backup that was cut short nothing is believed: it has an end, whatever its journal had.
func TestACutBackupIsRefused(t *testing.T) {
	dir := t.TempDir()
	file := open(t, dir)
	commit(t, file, statestore.Group{key("a", "1")})
	commit(t, file, statestore.Group{key("b", "1")})
	var backup bytes.Buffer
	if err := file.Backup(t.Context(), &backup); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "backup")
	for size := range backup.Len() {
		if err := os.WriteFile(path, backup.Bytes()[:size], 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := journal.Check(t.Context(), path, nil); !errors.Is(err, journal.ErrDamaged) {
			t.Fatalf("cut to %d of %d bytes: Check has error %v", size, backup.Len(), err)
		}
	}
}

func TestAnExportOfARunningJournal(t *testing.T) {
	dir := t.TempDir()
	file := open(t, dir)
	commit(t, file, statestore.Group{key("a", "1")})
	var out bytes.Buffer
	if err := journal.Export(t.Context(), dir, &out, nil); err != nil || !strings.Contains(out.String(), `"key":"a"`) {
		t.Errorf("Export wrote %q, error %v", out.String(), err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := journal.Export(ctx, dir, &out, nil); !errors.Is(err, context.Canceled) {
		t.Errorf("Export with an ended context has error %v", err)
	}
}

func TestABackupEndsWithItsContext(t *testing.T) {
	file := open(t, t.TempDir())
	commit(t, file, statestore.Group{record("a", strings.Repeat("x", 1<<20))})
	ctx, cancel := context.WithCancelCause(t.Context())
	cause := errors.New("enough")
	err := file.Backup(ctx, writerFunc(func(p []byte) (int, error) { cancel(cause); return len(p), nil }))
	if !errors.Is(err, cause) {
		t.Errorf("Backup has error %v", err)
	}
	commit(t, file, statestore.Group{record("a", "2")}) // the journal goes on
}

type writerFunc func(p []byte) (int, error)

func (f writerFunc) Write(p []byte) (int, error) { return f(p) }
