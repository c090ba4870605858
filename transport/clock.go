package transport

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/tenurelock/tenure/hlc"
	"github.com/tenurelock/tenure/internal/storeconn"
)

const (
	// agreementMillis is how far ahead of the latest version the node's clock may be to count as
	// right. It must be much less than maxSkewMillis: another client may push versions that far ahead,
	// and a wrong clock would seem right after each of them.
	agreementMillis = 5_000
	// maxSkewMillis is how far ahead of its own clock a store accepts a timestamp (docs/protocol.md §3.4).
	maxSkewMillis = 60_000
)

// clock is the hybrid logical clock of a client (docs/protocol.md §3), on the wall clock of
// its node, which may be wrong and may step. It may go back, because the store's versions order the
// writes: otherwise the store would refuse it for an hour after a moment an hour ahead.
//
// It does not read the wall clock: local is what that shows, in milliseconds since the Unix
// epoch, and not negative. It is not safe for concurrent use.
type clock struct {
	last  hlc.Timestamp // the latest timestamp issued or merged; only a node before the first
	seen  int64         // the wall time of the latest version; 0 before the first
	ahead bool          // the store refused the node's clock, so this one goes by versions
}

// newClock returns the clock of a node. The error says why the client id cannot be a node id.
func newClock(node string) (clock, error) {
	first, err := hlc.Parse("0:0:" + node)
	if err != nil {
		return clock{}, fmt.Errorf("transport: the client id cannot be the node id of a clock: %w", err)
	}
	return clock{last: first}, nil
}

// tick returns the timestamp of a request.
func (c *clock) tick(local int64) (_ hlc.Timestamp, err error) {
	c.last, err = hlc.Tick(c.last, c.physical(local))
	return c.last, err
}

// observe merges a version, or the store's clock. One that is more than maxSkewMillis ahead of this
// node's clock does not move the clock: it is tooFar. After an error the version was not
// merged, which does no harm.
func (c *clock) observe(version hlc.Timestamp, local int64) (tooFar bool, err error) {
	c.seen = version.Wall
	c.ahead = c.ahead && local-version.Wall > agreementMillis // else the node's clock is right again
	wall := c.physical(local)
	if !c.ahead && version.Wall-wall > maxSkewMillis {
		return true, nil
	}
	c.last, err = hlc.Merge(c.last, version, wall)
	return false, err
}

// adapt makes the clock go by the store's from now on, after the store refused a timestamp as
// too far ahead. store is the time of the store's clock in milliseconds since the Unix epoch,
// or 0 if the refusal did not contain it; then the latest version takes its place. It
// reports whether the store is likely to accept the next timestamp.
func (c *clock) adapt(refused hlc.Timestamp, store, local int64) bool {
	store = cmp.Or(store, c.seen)
	if store == 0 || store >= refused.Wall {
		return false // nothing is known, or this cannot be the reason for the refusal
	}
	c.last, c.ahead = hlc.Timestamp{Wall: store, Node: c.last.Node}, local > store
	return true
}

// physical returns the wall time for the next timestamp. If that is more than maxSkewMillis behind
// the last timestamp, because the node's clock was set back, the clock starts again: the
// store would refuse timestamps that far ahead.
func (c *clock) physical(local int64) int64 {
	switch {
	case c.ahead:
		return 0
	case c.last.Wall-local > maxSkewMillis:
		c.last = hlc.Timestamp{Node: c.last.Node}
	}
	return local
}

// explainSkew adds to a refusal because of a clock what the clocks read, and what to do
// about it. store is the time of the store's clock when it refused, or zero.
//
// A client adapts if the clock of its node is ahead: from then on its requests go by the store's clock, which
// the refusal contains, or else by the latest version that the client has seen, and it repeats the refused
// request at once, within the same context. So [Client.Set] returns this error only if the client knows nothing
// of the store's time, or if the store refuses the repetition too. A client cannot change a fencing token, so it
// does not repeat a request that was refused for its token.
func (c *Client) explainSkew(request *storeconn.Request, store hlc.Timestamp, err error) error {
	node, shows := c.now().UTC().Format(time.RFC3339Nano), "another time"
	if !store.IsZero() {
		shows = time.UnixMilli(store.Wall).UTC().Format(time.RFC3339Nano)
	}
	switch {
	case errors.Is(err, ErrTimestampTooFarAhead) && request.Timestamp != "":
		return fmt.Errorf("this node's clock reads %s, and the store's %s: synchronize the clock of this node: %w", node,
			shows, err)
	case errors.Is(err, ErrFencingTokenTooFarAhead) && request.FencingToken != "":
		return fmt.Errorf("the store's clock reads %s, and the fencing token is %s: synchronize the clocks of the store "+
			"and of the node where the token came from: %w", shows, request.FencingToken, err)
	}
	return err // the refusal is about a timestamp that was not sent
}

// adapt makes requests go by the store's clock if err says that the store refused the timestamp of a request.
// It reports whether the store is likely to accept a repetition.
func (c *Client) adapt(request *storeconn.Request, store hlc.Timestamp, err error) bool {
	refused, unreadable := hlc.Parse(request.Timestamp)
	if unreadable != nil || !errors.Is(err, ErrTimestampTooFarAhead) {
		return false
	}
	local := wallMillis(c.now()) // without the lock: now is a function of the user
	c.mu.Lock()
	adapted := c.clock.adapt(refused, store.Wall, local)
	ahead := c.clock.ahead
	c.mu.Unlock()
	if adapted && ahead {
		c.log(slog.LevelWarn, "this node's clock is ahead of the store's; requests go by the store's until that changes",
			"error", err)
	}
	return adapted
}

// tick returns the timestamp of a request.
func (c *Client) tick() (string, error) {
	local := wallMillis(c.now()) // without the lock: now is a function of the user
	c.mu.Lock()
	timestamp, err := c.clock.tick(local)
	c.mu.Unlock()
	if err != nil {
		return "", err
	}
	return timestamp.String(), nil
}

// observe feeds a version to the client's clock. A version too far ahead does not move the
// clock; callers get it like any other.
func (c *Client) observe(version hlc.Timestamp) {
	local := wallMillis(c.now()) // without the lock: now is a function of the user
	c.mu.Lock()
	tooFar, _ := c.clock.observe(version, local) // a version that cannot be merged does no harm
	c.mu.Unlock()
	if tooFar {
		c.log(slog.LevelWarn, "the store's versions and this node's clock disagree: "+
			"synchronize the clocks of the store and of this node",
			"version", version.String(), "node", time.UnixMilli(local).UTC())
	}
}

// wallMillis returns a wall time in milliseconds since the Unix epoch, the unit of timestamps.
func wallMillis(now time.Time) int64 { return max(now.UnixMilli(), 0) }
