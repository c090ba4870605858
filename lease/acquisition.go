package lease

import (
	"errors"
	"fmt"
	"time"

	"github.com/tenurelock/tenure/transport"
)

// acquisition decides what an attempt to hold a lease does after each answer to its request. Like a
// schedule it is a value without clock, goroutine, channel or lock.
type acquisition struct {
	options *Options
	willed  bool // the attempt ends with the connection of its Will
	backoff retryBackoff

	// mayHold: a request set the key, or got no answer, so it may have set the key, or may yet. A
	// later request that was refused says nothing about one that is still under way.
	mayHold bool
	granted bool // the store granted the lease, and that was no use
	moved   bool // another store answered than the one that was asked
}

// answer is what came of one request to set the key.
type answer struct {
	err  error
	sent time.Duration // when the request left

	known    bool // the store was known when the request left, so the request was bound to it
	other    bool // the client knows another store now
	replaced bool // another store answered since the request left
	lost     bool // the connection that the attempt ends with was lost
	freed    bool // refused: what an earlier acquisition had left was freed since

	random func() float64 // see waitEvent
}

// requestAction is what an attempt has to do next, or the freeing of its value.
type requestAction struct {
	do    requestDo
	err   error         // pause: why; stop: what the attempt ended with
	pause time.Duration // before the next request
}

type requestDo int

const (
	ask   requestDo = iota // send a request
	pause                  // let a pause pass, and then send a request
	begin                  // a tenure begins
	stop                   // the attempt is over
)

// newAcquisition returns an acquisition that has sent nothing. mayHold says that an earlier acquisition of the
// same attempt may hold the lease.
func (o *Options) newAcquisition(willed, mayHold bool) acquisition {
	return acquisition{options: o, willed: willed, mayHold: mayHold, backoff: o.retryBackoff(0)}
}

// next returns the acquisition after an answer that came at now, and what to do then.
func (c acquisition) next(now time.Duration, a answer) (acquisition, requestAction) {
	err := a.err
	switch {
	case err == nil:
		c.mayHold = true
		usable := now < c.options.deadline(a.sent)-c.options.GracePeriod-c.options.RequestTimeout
		switch {
		case a.known && usable && !a.lost && !a.replaced:
			return c, requestAction{do: begin}
		case !c.granted && !(c.willed && a.lost):
			// The process stood still, and a tenure could not renew itself in what is left of the TTL; or the
			// request went over another connection than the one to watch; or the store that granted it is
			// gone; or it was the client's first request, and could not be bound to a store. Ask again, for a
			// fresh deadline.
			c.granted = true
			return c, requestAction{do: ask}
		case c.granted && !usable: // the attempt frees the lease: another process may be faster
			return c, requestAction{do: stop, err: errTooSlow}
		}
		err = errUnsteady // again: with pauses, or a store that changes always would be asked without end
	case errors.Is(err, transport.ErrConditionFailed):
		if a.freed {
			return c, requestAction{do: ask} // perhaps it was this Lease's own value
		}
		return c, requestAction{do: stop, err: err}
	case errors.Is(err, transport.ErrOutcomeUnknown):
		c.mayHold = true
	}
	other := errors.Is(err, transport.ErrOtherStore)
	switch {
	case isRefusal(err) && !other, isTerminal(err), errors.Is(err, transport.ErrQuotaExceeded):
		return c, requestAction{do: stop, err: err}
	case c.willed && a.lost:
		return c, requestAction{do: stop, err: errReconnected}
	case other && a.other && !c.moved:
		// The request was bound to the store before, and the attempt holds nothing there.
		// The client knows the present store now, so the next request is bound to that.
		c.moved = true
		return c, requestAction{do: ask}
	}
	return c, requestAction{do: pause, err: err, pause: c.backoff.next(a.random())}
}

// again reports whether another attempt follows one that ended with err.
func again(err error) bool { return errors.Is(err, errReconnected) || errors.Is(err, errTooSlow) }

// freeing decides how a value that may be in the store is deleted.
type freeing struct {
	end     time.Duration // when to give up
	backoff retryBackoff
}

func (o *Options) newFreeing(now, within time.Duration) freeing {
	return freeing{end: now + max(within, o.RequestTimeout), backoff: o.retryBackoff(0)}
}

// errWillReleases says that no further deletion is sent: none goes over the next connection.
var errWillReleases = fmt.Errorf("%w; its Will releases the lease, unless this client has replaced it",
	ErrConnectionLost)

// next returns what to do after a deletion that ended with err: pause, and then send another unless
// the end has come, or stop. The lease is free, as far as the value goes, if the action has no error.
// lost says that the connection which the deletion was bound to was lost.
func (f freeing) next(now time.Duration, err error, lost bool, random func() float64) (freeing, requestAction) {
	switch {
	case err == nil, errors.Is(err, transport.ErrConditionFailed), errors.Is(err, transport.ErrOtherStore):
		return f, requestAction{do: stop}
	case isRefusal(err), isTerminal(err), now >= f.end:
		return f, requestAction{do: stop, err: err}
	case lost:
		return f, requestAction{do: stop, err: errWillReleases}
	}
	return f, requestAction{do: pause, err: err, pause: min(f.backoff.next(random()), f.end-now)}
}
