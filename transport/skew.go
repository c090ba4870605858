package transport

import (
	"errors"
	"fmt"
	"time"

	"github.com/tenurelock/tenure/hlc"
)

// maxSkew is how far ahead of its own clock a store accepts a timestamp (PROTOCOL 3).
const maxSkew = time.Minute

// SkewError is the store's refusal of a request because of a clock, with what this
// node knows of it. It wraps the [*RefusedError], and so matches
// [ErrTimestampTooFarAhead] or [ErrFencingTokenTooFarAhead].
//
// The reverse, a store whose versions are ahead of this node's clock, is no error of a
// request: see [Client.Skew].
type SkewError struct {
	// Token is true when the fencing token was too far ahead, false when the
	// request's own timestamp was.
	Token bool
	// Refused is the timestamp that was too far ahead: the store's clock shows less
	// than a minute before it.
	Refused hlc.Timestamp
	// Local is what this node's clock showed, UTC.
	Local time.Time

	cause error
}

// Error says which clock is ahead of which, by how much, and what to do about it.
func (e *SkewError) Error() string {
	refused := time.UnixMilli(e.Refused.Wall).UTC()
	store := refused.Add(-maxSkew).Format(time.RFC3339Nano)
	if e.Token {
		return fmt.Sprintf("the fencing token %v is more than %v ahead of the store's clock, which reads less than %s, and %v ahead of this node's: "+
			"synchronize the clocks of the store and of the node where the token came from: %v",
			e.Refused, maxSkew, store, max(refused.Sub(e.Local), 0), e.cause)
	}
	return fmt.Sprintf("this node's clock, which reads %s, is more than %v ahead of the store's clock, which reads less than %s: "+
		"synchronize the clock of this node: %v",
		e.Local.Format(time.RFC3339Nano), max(maxSkew-refused.Sub(e.Local), 0), store, e.cause)
}

// Unwrap returns the refusal.
func (e *SkewError) Unwrap() error { return e.cause }

// explainSkew adds to a refusal what this node knows of the clocks.
func (c *Client) explainSkew(request Request, err error) error {
	skew := &SkewError{Local: c.now().UTC(), cause: err}
	text := request.Timestamp
	switch {
	case errors.Is(err, ErrTimestampTooFarAhead):
	case errors.Is(err, ErrFencingTokenTooFarAhead):
		skew.Token, text = true, request.FencingToken
	default:
		return err
	}
	var unreadable error
	if skew.Refused, unreadable = hlc.Parse(text); unreadable != nil {
		return err // the store speaks of a timestamp that was not sent
	}
	return skew
}

// Skew returns a [*hlc.DriftError] while the latest version that this client has seen
// is more than a minute ahead of this node's clock, and nil otherwise. Such a version
// is returned to callers like any other, but does not move the client's own clock. The
// error says which clock is ahead, by how much, and what to do.
func (c *Client) Skew() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.drift == nil {
		return nil
	}
	return c.drift
}

// observe feeds a version to the client's clock. A version too far ahead is data like
// any other; it only must not drag our clock along.
func (c *Client) observe(version hlc.Timestamp) {
	_, err := c.clock.Update(version)
	drift := asDrift(err)
	c.mu.Lock()
	before := c.drift
	c.drift = drift
	c.mu.Unlock()
	switch {
	case drift != nil && before == nil:
		c.logger.Warn("the store's versions and this node's clock disagree", "error", drift)
	case drift == nil && before != nil:
		c.logger.Warn("the store's versions and this node's clock agree again")
	case err != nil && drift == nil:
		c.logger.Debug("a version does not move this node's clock", "error", err)
	}
}

func asDrift(err error) *hlc.DriftError {
	if err == nil {
		return nil // as nearly always
	}
	var drift *hlc.DriftError
	errors.As(err, &drift)
	return drift
}
