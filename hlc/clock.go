package hlc

import (
	"errors"
	"fmt"
	"math"
	"sync"
	"time"
)

// defaultMaxSkew is the skew that the protocol allows (docs/protocol.md §1.1 and §3.4).
const defaultMaxSkew = time.Minute

// ErrSkew matches the error of [Clock.Update] for a remote timestamp that is too far
// ahead. The error is a [*SkewError].
var ErrSkew = errors.New("hlc: clock skew beyond the limit")

// A SkewError says that [Clock.Update] refused a timestamp because it is too far ahead of
// this node's physical clock. Either of the two clocks may be wrong.
type SkewError struct {
	Remote   Timestamp     // the refused timestamp
	Physical time.Time     // this node's clock: UTC, in whole milliseconds
	Ahead    time.Duration // from Physical to Remote.Wall; the largest Duration if it is longer
	Limit    time.Duration // MaxSkew of the clock
}

// Error says which clock is ahead, by how much, and what to do.
func (e *SkewError) Error() string {
	return fmt.Sprintf("hlc: the clock of node %.64q is %v ahead of this node's clock, which reads %s; the limit is %v: "+
		"synchronize the system clocks of both nodes",
		e.Remote.Node, e.Ahead, e.Physical.Format(time.RFC3339Nano), e.Limit)
}

// Is reports whether target is [ErrSkew].
func (e *SkewError) Is(target error) bool {
	return target == ErrSkew
}

// ClockOptions are the settings of a [Clock]. The zero value is ready for use.
type ClockOptions struct {
	// Now reads the physical clock; nil means time.Now. It may step back, and times
	// before 1970 count as 1970. It is called by several goroutines at once, without a
	// lock.
	Now func() time.Time

	// MaxSkew is how far ahead of the physical clock a remote timestamp may be for
	// Update to accept it, and so how far a peer can push this clock. Zero means one
	// minute, the limit of the protocol. It cannot be negative.
	MaxSkew time.Duration
}

// A Clock is the hybrid logical clock of one node. It never goes back, whatever the
// physical clock does. It is safe for concurrent use.
type Clock struct {
	node    string
	now     func() time.Time
	maxSkew time.Duration

	mu   sync.Mutex // not held while now is called: that is the user's code
	last Timestamp  // wall clock and counter are 0 before the first event
}

// NewClock returns the clock of the node with the given id.
//
// The id is the third field of the text form. It is valid UTF-8 of 1 to 983 bytes without
// colons and control characters; any other is an error. No other node should have it. An
// MQTT client id is a good choice, but it may contain colons: replace those.
func NewClock(node string, options ClockOptions) (*Clock, error) {
	if fault := nodeFault(node); fault != "" {
		return nil, fmt.Errorf("hlc: new clock: node %.64q %s", node, fault)
	}
	if options.MaxSkew < 0 {
		return nil, fmt.Errorf("hlc: new clock: MaxSkew %v is negative", options.MaxSkew)
	}
	if options.Now == nil {
		options.Now = time.Now
	}
	if options.MaxSkew == 0 {
		options.MaxSkew = defaultMaxSkew
	}
	return &Clock{
		node:    node,
		now:     options.Now,
		maxSkew: options.MaxSkew,
		last:    Timestamp{Node: node},
	}, nil
}

// Now returns the timestamp of a local event, or of a message to send. It is greater than
// every timestamp that Now or Update returned or merged before. On error, which matches
// [ErrCounterOverflow], the clock is unchanged.
func (c *Clock) Now() (Timestamp, error) { return c.Update(Timestamp{}) }

// Update merges a timestamp that came from another node, and returns the timestamp of its
// receipt: greater than remote and than every timestamp that this clock returned before.
// For the zero timestamp it does the same as Now.
//
// It refuses a timestamp more than [ClockOptions.MaxSkew] ahead of the physical clock with
// a [*SkewError], and never one that is behind. It returns an error that matches
// [ErrCounterOverflow] for a counter that is too large, as [Merge] describes. On error the
// clock is unchanged, and remote may still be used as data.
func (c *Clock) Update(remote Timestamp) (Timestamp, error) {
	wall := max(c.now().UnixMilli(), 0)
	physical := time.UnixMilli(wall).UTC()
	if ahead := time.UnixMilli(remote.Wall).Sub(physical); ahead > c.maxSkew { // Sub saturates
		return Timestamp{}, &SkewError{Remote: remote, Physical: physical, Ahead: ahead, Limit: c.maxSkew}
	}

	// Another goroutine may have moved the clock past wall by now. That does no harm:
	// the rule takes the later of the two and increments the counter.
	c.mu.Lock()
	defer c.mu.Unlock()
	next, err := Merge(c.last, remote, wall)
	if err != nil {
		return Timestamp{}, err
	}
	c.last = next
	return next, nil
}

// ErrCounterOverflow matches the errors of [Tick], [Merge] and the methods of [Clock]
// when the counter would overflow, or when a remote counter is so large that it might
// soon; see [Merge]. Try again when physical time has passed the wall clock of the last
// timestamp.
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
// Merge adopts any wall clock. [Clock.Update] limits how far ahead it may be.
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
