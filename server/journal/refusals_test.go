package journal_test

import (
	"bytes"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/tenurelock/tenure/server/journal"
	"github.com/tenurelock/tenure/statestore"
)

func TestOpenRefusesWhatIsNotItsFile(t *testing.T) {
	sound, err := os.ReadFile(filepath.Join(filled(t), "tenure.log"))
	if err != nil {
		t.Fatal(err)
	}
	change := func(changed func(content []byte) []byte) []byte { return changed(bytes.Clone(sound)) }
	follow := func(payload string) []byte {
		return slices.Concat(sound, journal.FrameThatFollows(sound, []byte(payload)))
	}
	for _, test := range []struct {
		name    string
		content []byte
		is      error
		says    string
	}{
		{"an empty file", nil, journal.ErrDamaged, "cut short"},
		{"a text", []byte("hello"), journal.ErrForeign, "use another directory"},
		{"a longer text", []byte(strings.Repeat("hello ", 10_000)), journal.ErrForeign, "use another directory"},
		{"zeros", make([]byte, 1<<16), journal.ErrForeign, "use another directory"},
		{"the first byte", sound[:1], journal.ErrDamaged, "cut short"},
		{"a part of the head", sound[:19], journal.ErrDamaged, "cut short"},
		{"the head", sound[:20], journal.ErrDamaged, "it does not have its end"},
		{"half of the file", sound[:len(sound)/2], journal.ErrDamaged, "it does not have its end"},
		{"all but the closing frame", sound[:len(sound)-24], journal.ErrDamaged, "it does not have its end"},
		{"all but a byte", sound[:len(sound)-1], journal.ErrDamaged, "it does not have its end"},
		{"a byte too many", append(bytes.Clone(sound), 0), journal.ErrDamaged, "it does not have its end"},
		{"a commit behind the closing frame", follow("\x01\x02ka"), journal.ErrDamaged, "it does not have its end"},
		{"two closing frames", slices.Concat(sound, sound[len(sound)-24:]), journal.ErrDamaged, "it does not have its end"},
		{"a newer format", journal.Reseal(change(func(c []byte) []byte { c[11] = 2; return c })), journal.ErrNewer, "format 2"},
		{"a damaged format", change(func(c []byte) []byte { c[11] = 2; return c }), journal.ErrDamaged, "checksum"},
		{"a damaged salt", change(func(c []byte) []byte { c[13]++; return c }), journal.ErrDamaged, "checksum"},
		{"a hole", change(func(c []byte) []byte { clear(c[60:100]); return c }), journal.ErrDamaged, "is not the last one"},
		{"a hole over a head", change(func(c []byte) []byte { clear(c[20:40]); return c }), journal.ErrDamaged, "is not readable"},
		{"a commit that is missing", change(func(c []byte) []byte { return slices.Delete(c, 20, len(c)-24) }), journal.ErrDamaged, "is not readable"},
	} {
		t.Run(test.name, func(t *testing.T) {
			dir := t.TempDir()
			path := filepath.Join(dir, "tenure.log")
			write(t, path, test.content)
			file, err := journal.Open(dir, journal.Options{})
			if err == nil {
				_, err = file.Load(t.Context(), func(statestore.Record) error { return nil })
				if again := file.Commit(t.Context(), nil); !errors.Is(again, err) {
					t.Errorf("Commit after Load has error %v, want %v", again, err)
				}
				shut(t, file)
			}
			if !errors.Is(err, test.is) || !strings.Contains(err.Error(), path) || !strings.Contains(err.Error(), test.says) || strings.Count(err.Error(), "journal: ") != 1 {
				t.Errorf("the error is %v; want one that is %q, names %s, and says %q", err, test.is, path, test.says)
			}
			if _, err := journal.Check(t.Context(), dir); !errors.Is(err, test.is) {
				t.Errorf("Check has error %v", err)
			}
			if after, _ := os.ReadFile(path); string(after) != string(test.content) {
				t.Error("the file was changed")
			}
			if _, err := os.Stat(filepath.Join(dir, "tenure.holder")); !errors.Is(err, fs.ErrNotExist) {
				t.Errorf("the name of the holder was left: %v", err)
			}
		})
	}
}

// The other file may be the journal under another name: its data would seem to be lost.
func TestOpenBeginsNoJournalBesideOtherFiles(t *testing.T) {
	dir := filled(t)
	path := filepath.Join(dir, "tenure.log")
	if err := errors.Join(os.Rename(path, path+".1"), os.Mkdir(filepath.Join(dir, "lost+found"), 0o700)); err != nil {
		t.Fatal(err)
	}
	_, err := journal.Open(dir, journal.Options{})
	if !errors.Is(err, journal.ErrForeign) || !strings.Contains(err.Error(), path+".1") {
		t.Errorf("Open: %v; want ErrForeign and the file", err)
	}
	if err := os.Remove(path + ".1"); err != nil {
		t.Fatal(err)
	}
	open(t, dir)
}

// What a process left that was killed refuses nothing.
func TestWhatADeadProcessLeftIsRemoved(t *testing.T) {
	t.Parallel()
	dir := filled(t)
	leave := func(name, content string) {
		t.Helper()
		write(t, filepath.Join(dir, name), []byte(content))
	}
	leave("tenure.log.new", "half a copy")
	leave("tenure.lock", "whatever an older version wrote: 1")
	leave("tenure.holder", `{"pid":1,"host":""}`)
	file := open(t, dir)
	load(t, file)
	if _, err := os.Stat(filepath.Join(dir, "tenure.log.new")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("tenure.log.new is still there: %v", err)
	}
	for content, want := range map[string]string{`{"pid":7,"host":"elsewhere"}`: "process 7 on host elsewhere", "": "another process", "1": "another process"} {
		leave("tenure.holder", content)
		if _, err := journal.Open(dir, journal.Options{}); !errors.Is(err, journal.ErrInUse) || !strings.Contains(err.Error(), "in use by "+want) {
			t.Errorf("with %q Open has error %v, want %q", content, err, want)
		}
	}
}

func must[T any](value T, err error) T {
	if err != nil {
		panic(err)
	}
	return value
}
