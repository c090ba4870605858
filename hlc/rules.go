package hlc

import (
	"errors"
	"fmt"
	"math"
)

// ErrCounterOverflow matches the errors of [Tick] and [Merge] when the counter would overflow, or when a remote
// counter is so large that it might soon; see [Merge]. Try again when physical time has passed the wall clock of the
// last timestamp.
var ErrCounterOverflow = errors.New("hlc: counter overflow")

// maxRemoteCounter is the lowest remote counter that [Merge] does not adopt. The limit is
// this package's own: neither the paper nor the protocol has one.
//
// Without it a peer could send a millisecond within the skew limit with a counter of 2^64-2.
// After the merge, every event of the receiver would fail until its physical clock had passed
// that millisecond. With it, a receiver has at least 2^63-1 events left, more than any node
// can issue in the time. Its peers do not adopt the counters above the limit that it issues
// meanwhile. That costs them the update of a clock and nothing else, so a refused merge is no
// reason to drop the message that brought the timestamp.
const maxRemoteCounter uint64 = 1 << 63

// Tick returns the timestamp of the next local event, or of a message to send (HLC
// section 3). last is the timestamp of the event before; before the first event it has a
// Node and nothing else. wall is the physical clock in milliseconds since the Unix epoch;
// a negative one counts as 0.
//
// The result has the Node of last and is greater than last, even if wall is behind it. On
// error, which matches [ErrCounterOverflow], Tick returns last.
func Tick(last Timestamp, wall int64) (Timestamp, error) {
	wall = max(last.Wall, wall, 0)
	if wall > last.Wall {
		return Timestamp{Wall: wall, Node: last.Node}, nil
	}
	return increment(last, wall, last.Counter)
}

// Merge returns the timestamp of the receipt of remote (HLC section 3). last and wall mean
// the same as for [Tick]. If remote is the zero timestamp, Merge does the same as Tick.
//
// The result has the Node of last and is greater than both last and remote. On error,
// which matches [ErrCounterOverflow], Merge returns last.
//
// Merge adopts the counter of remote if remote has the latest wall clock of the three and
// last has not reached that counter in the same millisecond. Only then is a counter of
// 2^63 or more an error. Otherwise the counter has no effect, so an odd timestamp from the
// past does no harm.
//
// Merge adopts any wall clock. The caller limits how far ahead it may be.
func Merge(last, remote Timestamp, wall int64) (Timestamp, error) {
	wall = max(last.Wall, remote.Wall, wall, 0)
	switch {
	case remote.Wall == wall && (last.Wall < wall || last.Counter < remote.Counter):
		if remote.Counter >= maxRemoteCounter {
			return last, fmt.Errorf("%w: node %.64q sent counter %d, the limit is %d",
				ErrCounterOverflow, remote.Node, remote.Counter, maxRemoteCounter)
		}
		return increment(last, wall, remote.Counter)
	case last.Wall == wall:
		return increment(last, wall, last.Counter)
	}
	return Timestamp{Wall: wall, Node: last.Node}, nil
}

// increment returns the timestamp of last's node that follows counter at wall.
func increment(last Timestamp, wall int64, counter uint64) (Timestamp, error) {
	if counter == math.MaxUint64 {
		return last, fmt.Errorf("%w: no counter is left at wall clock %d", ErrCounterOverflow, wall)
	}
	return Timestamp{Wall: wall, Counter: counter + 1, Node: last.Node}, nil
}
