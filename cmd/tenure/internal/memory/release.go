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
)

// Release returns memory to the system until ctx ends, each time that the process has grown by a third. A busy
// process, which collects soon, returns memory by itself.
func Release(ctx context.Context) {
	last := read()
	least := last.resident
	for sleep.For(ctx, interval) {
		now := read()
		least = min(least, now.resident)
		grown := now.resident - least
		if grown >= max(worthwhile, least/3) && now.left > soon*(now.allocated-last.allocated) {
			began := time.Now()
			debug.FreeOSMemory()
			if !sleep.For(ctx, pause*time.Since(began)) {
				return
			}
			now = read()
			least = now.resident
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
