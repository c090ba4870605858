package memory

import (
	"context"
	"runtime/debug"
	"runtime/metrics"
	"time"
)

const (
	// interval is how often Release checks. A check takes some microseconds.
	interval = 2 * time.Second
	// worthwhile is the change in bytes that justifies a release: less is noise.
	worthwhile = 8 << 20
	// soon is how near a collection must be for Release to wait for it.
	soon = 20 * time.Second
	// rest is the pause after a release, as a multiple of the time that the next one takes by estimate:
	// as much for each byte that the process has as the release before. So releases take at most a
	// hundredth of the time, however large the heap is, and one that came while clients were still
	// leaving, when the process had much, does not put off the next one for long.
	rest = 100
)

// Release returns memory to the system at intervals, until ctx ends. It does so when the
// process has grown by a third since the last release and no collection is near, and when the
// process holds much less than its peak since the last release.
//
// held estimates how many bytes of client data the process holds. Without it nothing shows
// before a collection that memory has become garbage. The goroutine that calls Release calls
// held every few seconds.
func Release(ctx context.Context, held func() int64) {
	var k keeper
	k.note(read(held), 0)
	ticker := time.NewTicker(interval)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		if k.due(read(held)) {
			begin := time.Now()
			debug.FreeOSMemory()
			k.note(read(held), time.Since(begin))
		}
	}
}

// A reading is the state of the memory at one time, in bytes.
type reading struct {
	at        time.Time
	resident  int64 // memory that the process has from the system
	allocated int64 // in total, since the start of the process
	room      int64 // that can be allocated before the next collection
	held      int64
}

func read(held func() int64) reading {
	samples := [...]metrics.Sample{
		{Name: "/memory/classes/total:bytes"},
		{Name: "/memory/classes/heap/released:bytes"},
		{Name: "/gc/heap/allocs:bytes"},
		{Name: "/gc/heap/goal:bytes"},
		{Name: "/memory/classes/heap/objects:bytes"},
	}
	metrics.Read(samples[:])
	value := func(i int) int64 {
		if samples[i].Value.Kind() != metrics.KindUint64 {
			return 0 // this version of Go has no such metric
		}
		return int64(samples[i].Value.Uint64())
	}
	return reading{
		at:        time.Now(),
		resident:  value(0) - value(1),
		allocated: value(2),
		room:      value(3) - value(4),
		held:      held(),
	}
}

// A keeper decides when a release is worthwhile.
type keeper struct {
	resident int64     // after the last release
	peak     int64     // of held, since the last release
	released time.Time // when that was
	took     time.Duration
	before   int64 // resident before it
	last     reading
}

// note records the reading after a release, and how long the release took.
func (k *keeper) note(after reading, took time.Duration) {
	*k = keeper{resident: after.resident, peak: after.held, released: after.at, took: took, before: k.last.resident, last: after}
}

// due reports whether a release is worthwhile now. Each check calls it once.
func (k *keeper) due(now reading) bool {
	before := k.last
	k.last = now
	k.peak = max(k.peak, now.held)
	if now.at.Before(k.released.Add(k.rest(now.resident))) {
		return false
	}
	if isMuch(k.peak-now.held, k.peak) {
		return true
	}
	return isMuch(now.resident-k.resident, k.resident) && !now.collectsSoon(before)
}

// rest returns the pause after the last release for a process that has so many bytes now.
func (k *keeper) rest(resident int64) time.Duration {
	pause := rest * k.took
	if resident < k.before {
		pause = time.Duration(float64(pause) * float64(max(resident, 0)) / float64(k.before))
	}
	return pause
}

func isMuch(change, of int64) bool { return change >= worthwhile && change >= of/3 }

// collectsSoon reports whether a collection is near if the process keeps allocating as it
// did since an earlier reading. A busy process collects and returns memory by itself.
func (r reading) collectsSoon(before reading) bool {
	passed := r.at.Sub(before.at)
	if passed <= 0 {
		return true
	}
	perSecond := float64(r.allocated-before.allocated) / passed.Seconds()
	return float64(max(r.room, 0)) < perSecond*soon.Seconds()
}
