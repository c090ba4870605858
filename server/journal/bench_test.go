package journal_test

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

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
			batch = append(batch, statestore.Group{benchmarkKey(i)})
		}
		commit(b, file, batch...)
	}
}

func benchmarkKey(i int) statestore.Record {
	return key(fmt.Sprintf("line-%d/machine-%d/active", i%100, i), "gateway-0123456789abcdef01234567")
}

// BenchmarkCommit measures a commit of so many changes of existing keys, each with the sync of
// a real disk, in a journal of 10,000 keys.
func BenchmarkCommit(b *testing.B) {
	for _, size := range []int{1, 16, 64, 256} {
		b.Run(fmt.Sprintf("groups=%d", size), func(b *testing.B) {
			dir := b.TempDir()
			file := open(b, dir)
			fill(b, file, 10_000)
			if err := file.Close(); err != nil {
				b.Fatal(err)
			}
			file = open(b, dir)
			load(b, file)
			random := rand.New(rand.NewPCG(1, 1))
			b.ReportAllocs()
			for b.Loop() {
				batch := make([]statestore.Group, size)
				for i := range batch {
					batch[i] = statestore.Group{benchmarkKey(random.IntN(10_000))}
				}
				commit(b, file, batch...)
			}
			b.ReportMetric(float64(b.N*size)/b.Elapsed().Seconds(), "groups/s")
		})
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

// BenchmarkChurn measures commits in a journal of so many keys while 150 MB are written and deleted,
// which makes it compact the file.
func BenchmarkChurn(b *testing.B) {
	for _, n := range []int{100_000, 400_000} {
		b.Run(fmt.Sprintf("keys=%d", n), func(b *testing.B) {
			var took []time.Duration
			for b.Loop() {
				dir := b.TempDir()
				file := open(b, dir)
				fill(b, file, n)
				if err := file.Close(); err != nil {
					b.Fatal(err)
				}
				file = open(b, dir)
				load(b, file)
				took = append(took, churn(b, file, n)...)
				if err := file.Close(); err != nil {
					b.Fatal(err)
				}
			}
			slices.Sort(took)
			for _, share := range []float64{0.5, 0.99, 1} {
				b.ReportMetric(1000*took[int(share*float64(len(took)-1))].Seconds(), fmt.Sprintf("ms/p%.0f", 100*share))
			}
		})
	}
}

// churn writes 150 MB in values of 10 kB, deletes them, and goes on with changes of n keys. It returns how
// long each commit took.
func churn(b *testing.B, file *journal.File, n int) (took []time.Duration) {
	value := strings.Repeat("x", 10_000)
	random := rand.New(rand.NewPCG(1, 1))
	submit := func(batch ...statestore.Group) {
		batch = append(batch, statestore.Group{benchmarkKey(random.IntN(n))})
		start := time.Now()
		commit(b, file, batch...)
		took = append(took, time.Since(start))
	}
	const large, each = 15_000, 10
	for i := 0; i < large; i += each {
		var batch []statestore.Group
		for j := range each {
			batch = append(batch, statestore.Group{key(fmt.Sprint("large/", i+j), value)})
		}
		submit(batch...)
	}
	for i := 0; i < large; i += each {
		var batch []statestore.Group
		for j := range each {
			batch = append(batch, statestore.Group{keyGone(fmt.Sprint("large/", i+j))})
		}
		submit(batch...)
	}
	for range 2000 {
		submit()
	}
	return took
}
