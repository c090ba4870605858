package activity

import (
	"slices"
	"time"
)

const (
	// keptGaps is how many of the latest gaps between renewals decide what is usual, and knownGaps how
	// many must be known first: package lease renews for the first time after half of its interval or
	// more, and then at the end of each.
	keptGaps, knownGaps = 8, 2
	// burst: a gap that is shorter than this part of the lifetime says nothing of the interval. Package
	// lease acquires with two requests at once, and a client that had no answer tries again soon.
	burst = 16
	// lateFactor is how many times the usual interval a renewal may take before it counts as missed,
	// besides lateSlack.
	lateFactor, lateSlack = 1.5, 20 * time.Millisecond
	// newPattern is how many late renewals in a row are a new usual interval.
	newPattern = 3
)

// rhythm is what the model knows about the renewals of one holder. A lease does not say how often it is
// renewed, so the longest of the latest gaps that were not late stands for the interval. The zero value
// knows no gap.
type rhythm struct {
	gaps  [keptGaps]time.Duration
	count int // of gaps, since the beginning
	late  int // gaps in a row that were late
}

// every returns the usual time between two renewals; 0: not known yet.
func (r *rhythm) every() time.Duration {
	if r.count < knownGaps {
		return 0
	}
	return slices.Max(r.gaps[:])
}

// note notes the time between two renewals of a lease with some lifetime, and returns how many renewals
// are missing between them.
func (r *rhythm) note(gap, ttl time.Duration) (missed uint64) {
	if gap <= 0 || gap < ttl/burst {
		return 0
	}
	if r.isLate(gap) {
		missed = r.missing(min(gap, ttl)) // a longer gap lacks events: the lease would have ended
		if r.late++; r.late < newPattern {
			return missed
		}
		*r = rhythm{gaps: [keptGaps]time.Duration{gap}, count: knownGaps - 1}
	}
	r.gaps[r.count%keptGaps] = gap
	r.count++
	r.late = 0
	return missed
}

// isLate reports whether a renewal is missing after some time without one.
func (r *rhythm) isLate(gap time.Duration) bool {
	every := r.every()
	return every > 0 && float64(gap) > lateFactor*float64(every)+float64(lateSlack)
}

// missing returns how many renewals are missing between two with a late gap.
func (r *rhythm) missing(gap time.Duration) uint64 {
	every := r.every()
	return uint64(max(1, (gap+every/2)/every-1))
}
