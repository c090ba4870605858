package journal_test

import (
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/tenurelock/tenure/server/journal"
	"github.com/tenurelock/tenure/statestore"
)

// soundFile returns a file with branches, free pages, overflow pages and two states: the last
// one, and the one before.
func soundFile(t testing.TB) (content []byte, last, before map[string]string) {
	t.Helper()
	dir := t.TempDir()
	file := open(t, dir)
	last = make(map[string]string)
	for i := range 12 {
		var batch []statestore.Group
		for j := range 40 {
			batch = append(batch, statestore.Group{key(fmt.Sprintf("key-%03d", (i*40+j)*7%300), strings.Repeat("v", i*j%97))})
		}
		batch = append(batch, statestore.Group{key("large", strings.Repeat(fmt.Sprint(i), 9000)), keyGone(fmt.Sprintf("key-%03d", i))})
		commit(t, file, batch...)
		before = maps.Clone(last)
		apply(last, batch)
	}
	if err := file.Close(); err != nil {
		t.Fatal(err)
	}
	content, err := os.ReadFile(filepath.Join(dir, "tenure.db"))
	if err != nil {
		t.Fatal(err)
	}
	return content, last, before
}

// damage changes a file as the bytes of changes say: each five bytes are an offset and a value
// to add. The number of bytes left over cuts the file.
func damage(sound, changes []byte) []byte {
	content := append([]byte(nil), sound...)
	for ; len(changes) >= 5; changes = changes[5:] {
		at := binary.LittleEndian.Uint32(changes) % uint32(len(content))
		content[at] += changes[4]
	}
	if len(changes) > 0 {
		content = content[:len(content)*int(changes[0])/256]
	}
	return content
}

// A damaged file is refused, or has exactly what was committed. It is never read in part, and
// bbolt agrees with what is not refused.
func FuzzADamagedFileIsRefusedOrWhole(f *testing.F) {
	sound, last, before := soundFile(f)
	random := rand.New(rand.NewPCG(3, 3))
	f.Add([]byte{})
	for range 300 {
		changes := make([]byte, 5*(1+random.IntN(3))+random.IntN(20)/19)
		for i := range changes {
			changes[i] = byte(random.Uint32())
		}
		if random.IntN(2) == 0 { // in the head of a page, where it hurts
			binary.LittleEndian.PutUint32(changes, uint32(random.IntN(len(sound)/4096)*4096+random.IntN(80)))
		}
		f.Add(changes)
	}
	f.Fuzz(func(t *testing.T, changes []byte) {
		content := damage(sound, changes)
		found, err := journal.Scan(content)
		switch {
		case err == nil && !maps.Equal(found, last):
			t.Fatalf("%d records were read, not the %d that were committed", len(found), len(last))
		case err == nil:
			openSound(t, content, last)
		default:
			wantRefusal(t, err)
		}
		if found, err := journal.Salvage(content); err != nil {
			wantRefusal(t, err)
		} else if !maps.Equal(found, last) && !maps.Equal(found, before) {
			t.Fatalf("%d records were salvaged, not the %d of the last state or the %d before", len(found), len(last), len(before))
		}
	})
}

// The checksums of the meta pages are made right after the changes, as no disk does: what a
// meta page says is not believed either. No file makes the reader panic, or bbolt, which gets
// the files that are not refused.
func FuzzAForgedFileIsRefusedOrRead(f *testing.F) {
	sound, err := os.ReadFile(filepath.Join(filled(f), "tenure.db"))
	if err != nil {
		f.Fatal(err)
	}
	f.Add([]byte{})
	for _, page := range []uint32{0, 4096} {
		for field := uint32(16); field < 72; field += 4 { // of a meta page
			for _, value := range []byte{1, 2, 0x7f, 0xff} {
				f.Add(append(binary.LittleEndian.AppendUint32(nil, page+field), value))
			}
		}
	}
	f.Fuzz(func(t *testing.T, changes []byte) {
		content := damage(sound, changes)
		if len(content) >= 8192 {
			reseal(content)
			reseal(content[4096:])
		}
		if found, err := journal.Scan(content); err != nil {
			wantRefusal(t, err)
		} else {
			openSound(t, content, found)
		}
	})
}

