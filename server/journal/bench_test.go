package journal_test

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/tenurelock/tenure/server/journal"
	"github.com/tenurelock/tenure/statestore"
)

// fill commits n keys with values of 32 bytes.
func fill(b *testing.B, file *journal.File, n int) {
	b.Helper()
	load(b, file)
	for i := 0; i < n; {
		var batch []statestore.Group
		for ; len(batch) < 10_000 && i < n; i++ {
			name := fmt.Sprintf("line-%d/machine-%d/active", i%100, i)
			batch = append(batch, statestore.Group{key(name, "gateway-0123456789abcdef01234567")})
		}
		commit(b, file, batch...)
	}
}

// BenchmarkLoad measures Open and Load of so many keys.
func BenchmarkLoad(b *testing.B) {
	for _, n := range []int{100_000, 1_000_000} {
		b.Run(fmt.Sprintf("keys=%d", n), func(b *testing.B) {
			dir := b.TempDir()
			file := open(b, dir)
			fill(b, file, n)
			if err := file.Close(); err != nil {
				b.Fatal(err)
			}
			info, err := os.Stat(filepath.Join(dir, "tenure.log"))
			if err != nil {
				b.Fatal(err)
			}
			for b.Loop() {
				file, err := journal.Open(dir, journal.Options{})
				if err != nil {
					b.Fatal(err)
				}
				loaded := 0
				if _, err := file.Load(b.Context(), func(statestore.Record) error { loaded++; return nil }); err != nil || loaded != n {
					b.Fatal(loaded, err)
				}
				if err := file.Close(); err != nil {
					b.Fatal(err)
				}
			}
			b.ReportMetric(float64(info.Size())/1e6, "MB")
		})
	}
}
