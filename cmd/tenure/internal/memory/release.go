// Package memory returns unused memory to the operating system.
//
// Go's collector runs when the heap has doubled, or after two minutes, and returns freed
// memory to the system little by little. So a server keeps the memory that a burst of clients
// needed. [Release] checks every few seconds whether it could return much, and then collects and
// returns it at once.
//
// That concerns the whole process, so it is for commands. A library must not do it: the
// program around it may have a large heap of its own, which each collection would scan.
package memory

import (
	"context"
	"runtime/debug"
	"runtime/metrics"
	"time"

	"github.com/tenurelock/tenure/internal/sleep"
)

const (
	// interval is how often Release checks. A check takes some microseconds.
	interval = 2 * time.Second
	// worthwhile is the growth in bytes that justifies a release: less is noise.
	worthwhile = 8 << 20
	// soon is how many intervals ahead a collection must be for Release to wait for it.
	soon = 10
	// pause is the least time between two releases, as a multiple of the time that one takes.
	pause = 100
	// longest is the pause between two releases that return little. Go collects as often by itself.
	longest = 2 * time.Minute
)

// Release returns memory to the system until ctx ends: each time that the process has grown by a third, and after
// that from time to time, while it has a third more than it ever needed at least. It does so less and less often
// while nothing comes of it: what is in use cannot be told from what clients that have left have left behind. A
// busy process, which collects soon, returns memory by itself.
func Release(ctx context.Context) {
	last := read()
	least, released := last.resident, last.resident
	rest, next := interval, time.Now()
	for sleep.For(ctx, interval) {
		now := read()
		least, released = min(least, now.resident), min(released, now.resident)
		more := func(than int64) bool { return now.resident-than >= max(worthwhile, than/3) }
		due := more(released) || more(least) && !time.Now().Before(next)
		if due && now.left > soon*(now.allocated-last.allocated) {
			began := time.Now()
			debug.FreeOSMemory()
			took := time.Since(began)
			released = read().resident
			if rest = min(2*rest, longest); now.resident-released >= worthwhile {
				rest = interval
			}
			next = time.Now().Add(max(rest, pause*took))
			if !sleep.For(ctx, pause*took) {
				return
			}
			now = read()
		}
		last = now
	}
}

// usage is the state of the memory at one time, in bytes.
type usage struct {
	resident  int64 // memory that the process has from the system
	allocated int64 // in total, since the start of the process
	left      int64 // that can be allocated before the next collection
}

func read() usage {
	samples := [...]metrics.Sample{
		{Name: "/memory/classes/total:bytes"},
		{Name: "/memory/classes/heap/released:bytes"},
		{Name: "/gc/heap/allocs:bytes"},
		{Name: "/gc/heap/goal:bytes"},
		{Name: "/memory/classes/heap/objects:bytes"},
	}
	metrics.Read(samples[:])
	value := func(i int) int64 { return int64(samples[i].Value.Uint64()) }
	return usage{resident: value(0) - value(1), allocated: value(2), left: value(3) - value(4)}
}
