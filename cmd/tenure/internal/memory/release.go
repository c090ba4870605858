package memory

import (
	"context"
	"runtime/debug"
	"runtime/metrics"
	"time"
)

const (
	// interval is how often Release looks. A look takes some microseconds.
	interval = 2 * time.Second
	// worthwhile is how many bytes must have come, or gone, for a release: less is noise.
	worthwhile = 8 << 20
	// soon is when a collection that comes by itself is waited for.
	soon = 20 * time.Second
	// rest is how many times as long as a release took is the pause after it: releases
	// take at most a hundredth of the time, however large the heap is.
	rest = 100
)

// Release gives memory back to the system until ctx ends. It does so when the process has
// grown by a third since the last time and no collection is near, and when it holds much
// less than it held since then.
//
// held returns about how many bytes the process holds in what its clients can fill. Nothing
// else tells before a collection that what was in use is garbage by now. It is called every
// few seconds, by the goroutine that calls Release.
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

// reading is what is known at one time, in bytes.
type reading struct {
	at        time.Time
	resident  int64 // what the process has from the system
	allocated int64 // in all, since it started
	room      int64 // what can still be allocated before a collection
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
			return 0 // a version of Go that does not know it
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

// keeper decides when a release pays.
type keeper struct {
	resident int64     // after the last release
	peak     int64     // the most that was held since
	resting  time.Time // no release before
	last     reading
}

// note says what there is after a release, and how long that took.
func (k *keeper) note(after reading, took time.Duration) {
	*k = keeper{resident: after.resident, peak: after.held, resting: after.at.Add(rest * took), last: after}
}

// due reports whether a release pays now. It is called at each look.
func (k *keeper) due(now reading) bool {
	before := k.last
	k.last = now
	k.peak = max(k.peak, now.held)
	if now.at.Before(k.resting) {
		return false
	}
	if isMuch(k.peak-now.held, k.peak) {
		return true
	}
	return isMuch(now.resident-k.resident, k.resident) && !now.collectsSoon(before)
}

func isMuch(change, of int64) bool { return change >= worthwhile && change >= of/3 }

// collectsSoon reports whether a collection is near if allocation goes on as it did since
// an earlier reading. A busy process collects and gives back by itself.
func (r reading) collectsSoon(before reading) bool {
	passed := r.at.Sub(before.at)
	if passed <= 0 {
		return true
	}
	perSecond := float64(r.allocated-before.allocated) / passed.Seconds()
	return float64(max(r.room, 0)) < perSecond*soon.Seconds()
}