func wantRefusal(t *testing.T, err error) {
	t.Helper()
	if !errors.Is(err, journal.ErrDamaged) && !errors.Is(err, journal.ErrForeign) && !errors.Is(err, journal.ErrNewer) {
		t.Fatalf("the error is %v", err)
	}
}

// openSound opens a file that was found to be sound, as a whole.
func openSound(t *testing.T, content []byte, want map[string]string) {
	t.Helper()
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "tenure.db"), content, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := journal.CheckBolt(filepath.Join(dir, "tenure.db")); err != nil {
		t.Fatalf("bbolt finds what the scan does not: %v", err)
	}
	file := open(t, dir)
	wantState(t, load(t, file), want)
	file.WithoutSync()
	want = maps.Clone(want)
	step := 1 + len(want)/40 // some on each page
	for i, id := range slices.Sorted(maps.Keys(want)) {
		var batch []statestore.Group
		if i%step != 0 {
			continue
		}
		switch i / step % 4 {
		case 0:
			batch = append(batch, statestore.Group{record(id)})
		case 1:
			batch = append(batch, statestore.Group{record(id+"x", "new")}, statestore.Group{record(id, "changed")})
		case 2:
			batch = append(batch, statestore.Group{record(id[:len(id)-1]+"!", "new")})
		}
		commit(t, file, batch...)
		apply(want, batch)
	}
	if err := file.Close(); err != nil {
		t.Fatal(err)
	}
	wantState(t, load(t, open(t, dir)), want)
}

// Each byte of a small file is changed, one at a time, and some of a larger one.
func TestEachChangedByteIsFoundOrDoesNotMatter(t *testing.T) {
	small, err := os.ReadFile(filepath.Join(filled(t), "tenure.db"))
	if err != nil {
		t.Fatal(err)
	}
	large, _, _ := soundFile(t)
	random := rand.New(rand.NewPCG(4, 4))
	for _, test := range []struct {
		content []byte
		step    int
	}{{small, 1}, {large, 1 + len(large)/5000}} {
		want, err := journal.Scan(test.content)
		if err != nil {
			t.Fatal(err)
		}
		tried, refused := 0, 0
		for at := 0; at < len(test.content); at += 1 + random.IntN(2*test.step-1) {
			tried++
			former := test.content[at]
			test.content[at] ^= 1 << random.IntN(8)
			found, err := journal.Scan(test.content)
			test.content[at] = former
			if err != nil {
				refused++
				wantRefusal(t, err)
			} else if !maps.Equal(found, want) {
				t.Fatalf("byte %d was changed, and %d records were read, not the %d that were committed", at, len(found), len(want))
			}
		}
		t.Logf("a file of %d bytes: %d of %d changes were refused", len(test.content), refused, tried)
	}
}

// bbolt finds a page in its parent by the page's first key. Another key that separates the pages
// as well does no harm to reading, and its own check accepts it; a commit would add the page a
// second time.
func TestABranchWithAnotherKeyIsRefused(t *testing.T) {
	dir := t.TempDir()
	file := open(t, dir)
	var batch []statestore.Group
	for i := range 500 {
		batch = append(batch, statestore.Group{record(fmt.Sprintf("key-%04d", 10*i), strings.Repeat("x", 100))})
	}
	commit(t, file, batch...)
	if err := file.Close(); err != nil {
		t.Fatal(err)
	}
	sound, err := os.ReadFile(filepath.Join(dir, "tenure.db"))
	if err != nil {
		t.Fatal(err)
	}
	order := binary.NativeEndian
	changed := 0
	for at := 2 * 4096; at < len(sound); at += 4096 {
		page := sound[at : at+4096]
		if order.Uint16(page[8:]) != 1 || order.Uint64(page) != uint64(at/4096) { // not a branch
			continue
		}
		for i := 1; i < int(order.Uint16(page[10:])); i++ {
			element := page[16+16*i:]
			last := order.Uint32(element) + order.Uint32(element[4:]) - 1 // of the key
			element[last]--                                               // the 0 becomes a /
			_, err := journal.Scan(sound)
			element[last]++
			if err == nil {
				continue // an old page, which is free
			}
			changed++
			if !errors.Is(err, journal.ErrDamaged) || !strings.Contains(err.Error(), "begins with another key") {
				t.Errorf("branch %d, key %d: the error is %v", at/4096, i, err)
			}
		}
	}
	if changed < 5 {
		t.Errorf("%d changed keys were refused; the file has more", changed)
	}
}
