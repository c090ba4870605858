package journal_test

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tenurelock/tenure/hlc"
	"github.com/tenurelock/tenure/internal/await"
	"github.com/tenurelock/tenure/internal/closed"
	"github.com/tenurelock/tenure/internal/prerequisite"
	"github.com/tenurelock/tenure/resp3"
	"github.com/tenurelock/tenure/server/journal"
	"github.com/tenurelock/tenure/statestore"
)

// filled returns a directory with a closed journal that has one record of each kind, and two keys.
func filled(t testing.TB) string {
	t.Helper()
	dir := t.TempDir()
	file := open(t, dir)
	commit(t, file, statestore.Group{identity("of the data"), bound(hlc.Timestamp{Wall: version.Wall, Counter: 9})},
		statestore.Group{key("a", "1"), reply("client")},
		statestore.Group{key("b\xff", "\x00\xfe")}, statestore.Group{fence("c")})
	shut(t, file)
	return dir
}

func TestCheckCountsWhatIsThere(t *testing.T) {
	dir := filled(t)
	report, err := journal.Check(t.Context(), dir)
	if err != nil {
		t.Fatal(err)
	}
	info, _ := os.Stat(filepath.Join(dir, "tenure.log"))
	want := journal.Report{File: filepath.Join(dir, "tenure.log"), Bytes: info.Size(), LiveBytes: report.LiveBytes,
		Records: 6, Keys: 2, Fences: 1, Replies: 1, Identity: "of the data", Bound: "1700000000000:9:", Clean: true}
	if !reflect.DeepEqual(report, want) || report.LiveBytes < 100 || report.LiveBytes > 1000 {
		t.Errorf("the report is\n%+v, want\n%+v", report, want)
	}

	file := open(t, dir)
	load(t, file)
	online, err := journal.Check(t.Context(), dir)
	want.Online = true
	if err != nil || !reflect.DeepEqual(online, want) {
		t.Errorf("while a process has the journal, the report is\n%+v, error %v, want\n%+v", online, err, want)
	}
}

// What no store wrote into a record is damage, unless a later version wrote it.
func TestCheckFindsARecordThatNoStoreWrote(t *testing.T) {
	newer := key("b", "2")
	newer.Value[0] = 200 // the format
	body, sum := newer.Value[:len(newer.Value)-4], newer.Value[len(newer.Value)-4:]
	binary.BigEndian.PutUint32(sum, crc32.Checksum(slices.Concat(newer.ID, body), crc32.MakeTable(crc32.Castagnoli)))
	for want, r := range map[error]statestore.Record{journal.ErrDamaged: record("kb", "not a record"), journal.ErrNewer: newer} {
		dir := t.TempDir()
		file := open(t, dir)
		commit(t, file, statestore.Group{key("a", "1"), r})
		if report, err := journal.Check(t.Context(), dir); !errors.Is(err, want) || !strings.Contains(err.Error(), `record "kb"`) || report.Clean {
			t.Errorf("Check has report %+v, error %v", report, err)
		}
	}
}

func TestABackupOfARunningJournalIsOneOfItsStates(t *testing.T) {
	dir, backup := t.TempDir(), filepath.Join(t.TempDir(), "backup")
	file := open(t, dir)
	load(t, file)
	// Each commit changes both records: a copy with parts of two states shows it.
	stop, stopped := make(chan struct{}), make(chan struct{})
	next := func(i int) {
		value := strings.Repeat(string(rune('a'+i%26)), 3000)
		commit(t, file, statestore.Group{key("first", value), key("second", value)})
	}
	next(0)
	go func() {
		defer close(stopped)
		for i := 1; !closed.Is(stop); i++ {
			next(i)
		}
	}()
	var report journal.Report
	for range 10 {
		_ = os.Remove(backup)
		report = must(journal.Backup(t.Context(), dir, backup))
	}
	close(stop)
	await.Next(stopped)
	if !report.Online || !report.Clean || report.Records != 2 || report.File != backup {
		t.Errorf("the report is %+v", report)
	}
	if info, err := os.Stat(backup); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the backup has mode %v, error %v", info.Mode(), err)
	}
	found, err := journal.Scan(must(os.ReadFile(backup)), false)
	if state := keys(t, found); err != nil || state["first"] != state["second"] || len(state["first"]) != 3000 {
		t.Errorf("the backup has records of two commits, or error %v", err)
	}
	if _, err := journal.Backup(t.Context(), dir, backup); !errors.Is(err, journal.ErrExists) {
		t.Errorf("a second Backup to the same file has error %v", err)
	}
	if entries := must(os.ReadDir(filepath.Dir(backup))); len(entries) != 1 {
		t.Errorf("beside the backup there are %v", entries)
	}
}

