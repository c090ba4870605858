package transport

import (
	"fmt"
	"time"

	"github.com/tenurelock/tenure/hlc"
)

// agreementMillis is how far ahead of a version a clock may be that agrees with the store's.
// It must be much less than maxSkew: another client may push versions that far ahead, and
// a clock that is wrong would seem right after each of them.
const agreementMillis = int64(5 * time.Second / time.Millisecond)

// maxSkewMillis is maxSkew as timestamps count it.
const maxSkewMillis = int64(maxSkew / time.Millisecond)

// A clock is the hybrid logical clock of a client (docs/protocol.md §3), on the wall clock of its
// node, which may be wrong and may step. It is not an [hlc.Clock], which never goes back: a
// client that had been an hour ahead for a moment would be refused for an hour. Versions
// come from the store, and their order with them, so a client's own timestamps may go back
// whenever a correction asks for it.
//
// It reads no clock: local is what the node's wall clock shows, in milliseconds since the
// Unix epoch, and not negative. It is not safe for concurrent use.
type clock struct {
	last   hlc.Timestamp // the latest that was issued or merged; has only a node before
	seen   int64         // the wall clock of the latest version; 0 before the first
	offset int64         // what the store's clock asks us to add to ours; never positive
}

// newClock returns the clock of a node. The error says why the client id cannot be a node id.
func newClock(node string) (clock, error) {
	first, err := hlc.Parse("0:0:" + node)
	if err != nil {
		return clock{}, fmt.Errorf("transport: the client id does not serve as the node id of a clock: %w", err)
	}
	return clock{last: first}, nil
}

// tick returns the timestamp of a request.
func (c *clock) tick(local int64) (hlc.Timestamp, error) {
	next, err := hlc.Tick(c.last, c.physical(local))
	if err != nil {
		return hlc.Timestamp{}, err
	}
	c.last = next
	return next, nil
}

// observe merges what the store says: a version, or its clock. What is more than maxSkew
// ahead of this node's clock does not move the clock, and the error is an
// [*hlc.SkewError]. After any other error the version was not merged, which does no harm.
func (c *clock) observe(version hlc.Timestamp, local int64) error {
	c.seen = version.Wall
	if local-version.Wall <= agreementMillis {
		c.offset = 0 // the node's clock is right again
	}
	wall := c.physical(local)
	if version.Wall-wall > maxSkewMillis {
		if c.offset != 0 {
			return nil // the node's own clock is further ahead still
		}
		physical := time.UnixMilli(wall).UTC()
		return &hlc.SkewError{
			Remote:   version,
			Physical: physical,
			Ahead:    time.UnixMilli(version.Wall).Sub(physical), // or the largest Duration
			Limit:    maxSkew,
		}
	}
	next, err := hlc.Merge(c.last, version, wall)
	c.last = next
	return err
}

// adapt makes the clock go by the store's from here on, after the store refused a timestamp
// as too far ahead. store is what the store's clock showed, in milliseconds since the Unix
// epoch, or negative if the refusal did not say; then the latest version takes its place. It
// reports whether the store is likely to accept the next timestamp.
func (c *clock) adapt(refused hlc.Timestamp, store, local int64) bool {
	if store < 0 {
		if store = c.seen; store == 0 {
			return false
		}
	}
	if store >= refused.Wall {
		return false // that cannot be why
	}
	c.offset = min(store-local, 0)
	c.last = hlc.Timestamp{Node: c.last.Node}
	return true
}

// physical returns the time by which the clock goes. Where that is behind the last
// timestamp by more than maxSkew, because the node's clock was set back, the clock begins
// anew: the store would refuse timestamps that far ahead.
func (c *clock) physical(local int64) int64 {
	wall := max(local+c.offset, 0)
	if c.last.Wall-wall > maxSkewMillis {
		c.last = hlc.Timestamp{Node: c.last.Node}
	}
	return wall
}
