package transport

import (
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/tenurelock/tenure/hlc"
)

// agreementMillis is how far ahead of the latest version the node's clock may be to count as
// right. It must be much less than maxSkew: another client may push versions that far ahead,
// and a wrong clock would seem right after each of them.
const agreementMillis = int64(5 * time.Second / time.Millisecond)

// maxSkew is how far ahead of its own clock a store accepts a timestamp (docs/protocol.md §3.4).
const (
	maxSkew       = time.Minute
	maxSkewMillis = int64(maxSkew / time.Millisecond)
)

// clock is the hybrid logical clock of a client (docs/protocol.md §3), on the wall clock of
// its node, which may be wrong and may step. It may go back, because the store's versions order the
// writes: otherwise the store would refuse it for an hour after a moment an hour ahead.
//
// It does not read the wall clock: local is what that shows, in milliseconds since the Unix
// epoch, and not negative. It is not safe for concurrent use.
type clock struct {
	last   hlc.Timestamp // the latest timestamp issued or merged; only a node before the first
	seen   int64         // the wall time of the latest version; 0 before the first
	offset int64         // added to the node's clock to go by the store's; never positive

	agreed bool  // a version ended the offset, and the store has refused no timestamp since
	doubt  int64 // until the node's clock shows this, no version ends the offset
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
func (c *clock) tick(local int64) (hlc.Timestamp, error) {
	next, err := hlc.Tick(c.last, c.physical(local))
	if err != nil {
		return hlc.Timestamp{}, err
	}
	c.last = next
	return next, nil
}

// observe merges a version, or the store's clock. One that is more than maxSkew ahead of this
// node's clock does not move the clock, and tooFar says so. After an error the version was not
// merged, which does no harm.
func (c *clock) observe(version hlc.Timestamp, local int64) (tooFar *hlc.SkewError, err error) {
	c.seen = version.Wall
	if c.offset != 0 && local-version.Wall <= agreementMillis && !c.doubts(local) {
		c.offset, c.agreed = 0, true // the node's clock is right again
	}
	wall := c.physical(local)
	if version.Wall-wall > maxSkewMillis {
		if c.offset != 0 {
			return nil, nil // the node's own clock is even further ahead
		}
		physical := time.UnixMilli(wall).UTC()
		return &hlc.SkewError{
			Remote:   version,
			Physical: physical,
			Ahead:    time.UnixMilli(version.Wall).Sub(physical), // or the largest Duration
			Limit:    maxSkew,
		}, nil
	}
	c.last, err = hlc.Merge(c.last, version, wall)
	return nil, err
}

// adapt makes the clock go by the store's from now on, after the store refused a timestamp as
// too far ahead. store is the time of the store's clock in milliseconds since the Unix epoch,
// or negative if the refusal did not contain it; then the latest version takes its place. It
// reports whether the store is likely to accept the next timestamp.
func (c *clock) adapt(refused hlc.Timestamp, store, local int64) bool {
	if store < 0 {
		if store = c.seen; store == 0 {
			return false
		}
	}
	if store >= refused.Wall {
		return false // this cannot be the reason for the refusal
	}
	if c.agreed {
		// The versions are ahead of the store's own clock. So it is when a store has started
		// again, with its data, on a machine with a clock that is behind. They say nothing for a while,
		// or else each request would be refused once.
		c.agreed, c.doubt = false, local+maxSkewMillis
	}
	c.offset = min(store-local, 0)
	c.last = hlc.Timestamp{Node: c.last.Node}
	return true
}

// doubts reports whether no version ends the offset. A step of the node's clock ends the doubt.
func (c *clock) doubts(local int64) bool {
	return local < c.doubt && local >= c.doubt-maxSkewMillis
}

// physical returns the wall time for the next timestamp. If that is more than maxSkew behind
// the last timestamp, because the node's clock was set back, the clock starts again: the
// store would refuse timestamps that far ahead.
func (c *clock) physical(local int64) int64 {
	wall := max(local+c.offset, 0)
	if c.last.Wall-wall > maxSkewMillis {
		c.last = hlc.Timestamp{Node: c.last.Node}
	}
	return wall
}

// skewError is the store's refusal of a request because of a clock, with the readings of the
// clocks. It wraps the [*RefusedError], and so matches [ErrTimestampTooFarAhead] or
// [ErrFencingTokenTooFarAhead].
//
// A client adapts if the clock of its node is ahead: from then on its requests go by the
// store's clock, which the refusal contains, or else by the latest version that the client has
// seen, and it repeats the refused request at once, within the same context. So [Client.Set]
// returns this error only if the client knows nothing of the store's time, or if the store refuses
// the repetition too. A client cannot change a fencing token, so it does not repeat a request that
// was refused for its token.
//
// While the client goes by the store's clock, [Client.Skew] returns this error. It also reports
// the reverse, a store with versions that are ahead of this node's clock, which is not an error of a request.
type skewError struct {
	// token is true when the fencing token was too far ahead, false when the
	// request's own timestamp was.
	token bool
	// refused is the timestamp that was too far ahead: by more than a minute.
	refused hlc.Timestamp
	// local is the time of this node's clock when the refusal arrived, UTC.
	local time.Time
	// store is the time of the store's clock when it refused, UTC, in whole milliseconds.
	// It is zero if the refusal did not contain it.
	store time.Time

	cause error
}

// Error says which clock is ahead of which, by how much, and what to do about it.
func (e *skewError) Error() string {
	refused := time.UnixMilli(e.refused.Wall).UTC()
	if e.token {
		return fmt.Sprintf("the fencing token %v is %s, and %v ahead of this node's: "+
			"synchronize the clocks of the store and of the node where the token came from: %v",
			e.refused, e.lead(refused, maxSkew), max(refused.Sub(e.local), 0).Truncate(time.Millisecond), e.cause)
	}
	// The refused timestamp may be ahead of this node's clock, or behind it.
	least := max(maxSkew-refused.Sub(e.local), 0)
	return fmt.Sprintf("this node's clock, which reads %s, is %s: synchronize the clock of this node: %v",
		e.local.Format(time.RFC3339Nano), e.lead(e.local, least), e.cause)
}

// lead says how far a moment is ahead of the store's clock, or how far at least if the time of
// that clock is not known.
func (e *skewError) lead(moment time.Time, least time.Duration) string {
	if e.store.IsZero() {
		return fmt.Sprintf("more than %v ahead of the store's clock", least.Truncate(time.Second))
	}
	return fmt.Sprintf("%v ahead of the store's clock, which reads %s",
		moment.Sub(e.store).Truncate(time.Millisecond), e.store.Format(time.RFC3339Nano))
}

// Unwrap returns the refusal.
func (e *skewError) Unwrap() error { return e.cause }

// explainSkew adds the readings of the clocks to a refusal because of a clock. store is the
// time of the store's clock, or zero.
func (c *Client) explainSkew(request *Request, store hlc.Timestamp, err error) error {
	skew := &skewError{local: c.now().UTC(), cause: err}
	text := request.Timestamp
	switch {
	case errors.Is(err, ErrTimestampTooFarAhead):
	case errors.Is(err, ErrFencingTokenTooFarAhead):
		skew.token, text = true, request.FencingToken
	default:
		return err
	}
	var unreadable error
	if skew.refused, unreadable = hlc.Parse(text); unreadable != nil {
		return err // the refusal is about a timestamp that was not sent
	}
	if !store.IsZero() {
		skew.store = time.UnixMilli(store.Wall).UTC()
	}
	return skew
}

// adapt makes requests go by the store's clock if err says that the store refused the
// client's timestamp. It reports whether the store is likely to accept a repetition.
func (c *Client) adapt(err error) bool {
	var skew *skewError
	if !errors.As(err, &skew) || skew.token {
		return false
	}
	store := int64(-1)
	if !skew.store.IsZero() {
		store = skew.store.UnixMilli()
	}
	c.mu.Lock()
	adapted := c.clock.adapt(skew.refused, store, wallMillis(skew.local))
	before := c.nodeAhead
	if adapted && c.clock.offset != 0 {
		c.nodeAhead = skew
	}
	after := c.nodeAhead
	c.mu.Unlock()
	if before == nil && after != nil {
		c.log(slog.LevelWarn, "this node's clock is ahead of the store's; requests go by the store's clock until that changes", "error", skew)
	}
	return adapted
}

// Skew returns nil while this node's clock and the store's agree, as far as the client knows.
//
// It returns an [*hlc.SkewError] while the latest version that this client has seen is more
// than a minute ahead of this node's clock. Such a version does not move the client's clock.
//
// It returns the latest refusal while the client goes by the store's clock
// because this node's clock is more than a minute ahead. That ends with the first version
// that is no more than five seconds behind this node's clock, or a minute later if the store
// refuses this node's clock again after such a version.
func (c *Client) Skew() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.storeAhead != nil:
		return c.storeAhead
	case c.nodeAhead != nil:
		return c.nodeAhead
	}
	return nil
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
	tooFar, err := c.clock.observe(version, local)
	before, ahead := c.storeAhead, c.nodeAhead
	c.storeAhead = tooFar
	if c.clock.offset == 0 {
		c.nodeAhead = nil
	}
	agree := tooFar == nil && before != nil || ahead != nil && c.nodeAhead == nil
	c.mu.Unlock()
	switch {
	case tooFar != nil && before == nil:
		c.log(slog.LevelWarn, "the store's versions and this node's clock disagree", "error", tooFar)
	case tooFar == nil && agree:
		c.log(slog.LevelWarn, "the store's versions and this node's clock agree again")
	case err != nil:
		c.log(slog.LevelDebug, "a version does not move this node's clock", "error", err)
	}
}

// wallMillis returns a wall time in milliseconds since the Unix epoch, the unit of timestamps.
func wallMillis(now time.Time) int64 { return max(now.UnixMilli(), 0) }
