package journal_test

import (
	"context"
	"encoding/binary"
	"encoding/json"
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
		statestore.Group{key("a", "1"), reply(t, "client")}, statestore.Group{key("b\xff", "\x00\xfe")}, statestore.Group{fence("c")})
	if err := file.Close(); err != nil {
		t.Fatal(err)
	}
	return dir
}

func TestCheckCountsWhatIsThere(t *testing.T) {
	dir := filled(t)
	report, err := journal.Check(t.Context(), dir, nil)
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
	online, err := journal.Check(t.Context(), dir, nil)
	want.Online = true
	if err != nil || !reflect.DeepEqual(online, want) {
		t.Errorf("while a process has the journal, the report is\n%+v, error %v, want\n%+v", online, err, want)
	}
	if report, err := journal.Check(t.Context(), filepath.Join(dir, "nothing"), nil); err == nil || !strings.Contains(err.Error(), "nothing") {
		t.Errorf("Check of a missing directory has report %+v, error %v", report, err)
	}
	if _, err := journal.Check(t.Context(), t.TempDir(), nil); !errors.Is(err, journal.ErrNoData) {
		t.Errorf("Check of an empty directory has error %v", err)
	}
}

func TestCheckFindsARecordThatNoStoreWrote(t *testing.T) {
	dir := t.TempDir()
	file := open(t, dir)
	commit(t, file, statestore.Group{key("a", "1"), record("kb", "not a record")})
	if err := file.Close(); err != nil {
		t.Fatal(err)
	}
	report, err := journal.Check(t.Context(), dir, nil)
	if !errors.Is(err, journal.ErrDamaged) || !strings.Contains(err.Error(), `record "kb"`) || report.Clean {
		t.Errorf("Check has report %+v, error %v", report, err)
	}
	newer := key("b", "2")
	newer.Value[0] = 200 // the format
	body, sum := newer.Value[:len(newer.Value)-4], newer.Value[len(newer.Value)-4:]
	binary.BigEndian.PutUint32(sum, crc32.Checksum(slices.Concat(newer.ID, body), crc32.MakeTable(crc32.Castagnoli)))
	file = open(t, dir)
	commit(t, file, statestore.Group{newer})
	if err := file.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := journal.Check(t.Context(), dir, nil); !errors.Is(err, journal.ErrNewer) {
		t.Errorf("Check of a record of a newer format has error %v", err)
	}
}

func TestInvariant36ARestoredBackupIssuesNothingTwice(t *testing.T) {
	dir := filled(t)
	backup := filepath.Join(t.TempDir(), "backup")
	if _, err := journal.Backup(t.Context(), dir, backup, nil); err != nil {
		t.Fatal(err)
	}
	restored := filepath.Join(t.TempDir(), "restored")
	before := time.Now()
	report, err := journal.RestoreBackup(t.Context(), backup, restored, nil)
	if err != nil {
		t.Fatal(err)
	}
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
	store, err := statestore.New(statestore.Options{Journaled: true, Strict: true, Identity: "another"})
	if err != nil {
		t.Fatal(err)
	}
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
	if err := file.Close(); err != nil {
		t.Fatal(err)
	}
	report, err := journal.RestoreBackup(t.Context(), filepath.Join(dir, "tenure.log"), filepath.Join(t.TempDir(), "new"), nil)
	if err != nil || report.Bound != ahead.String() {
		t.Errorf("the bound is %v, error %v, want %v", report.Bound, err, ahead)
	}
	if len(report.Warnings) != 1 || !strings.Contains(report.Warnings[0], "its versions are 1h0m0s ahead of the clock of this machine") {
		t.Errorf("the warnings are %q", report.Warnings)
	}
}

func TestRestoreOverwritesNothing(t *testing.T) {
	t.Parallel()
	dir, other := filled(t), filled(t)
	backup := filepath.Join(dir, "tenure.log")
	if _, err := journal.RestoreBackup(t.Context(), backup, other, nil); !errors.Is(err, journal.ErrExists) {
		t.Errorf("RestoreBackup to a directory with a journal has error %v", err)
	}
	empty := t.TempDir()
	file := open(t, empty)
	if _, err := journal.RestoreBackup(t.Context(), backup, empty, nil); !errors.Is(err, journal.ErrInUse) {
		t.Errorf("RestoreBackup to a directory in use has error %v", err)
	}
	if err := file.Close(); err != nil {
		t.Fatal(err)
	}
}

