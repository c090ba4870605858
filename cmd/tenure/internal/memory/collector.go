package memory

import (
	"math"
	"os"
	"runtime/debug"
	"sync/atomic"
)

const (
	// maxSpare is how much garbage a process with a small heap may have, in bytes, before the
	// collector runs.
	maxSpare = 32 << 20
	// spareShare divides the limit: at most an eighth of it may be such garbage.
	spareShare = 8
	// limitRoom divides the limit too: the collector's limit is a quarter of it higher.
	limitRoom = 4
)

// ballast is memory that is never read or written; nil: there is none. It counts as heap, but the
// system gives no memory for it.
var ballast atomic.Pointer[[]byte]

// ballastBytes returns how much of the heap takes nothing from the system.
func ballastBytes() int64 {
	if b := ballast.Load(); b != nil {
		return int64(len(*b))
	}
	return 0
}

// Configure makes the collector run less often while the heap is small, and harder near limit, which
// is how many bytes the process should use at most; 0: there is no such limit. It changes nothing
// that the environment sets: GOGC, or GOMEMLIMIT. A later call replaces an earlier one. Configure is
// safe for concurrent use.
//
// Go collects when the heap has doubled, and a heap of 2 MB doubles twelve times a second if ten
// thousand leases are renewed. Each collection takes up to half of the processors for some
// milliseconds, and so is what the slowest requests wait for. A few megabytes more of garbage are
// cheaper.
//
// A ballast is the simplest way to allow them. A larger GOGC would also let a heap of 200 MB grow to a
// multiple, which a gateway does not have, unless something sets it anew after each collection. A memory
// limit without GOGC would have no effect on a process far below the limit.
func Configure(limit int64) {
	limitFromEnvironment := os.Getenv("GOMEMLIMIT") != ""
	spare := spareBelow(limit)
	if os.Getenv("GOGC") != "" || limitFromEnvironment {
		spare = 0
	}
	if spare != ballastBytes() {
		// It has no pointers, so the collector does not read it. And at the start of a process it comes
		// from the system as it is, so the runtime does not clear it.
		untouched := make([]byte, spare)
		ballast.Store(&untouched)
	}
	if limit > 0 && !limitFromEnvironment {
		debug.SetMemoryLimit(collectorLimit(limit, spare))
	}
}

// spareBelow returns how many bytes of garbage a process may have besides what Go allows.
func spareBelow(limit int64) int64 {
	if limit <= 0 {
		return maxSpare
	}
	return min(maxSpare, limit/spareShare)
}

// collectorLimit returns the limit near which the collector works harder. It leaves room beyond the
// memory in use, because the collector would otherwise take up to half of the processor time
// permanently. The ballast counts, but takes nothing from the system.
func collectorLimit(limit, ballast int64) int64 {
	return limit + min(limit/limitRoom+ballast, math.MaxInt64-limit)
}