// What fails or ends leaves no data, and says with what file that was.
func TestWhatCannotBeCheckedBackedUpOrRestored(t *testing.T) {
	sound := filled(t)
	backup, text, damaged := filepath.Join(sound, "tenure.log"), filepath.Join(t.TempDir(), "text"), filepath.Join(t.TempDir(), "damaged")
	content := must(os.ReadFile(backup))
	content[len(content)/2]++
	if err := errors.Join(os.WriteFile(text, []byte("hello"), 0o600), os.WriteFile(damaged, content, 0o600)); err != nil {
		t.Fatal(err)
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	missing, empty, used := filepath.Join(sound, "missing"), t.TempDir(), t.TempDir()
	open(t, used)
	restore := func(ctx context.Context, from, to string) error {
		_, err := journal.RestoreBackup(ctx, from, to)
		return err
	}
	fresh := filepath.Join(t.TempDir(), "fresh", "data")
	for _, test := range []struct {
		name string
		err  error
		is   error
		says string
	}{
		{"a restore of what is not there", restore(t.Context(), missing, fresh), journal.ErrNoData, missing},
		{"a restore of a text", restore(t.Context(), text, fresh), journal.ErrForeign, text},
		{"a restore of a directory", restore(t.Context(), sound, fresh), journal.ErrForeign, sound},
		{"a restore of a damaged file", restore(t.Context(), damaged, fresh), journal.ErrDamaged, damaged + ": damaged: "},
		{"a restore that ends", restore(ended, backup, fresh), context.Canceled, ""},
		{"a restore over data", restore(t.Context(), backup, sound), journal.ErrExists, backup},
		{"a restore to a directory in use", restore(t.Context(), backup, used), journal.ErrInUse, used},
		{"a check of what is not there", second(journal.Check(t.Context(), missing)), journal.ErrNoData, missing},
		{"a check of an empty directory", second(journal.Check(t.Context(), empty)), journal.ErrNoData, empty},
		{"a check that ends", second(journal.Check(ended, sound)), context.Canceled, backup},
		{"an export that ends", journal.Export(ended, sound, io.Discard), context.Canceled, backup},
		{"a backup of an empty directory", second(journal.Backup(t.Context(), empty, fresh+"/backup")), journal.ErrNoData, empty},
		{"a backup that ends", second(journal.Backup(ended, sound, filepath.Join(empty, "backup"))), context.Canceled, backup},
	} {
		if !errors.Is(test.err, test.is) || !strings.Contains(test.err.Error(), test.says) || strings.Count(test.err.Error(), "journal: ") > 1 {
			t.Errorf("%s: the error is %v; want one that is %q and says %q", test.name, test.err, test.is, test.says)
		}
	}
	if left := must(os.ReadDir(fresh)); len(left) != 1 {
		t.Errorf("the restores left %v, want the lock", left)
	}
	if left := must(os.ReadDir(empty)); len(left) > 0 {
		t.Errorf("there is %v now in an empty directory", left)
	}
}

func second[T any](_ T, err error) error { return err }

// A user without rights to a directory must not be told that it has no data.
func TestDataThatCannotBeSeenIsNotCalledMissing(t *testing.T) {
	dir := t.TempDir()
	if err := os.Symlink("tenure.log", filepath.Join(dir, "tenure.log")); err != nil { // root too cannot follow it
		prerequisite.Missing(t, err.Error()) // Windows asks for a right
	}
	if _, err := journal.Check(t.Context(), dir); err == nil || errors.Is(err, journal.ErrNoData) {
		t.Errorf("Check has error %v", err)
	}
}

func TestInvariant36ARestoredBackupIssuesNothingTwice(t *testing.T) {
	dir := filled(t)
	backup := filepath.Join(t.TempDir(), "backup")
	if _, err := journal.Backup(t.Context(), dir, backup); err != nil {
		t.Fatal(err)
	}
	restored := filepath.Join(t.TempDir(), "restored")
	before := time.Now()
	report := must(journal.RestoreBackup(t.Context(), backup, restored))
	if report.Keys != 2 || report.Fences != 1 || report.Replies != 1 || report.Records != 6 || report.File != filepath.Join(restored, "tenure.log") {
		t.Errorf("the report is %+v", report)
	}
	if report.Identity == "of the data" || len(report.Identity) < 16 {
		t.Errorf("the identity is %q: it must be a new one", report.Identity)
	}
	// The lost store may have issued versions up to a minute ahead of its wall clock.
	var bound hlc.Timestamp
	if n, err := fmt.Sscanf(report.Bound, "%d:%d:", &bound.Wall, &bound.Counter); n != 2 {
		t.Fatal(err)
	}
	if least := before.Add(time.Minute).UnixMilli(); bound.Wall < least {
		t.Errorf("the bound is %v, below %v", bound, least)
	}

	// A store on it has the keys, and begins above the bound.
	file := open(t, restored)
	store := must(statestore.New(statestore.Options{Journaled: true, Strict: true, Identity: "another"}))
	records := make(map[string]string)
	if _, err := file.Load(t.Context(), func(r statestore.Record) error {
		records[string(r.ID)] = string(r.Value)
		return store.Restore(r)
	}); err != nil {
		t.Fatal(err)
	}
	if want := map[string]string{"a": "1", "b\xff": "\x00\xfe"}; !maps.Equal(keys(t, records), want) {
		t.Errorf("the restored keys are %q, want %q", keys(t, records), want)
	}
	now := statestore.Instant{WallMillis: before.UnixMilli()}
	store.Restored(now, statestore.Former{})
	timestamp := hlc.Timestamp{Wall: before.UnixMilli(), Node: "client"}.String()
	reply, _ := store.Apply(now, statestore.Parse(statestore.Request{Client: "client", Payload: resp3.AppendCommand(nil, "SET", "x", "y"), Timestamp: &timestamp}))
	if reply.Version.Compare(bound) <= 0 {
		t.Errorf("the first version is %v, not above the bound %v", reply.Version, report.Bound)
	}
}

// A backup that was taken while the clock was far ahead keeps its bound.
func TestARestoredBoundNeverGoesBack(t *testing.T) {
	dir := t.TempDir()
	ahead := hlc.Timestamp{Wall: time.Now().Add(time.Hour).UnixMilli(), Counter: 5}
	file := open(t, dir)
	commit(t, file, statestore.Group{identity("x"), bound(ahead)})
	shut(t, file)
	report, err := journal.RestoreBackup(t.Context(), filepath.Join(dir, "tenure.log"), filepath.Join(t.TempDir(), "new"))
	if err != nil || report.Bound != ahead.String() {
		t.Errorf("the bound is %v, error %v, want %v", report.Bound, err, ahead)
	}
	if len(report.Warnings) != 1 || !strings.Contains(report.Warnings[0], "ahead of the clock of this machine") {
		t.Errorf("the warnings are %q", report.Warnings)
	}
}

// An export has all bytes: an empty value is there, and text with special characters stays as it is.
func TestAnExportHasAllBytes(t *testing.T) {
	dir := filled(t)
	file := open(t, dir)
	commit(t, file, statestore.Group{key(" ", "<&>\u2028\n")}, statestore.Group{key("empty", "")}, statestore.Group{bound(hlc.Timestamp{})})
	var out strings.Builder // the journal is running
	if err := journal.Export(t.Context(), dir, &out); err != nil {
		t.Fatal(err)
	}
	want := []string{
		`{"kind":"identity","identity":"of the data"}`,
		`{"kind":"key","key":"a","value":"1","version":"V","token":"T","lifetimeMillis":10000}`,
		`{"kind":"reply","client":"client","sequence":1,"verb":"SET","outcome":"ok","version":"1700000000000:8:StateStore"}`,
		`{"kind":"key","keyBase64":"Yv8=","valueBase64":"AP4=","version":"V","token":"T","lifetimeMillis":10000}`,
		`{"kind":"fence","key":"c","token":"T"}`,
		`{"kind":"key","key":" ","value":"<&>\u2028\n","version":"V","token":"T","lifetimeMillis":10000}`,
		`{"kind":"key","key":"empty","value":"","version":"V","token":"T","lifetimeMillis":10000}`,
		`{"kind":"bound","version":"0:0:"}`,
	}
	text := strings.NewReplacer(`"V"`, `"`+version.String()+`"`, `"T"`, `"`+token.String()+`"`)
	if got, want := out.String(), text.Replace(strings.Join(want, "\n"))+"\n"; got != want {
		t.Errorf("the export is\n%s, want\n%s", got, want)
	}
}
