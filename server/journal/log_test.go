package journal_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/tenurelock/tenure/internal/prerequisite"
	"github.com/tenurelock/tenure/server/journal"
	"github.com/tenurelock/tenure/statestore"
)

// crashedFile returns a file that a crash left after some commits, the sizes that it had after each, and
// the states.
func crashedFile(t testing.TB) (content []byte, sizes []int, states []map[string]string) {
	t.Helper()
	dir := t.TempDir()
	file := open(t, dir)
	load(t, file)
	note := func(state map[string]string) {
		t.Helper()
		content = must(os.ReadFile(filepath.Join(dir, "tenure.log")))
		sizes, states = append(sizes, len(content)), append(states, state)
	}
	note(map[string]string{})
	for i := range 6 {
		batch := []statestore.Group{
			{record("last", fmt.Sprint(i)), record(fmt.Sprint("key ", i%3), strings.Repeat("v", 30*i))},
			{record(fmt.Sprint("key ", (i+1)%3))},
		}
		commit(t, file, batch...)
		state := maps.Clone(states[i])
		apply(state, batch)
		note(state)
	}
	return content, sizes, states
}

// Each byte of a file is changed, one at a time. A file that was closed is refused. Of one that a crash
// left, the last commit may be missing, because it looks as if it had not been finished.
func TestEachChangedByteIsFound(t *testing.T) {
	crashed, sizes, states := crashedFile(t)
	closed := slices.Concat(crashed, journal.FrameThatFollows(crashed, nil))
	if found, err := journal.Scan(closed, false); err != nil || !maps.Equal(found, states[6]) {
		t.Fatalf("the sound file has the records %q, error %v", found, err)
	}
	random := rand.New(rand.NewPCG(4, 4))
	for at := range closed {
		for _, change := range []byte{1 << random.IntN(8), byte(1 + random.IntN(255)), 0xff} {
			changed := bytes.Clone(closed)
			changed[at] ^= change
			if found, err := journal.Scan(changed, false); err == nil {
				t.Fatalf("byte %d of a closed file was changed, and %d records were read", at, len(found))
			} else {
				wantRefusal(t, err)
			}
			if at >= len(crashed) {
				continue
			}
			switch found, err := journal.Scan(changed[:len(crashed)], true); {
			case at >= sizes[5]:
				if err != nil || !maps.Equal(found, states[5]) {
					t.Fatalf("byte %d, in the last commit, was changed: %d records, error %v; want the state before", at, len(found), err)
				}
			case err == nil:
				t.Fatalf("byte %d was changed, and %d records were read", at, len(found))
			default:
				wantRefusal(t, err)
			}
		}
	}
}

// What was on the disk when a process opened the file, or loaded it, or put a copy in its place, is not missing
// because of a crash later.
func TestACrashDoesNotExcuseWhatWasOnTheDiskBefore(t *testing.T) {
	cut := func(content []byte, before int) []byte { return content[:before-1] }
	for name, test := range map[string]struct {
		before func(t *testing.T, file *journal.File, dir string) (*journal.File, string)
		damage func(content []byte, before int) []byte
	}{
		"opened": {reopened, cut},
		"two heads": {reopened, func(content []byte, before int) []byte {
			content[before]++
			content[20]++
			return content
		}},
		"compacted": {func(_ *testing.T, file *journal.File, dir string) (*journal.File, string) { return file, dir }, cut},
		"loaded after a crash": {func(t *testing.T, _ *journal.File, dir string) (*journal.File, string) {
			left := killed(t, dir)
			file := open(t, left)
			load(t, file)
			return file, left
		}, cut},
	} {
		dir := t.TempDir()
		file := open(t, dir)
		load(t, file)
		for range 2 {
			commit(t, file, statestore.Group{record("a", strings.Repeat("x", 600_000))})
			awaitCompaction(t, file)
		}
		before := int(size(t, dir))
		if before > 700_000 {
			t.Fatalf("the file was not compacted: it has %d bytes", before)
		}
		file, dir = test.before(t, file, dir)
		commit(t, file, statestore.Group{record("b", "2")})
		left := killed(t, dir)
		path := filepath.Join(left, "tenure.log")
		write(t, path, test.damage(must(os.ReadFile(path)), before))
		for range 2 { // a refusal does not make it sound
			file, err := journal.Open(left, journal.Options{})
			if err != nil {
				t.Fatal(err)
			}
			_, err = file.Load(t.Context(), func(statestore.Record) error { return nil })
			if !errors.Is(err, journal.ErrDamaged) || !strings.Contains(err.Error(), "on the disk before the crash") {
				t.Errorf("%s: Load has error %v", name, err)
			}
			shut(t, file)
			if _, err := journal.Check(t.Context(), left); !errors.Is(err, journal.ErrDamaged) {
				t.Errorf("%s: Check has error %v", name, err)
			}
		}
	}
}

func reopened(t *testing.T, file *journal.File, dir string) (*journal.File, string) {
	shut(t, file)
	return open(t, dir), dir
}

