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

// ErrSkew is what errors.Is finds in the error of [Clock.Update] when a remote
// timestamp is too far ahead. The error is a [*SkewError].
var ErrSkew = errors.New("hlc: clock skew beyond the limit")

// A SkewError says that [Clock.Update] refused a timestamp because it is too far
// ahead of this node's physical clock, and by how much. It cannot tell which of the
// two clocks is wrong.
type SkewError struct {
	Remote   Timestamp     // what was refused
	Physical time.Time     // this node's clock as it was used: UTC, in whole milliseconds
	Ahead    time.Duration // from Physical to Remote.Wall; the largest Duration if it is longer
	Limit    time.Duration // the MaxSkew of the clock
}

// Error says who is ahead of whom, by how much, and what to do about it.
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
	// Now reads the physical clock; nil means time.Now. It may step back, and
	// times before 1970 count as 1970. It may be called by several goroutines at
	// once, and holds up nobody but its caller.
	Now func() time.Time

	// MaxSkew is how far ahead of the physical clock a remote timestamp may be
	// for Update to accept it, and so how far a peer can push this clock. Zero
	// means one minute, the limit of the protocol. It cannot be negative.
	MaxSkew time.Duration
}

// A Clock is the hybrid logical clock of one node. It never goes back, whatever
// the physical clock does. Its methods may be called by several goroutines at once.
type Clock struct {
	node    string
	now     func() time.Time
	maxSkew time.Duration

	mu   sync.Mutex // not held while now is called: that is the user's code
	last Timestamp  // has a wall clock and counter of 0 before the first event
}

// NewClock returns the clock of the node with the given id.
//
// The id becomes the third field of the text form. It must not be empty, contain a
// colon or a control character, be longer than 983 bytes or be anything but valid
// UTF-8. No other node should have it. MQTT client ids, which are a good choice
// otherwise, may contain colons: replace those.
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

// Now returns the timestamp of a local event, or of a message to send. It is
// greater than every timestamp that Now or Update returned before, and than every
// one that Update merged. On error, which wraps [ErrCounterOverflow], the clock is
// unchanged.
func (c *Clock) Now() (Timestamp, error) {
	wall := c.physical()

	// Another goroutine may have moved the clock past wall by now. That does no
	// harm: the rule takes the larger of the two, and counts.
	c.mu.Lock()
	defer c.mu.Unlock()
	next, err := Tick(c.last, wall)
	if err != nil {
		return Timestamp{}, err
	}
	c.last = next
	return next, nil
}

// Update takes notice of a timestamp that came from another node, and returns the
// timestamp of that event: greater than remote and than everything this clock
// returned before. The zero timestamp makes it the same as Now.
//
// A remote timestamp more than [ClockOptions.MaxSkew] ahead of the physical clock
// is refused with a [*SkewError]; one that lies behind, however far, never is. A
// counter that is too large is an error that wraps [ErrCounterOverflow], as [Merge]
// describes. On error the clock is unchanged, and remote may still be used as data.
func (c *Clock) Update(remote Timestamp) (Timestamp, error) {
	wall := c.physical()
	if ahead := interval(wall, remote.Wall); ahead > c.maxSkew {
		return Timestamp{}, &SkewError{
			Remote:   remote,
			Physical: time.UnixMilli(wall).UTC(),
			Ahead:    ahead,
			Limit:    c.maxSkew,
		}
	}

	c.mu.Lock()
	defer c.mu.Unlock()
	next, err := Merge(c.last, remote, wall)
	if err != nil {
		return Timestamp{}, err
	}
	c.last = next
	return next, nil
}

// Last returns the timestamp that Now or Update returned last, or the zero
// timestamp if there was none.
func (c *Clock) Last() Timestamp {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.last == (Timestamp{Node: c.node}) {
		return Timestamp{} // neither rule yields 0:0 after 0:0
	}
	return c.last
}

// Node returns the node id that [NewClock] was given.
func (c *Clock) Node() string {
	return c.node
}

// physical reads the physical clock, in milliseconds since the Unix epoch.
func (c *Clock) physical() int64 {
	return max(c.now().UnixMilli(), 0)
}

// interval returns the time from one wall clock to another, which is never
// negative: zero if to is not after from, and the largest Duration if it is longer.
func interval(from, to int64) time.Duration {
	const longest = math.MaxInt64 / int64(time.Millisecond)
	if to <= from {
		return 0
	}
	if to-from > longest { // no overflow: from, a physical clock, is not negative
		return math.MaxInt64
	}
	return time.Duration(to-from) * time.Millisecond
}