func TestARestoreThatEndsLeavesNoData(t *testing.T) {
	dir, fresh := filled(t), t.TempDir()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := journal.RestoreBackup(ctx, filepath.Join(dir, "tenure.log"), fresh, nil); !errors.Is(err, context.Canceled) {
		t.Errorf("RestoreBackup has error %v", err)
	}
	if left, _ := os.ReadDir(fresh); len(left) > 0 {
		t.Errorf("RestoreBackup left %v", left)
	}
	below := filepath.Join(fresh, "new", "data")
	if _, err := journal.RestoreBackup(ctx, filepath.Join(dir, "tenure.log"), below, nil); !errors.Is(err, context.Canceled) {
		t.Errorf("RestoreBackup has error %v", err)
	}
	if left, _ := os.ReadDir(fresh); len(left) > 0 {
		t.Errorf("RestoreBackup left the directories that it made: %v", left)
	}
	// This one fails when it has the lock and has begun to write.
	content, err := os.ReadFile(filepath.Join(dir, "tenure.log"))
	if err != nil {
		t.Fatal(err)
	}
	content[len(content)/2]++
	damaged := filepath.Join(t.TempDir(), "damaged")
	if err := os.WriteFile(damaged, content, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, to := range []string{fresh, below} {
		if _, err := journal.RestoreBackup(t.Context(), damaged, to, nil); !errors.Is(err, journal.ErrDamaged) {
			t.Errorf("RestoreBackup of a damaged file has error %v", err)
		}
		if left, _ := os.ReadDir(fresh); len(left) > 0 {
			t.Errorf("RestoreBackup of a damaged file left %v", left)
		}
	}
	garbage := filepath.Join(t.TempDir(), "garbage")
	if err := os.WriteFile(garbage, []byte(strings.Repeat("garbage", 10_000)), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := journal.RestoreBackup(t.Context(), garbage, fresh, nil); !errors.Is(err, journal.ErrForeign) {
		t.Errorf("RestoreBackup of garbage has error %v", err)
	}
}

func TestARestoreWithoutABackupMakesNothing(t *testing.T) {
	t.Parallel()
	parent := t.TempDir()
	text := filepath.Join(parent, "text")
	if err := os.WriteFile(text, []byte("hello"), 0o600); err != nil {
		t.Fatal(err)
	}
	for backup, want := range map[string]error{filepath.Join(parent, "missing"): journal.ErrNoData, text: journal.ErrForeign} {
		dir := filepath.Join(parent, "data")
		if _, err := journal.RestoreBackup(t.Context(), backup, dir, nil); !errors.Is(err, want) || !strings.Contains(err.Error(), backup) {
			t.Errorf("RestoreBackup has error %v, want one that is %q and names %s", err, want, backup)
		}
		if _, err := os.Lstat(dir); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("RestoreBackup of %s made the directory: %v", backup, err)
		}
	}
}

// A user without rights to a directory must not be told that it has no data.
func TestDataThatCannotBeSeenIsNotCalledMissing(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	if err := os.Symlink("tenure.log", filepath.Join(dir, "tenure.log")); err != nil { // root too cannot follow it
		prerequisite.Missing(t, err.Error()) // Windows asks for a right
	}
	_, checked := journal.Check(t.Context(), dir, nil)
	exported := journal.Export(t.Context(), dir, io.Discard, nil)
	for name, err := range map[string]error{"Check": checked, "Export": exported} {
		if err == nil || errors.Is(err, journal.ErrNoData) {
			t.Errorf("%s has error %v", name, err)
		}
	}
}

func TestAnExportHasAllBytes(t *testing.T) {
	var out strings.Builder
	if err := journal.Export(t.Context(), filled(t), &out, nil); err != nil {
		t.Fatal(err)
	}
	want := []string{
		`{"kind":"identity","identity":"of the data"}`,
		`{"kind":"bound","version":"1700000000000:9:"}`,
		`{"kind":"key","key":"a","value":"1","version":"V","token":"T","lifetimeMillis":10000}`,
		`{"kind":"reply","client":"client","sequence":1,"verb":"SET","outcome":"ok","version":"1700000000000:8:StateStore"}`,
		`{"kind":"key","keyBase64":"Yv8=","valueBase64":"AP4=","version":"V","token":"T","lifetimeMillis":10000}`,
		`{"kind":"fence","key":"c","token":"T"}`,
	}
	text := strings.NewReplacer(`"V"`, `"`+version.String()+`"`, `"T"`, `"`+token.String()+`"`)
	if got, want := out.String(), text.Replace(strings.Join(want, "\n"))+"\n"; got != want {
		t.Errorf("the export is\n%s, want\n%s", got, want)
	}
	for line := range strings.Lines(out.String()) {
		if !json.Valid([]byte(line)) {
			t.Errorf("not JSON: %q", line)
		}
	}
}

// Before its first version a store has a bound, and says so.
func TestAnExportHasTheBoundOfNoVersion(t *testing.T) {
	dir := t.TempDir()
	file := open(t, dir)
	commit(t, file, statestore.Group{bound(hlc.Timestamp{})})
	if err := file.Close(); err != nil {
		t.Fatal(err)
	}
	var out strings.Builder
	if err := journal.Export(t.Context(), dir, &out, nil); err != nil || out.String() != `{"kind":"bound","version":"0:0:"}`+"\n" {
		t.Errorf("the export is %q, error %v", out.String(), err)
	}
	report, err := journal.Check(t.Context(), dir, nil)
	if err != nil || report.Bound != "0:0:" {
		t.Errorf("the report is %+v, error %v", report, err)
	}
}

// A value that is empty is there, and text with special characters stays as it is.
func TestAnExportTellsEmptyFromNone(t *testing.T) {
	dir := t.TempDir()
	file := open(t, dir)
	commit(t, file, statestore.Group{key(" ", "<&>\u2028\n")}, statestore.Group{key("empty", "")})
	if err := file.Close(); err != nil {
		t.Fatal(err)
	}
	var out strings.Builder
	if err := journal.Export(t.Context(), dir, &out, nil); err != nil {
		t.Fatal(err)
	}
	found := make(map[string]*string)
	for line := range strings.Lines(out.String()) {
		var entry struct{ Key, Value *string }
		if err := json.Unmarshal([]byte(line), &entry); err != nil || entry.Key == nil || entry.Value == nil {
			t.Fatalf("line %q: %v", line, err)
		}
		found[*entry.Key] = entry.Value
	}
	if len(found) != 2 || *found[" "] != "<&>\u2028\n" || *found["empty"] != "" {
		t.Errorf("the export is %q", out.String())
	}
}