// The start after a crash cuts off what is not whole, goes on behind it, and closes the file.
func TestAStartAfterACrashGoesOnBehindTheLastWholeCommit(t *testing.T) {
	crashed, sizes, states := crashedFile(t)
	for _, cut := range []int{sizes[5], sizes[5] + 1, sizes[5] + 30, len(crashed) - 1, len(crashed)} {
		for _, garbage := range []string{"", strings.Repeat("\x00", 100), strings.Repeat("\xf5\x1c\xa7\x4e", 100_000)} {
			if cut != sizes[5] && cut != len(crashed) && garbage != "" {
				continue // a commit was not finished, and the file goes on behind it: no crash leaves that
			}
			dir := afterACrash(t, append(bytes.Clone(crashed[:cut]), garbage...))
			want := maps.Clone(states[5])
			if cut == len(crashed) {
				want = maps.Clone(states[6])
			}
			report, _ := journal.Check(t.Context(), dir) // the records are not of a store
			unfinished := cut != sizes[5] && cut != len(crashed) || garbage != ""
			if unfinished != (len(report.Warnings) > 0) {
				t.Errorf("cut to %d: Check has the warnings %q", cut, report.Warnings)
			}
			for i := range 3 {
				file := open(t, dir)
				wantState(t, load(t, file), want)
				content := must(os.ReadFile(filepath.Join(dir, "tenure.log")))
				if found, err := journal.Scan(content, false); err != nil || !maps.Equal(found, want) {
					t.Fatalf("cut to %d: after the load the file has %d records, error %v; want it closed", cut, len(found), err)
				}
				batch := []statestore.Group{{record("after", fmt.Sprint(i))}}
				commit(t, file, batch...)
				apply(want, batch)
				shut(t, file)
			}
			wantState(t, load(t, open(t, dir)), want)
		}
	}
}

// A client that knows a backup can put frames of the file into a value. A crash in the middle of that
// commit does not take them for later commits.
func TestFramesInAValueAreNoLaterCommits(t *testing.T) {
	content, _, states := crashedFile(t)
	payload := append([]byte("\x01"), binary.AppendUvarint(nil, uint64(len(content))+1)...)
	frame := journal.FrameThatFollows(content, append(append(payload, 'x'), content...))
	for _, keep := range []func([]byte){
		func(frame []byte) { frame[30]++ },
		func(frame []byte) { clear(frame[:20]) },
		func(frame []byte) { clear(frame[:10]) },
	} {
		torn := bytes.Clone(frame)
		keep(torn)
		if found, err := journal.Scan(slices.Concat(content, torn), true); err != nil || !maps.Equal(found, states[6]) {
			t.Errorf("%d records were read, error %v", len(found), err)
		}
	}
}

// What a frame and its records say about their sizes is not believed, and there is no memory for it before.
// A file can have any size on a disk that has a few bytes.
func TestAForgedFileTakesLittleMemory(t *testing.T) {
	sound := must(os.ReadFile(filepath.Join(filled(t), "tenure.log")))
	long := journal.FrameThatFollows(sound, make([]byte, 289<<20))[:20] // more than a commit may have
	forged := [][]byte{long, long[:10]}
	for _, record := range []string{
		"\x00", "\x01", "\x01\x00", "\x01\x03ka", "\x02\x01k", "\x00\x00k", "\x80", "\x01\x80",
		"\x01\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01k", "\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01\x01k",
		"\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01", "\xcd\x08\x01" + strings.Repeat("x", 1101),
	} {
		forged = append(forged, journal.FrameThatFollows(sound, []byte(record)))
	}
	for i, frame := range forged {
		path := filepath.Join(t.TempDir(), "forged")
		write(t, path, slices.Concat(sound, frame))
		if i < 2 && runtime.GOOS != "windows" {
			if err := os.Truncate(path, 1<<42); err != nil {
				prerequisite.Missing(t, fmt.Sprintf("this disk has no files of this size: %v", err))
			}
		}
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		_, err := journal.Check(t.Context(), path)
		runtime.ReadMemStats(&after)
		if allocated := after.TotalAlloc - before.TotalAlloc; allocated > 2<<20 || !errors.Is(err, journal.ErrDamaged) {
			t.Errorf("%d: Check allocates %d KiB, and has error %v", i, allocated>>10, err)
		}
	}
}

// Any bytes are refused or read, also if the checks are right, as no disk makes them: and then a journal
// can go on with them.
func FuzzAnyFileIsRefusedOrRead(f *testing.F) {
	crashed, _, _ := crashedFile(f)
	f.Add([]byte{}, true, true)
	f.Add(crashed, false, true)
	f.Add(slices.Concat(crashed, journal.FrameThatFollows(crashed, []byte("\x01\x02kv"))), true, false)
	f.Add(slices.Concat(crashed, journal.FrameThatFollows(crashed, []byte("\x01\x00k\x02\x01kk")), []byte{1}), true, true)
	f.Fuzz(func(t *testing.T, content []byte, resealed, open bool) {
		if resealed {
			content = journal.Reseal(content)
		}
		found, err := journal.Scan(content, open)
		if err != nil {
			wantRefusal(t, err)
			return
		}
		goOn(t, content, found)
	})
}

// afterACrash returns a directory in which a crash has left a file.
func afterACrash(t *testing.T, content []byte) (dir string) {
	t.Helper()
	dir = t.TempDir()
	for name, content := range map[string][]byte{"tenure.log": content, "tenure.holder": nil} {
		write(t, filepath.Join(dir, name), content)
	}
	return dir
}

// goOn opens a file that was found to be sound, and commits to it.
func goOn(t *testing.T, content []byte, want map[string]string) {
	t.Helper()
	dir := afterACrash(t, content)
	file := open(t, dir)
	wantState(t, load(t, file), want)
	batch := []statestore.Group{{record("new", "1")}}
	commit(t, file, batch...)
	apply(want, batch)
	wantReloaded(t, file, dir, want)
}

func wantRefusal(t *testing.T, err error) {
	t.Helper()
	if !errors.Is(err, journal.ErrDamaged) && !errors.Is(err, journal.ErrForeign) && !errors.Is(err, journal.ErrNewer) {
		t.Fatalf("the error is %v", err)
	}
}
