package journal_test

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/tenurelock/tenure/internal/prerequisite"
	"github.com/tenurelock/tenure/server/journal"
	"github.com/tenurelock/tenure/statestore"
)

// allocated returns how many bytes do allocates.
func allocated(do func()) uint64 {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	do()
	runtime.ReadMemStats(&after)
	return after.TotalAlloc - before.TotalAlloc
}

// A file can have any size, and its meta pages any number of pages, on a disk that has a few of
// them. What a check or a restore takes depends on what is there.
func TestAFileOfHolesTakesLittleMemory(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("there a file of this size needs a disk of this size")
	}
	content, err := os.ReadFile(filepath.Join(filled(t), "tenure.db"))
	if err != nil {
		t.Fatal(err)
	}
	const pages = 1 << 30 // 4 TiB
	for _, page := range [][]byte{content, content[4096:]} {
		binary.NativeEndian.PutUint64(page[16+40:], pages)
		reseal(page)
	}
	forged := filepath.Join(t.TempDir(), "forged")
	if err := os.WriteFile(forged, content, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(forged, pages*4096); err != nil {
		prerequisite.Missing(t, fmt.Sprintf("this disk has no files of this size: %v", err))
	}
	var report journal.Report
	if bytes := allocated(func() { report, err = journal.Check(t.Context(), forged, nil) }); bytes > 8<<20 {
		t.Errorf("Check allocates %d MiB", bytes>>20)
	}
	if err != nil || report.Keys != 2 || report.Bytes != pages*4096 {
		t.Errorf("the report is %+v, error %v", report, err)
	}
	restored := filepath.Join(t.TempDir(), "restored")
	if bytes := allocated(func() { report, err = journal.RestoreBackup(t.Context(), forged, restored, nil) }); bytes > 64<<20 {
		t.Errorf("RestoreBackup allocates %d MiB", bytes>>20)
	}
	if err != nil || report.Keys != 2 || report.Bytes > 1<<20 {
		t.Errorf("the report is %+v, error %v", report, err)
	}
}

// A page that continues says how far. It is not believed, and there is no memory for it before.
func TestAPageThatContinuesTooFarIsRefused(t *testing.T) {
	dir := t.TempDir()
	file := open(t, dir)
	commit(t, file, statestore.Group{key("a", strings.Repeat("x", 30_000))})
	if err := file.Close(); err != nil {
		t.Fatal(err)
	}
	sound, err := os.ReadFile(filepath.Join(dir, "tenure.db"))
	if err != nil {
		t.Fatal(err)
	}
	const more = 1 << 18 // pages: 1 GiB
	for _, page := range [][]byte{sound, sound[4096:]} {
		if end := binary.NativeEndian.Uint64(page[16+40:]); end < more {
			binary.NativeEndian.PutUint64(page[16+40:], more)
			reseal(page)
		}
	}
	order := binary.NativeEndian
	tried := 0
	for at := 2 * 4096; at < len(sound); at += 4096 {
		page := sound[at : at+4096]
		if overflow := order.Uint32(page[12:]); order.Uint64(page) != uint64(at/4096) || overflow != 7 {
			continue
		}
		for _, change := range []struct {
			overflow, value uint32
			entries         uint16
		}{
			{6, 0, 1}, {8, 0, 1}, {more / 2, 0, 1}, // the entry needs seven more
			{1<<32 - 1, 0, 1},
			{more / 2, more / 2 * 4096, 1},   // it says that it has 512 MiB
			{900 << 20 / 4096, 900 << 20, 1}, // more than a packet of MQTT has
			{7, 0, 1000}, {7, 0, 4},
		} {
			forged := append([]byte(nil), sound...)
			page := forged[at : at+4096]
			order.PutUint32(page[12:], change.overflow)
			order.PutUint16(page[10:], change.entries)
			if change.value > 0 {
				order.PutUint32(page[16+12:], change.value)
			}
			path := filepath.Join(t.TempDir(), "forged")
			if err := errors.Join(os.WriteFile(path, forged, 0o600), os.Truncate(path, more*4096)); err != nil {
				prerequisite.Missing(t, fmt.Sprintf("this disk has no files of this size: %v", err))
			}
			var err error
			if bytes := allocated(func() { _, err = journal.Check(t.Context(), path, nil) }); bytes > 1<<20 {
				t.Errorf("%+v: Check allocates %d KiB", change, bytes>>10)
			}
			if !errors.Is(err, journal.ErrDamaged) {
				t.Errorf("%+v: Check has error %v", change, err)
			}
			tried++
		}
	}
	if tried == 0 {
		t.Error("the file has no page that continues for seven")
	}
}
