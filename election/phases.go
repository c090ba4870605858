package election

import (
	"cmp"
	"errors"
	"fmt"
	"time"

	"github.com/tenurelock/tenure/transport"
)

// phases decides what a call of Run does next, when a term may start, and why it is over. It is a value
// without clock, goroutine, channel or lock: next is a pure function of the time, the phases and the
// result of the step before. run.do carries the steps out, one at a time.
type phases struct {
	options *Options

	step    step          // what to do now
	cause   error         // await: why the campaign failed; drain, release: why the term is over; finish: what Run returns
	rest    time.Duration // how long to stay out before the next campaign
	holdOff time.Duration // the latest hold-off, without its random part; zero: the next one is the first
	began   time.Duration // when the tenure was acquired
	taken   bool          // the lease was taken from this node, rather than given up
}

// step is what one goroutine carries out before it asks what comes next. Those of a term are in their order.
type step uint8

const (
	look     step = iota // ask whether the process before this one crashed as the leader
	await                // wait for a healthy period
	stayOut              // wait for the rest
	campaign             // wait for the lease
	claim                // protect Options.Claim
	lead                 // call the leader function, and wait until it returns or its context ends
	drain                // wait for the leader function
	release              // free the lease
	finish               // return from Run
)

// result is what a step came to.
type result struct {
	err    error   // why it failed
	random float64 // campaign, release: at least 0 and less than 1
	ended  error   // why the healthy period is over or, with the lease, the context of the term; nil: it is not
	lost   error   // why the context of the tenure ended; nil: it did not
	over   error   // the same if the tenure is over by the lease's clock: a timer may not have fired yet
}

// next returns the phases after the step came to r: what to do then.
func (p phases) next(now time.Duration, r result) phases {
	lasted := now - p.began
	switch p.step {
	case look:
		// Otherwise a preferred node that keeps crashing, and is restarted within the TTL, would take the
		// lease again each time, and no other node would ever lead.
		if r.err != nil {
			p.rest = p.options.TTL + p.options.HoldOff
		}
	case await:
		if r.err != nil {
			return p.to(finish, r.err)
		}
		return p.to(stayOut, nil)
	case stayOut:
		if r.ended == nil { // else it stays out for as long again once it is healthy
			p.rest = 0
			return p.to(campaign, nil)
		}
	case campaign:
		if r.err != nil {
			return p.again(r.err, r.ended != nil, r.random)
		}
		p.began = now
		return p.starting(r)
	case claim:
		return p.starting(r)
	case lead:
		p.taken = r.ended == r.lost
		return p.to(drain, r.afterTenure(r.ended))
	case drain:
		return p.to(release, p.cause)
	case release:
		// A node that had its lease taken campaigns again at once, unless the term was
		// short: then what ended it may end the next one, too.
		if lasted >= p.options.TTL {
			p.holdOff = 0
		}
		return p.again(r.lost, p.taken && lasted >= p.options.TTL, r.random)
	}
	return p.to(await, nil)
}

func (p phases) to(step step, cause error) phases {
	p.step, p.cause = step, cause
	return p
}

// starting decides how a term goes on before its function is called: only while the tenure, the health
// and Run last. The claims may have taken long.
func (p phases) starting(r result) phases {
	why := cmp.Or(r.err, r.over, r.ended)
	if why == nil {
		return p.to(p.step+1, nil)
	}
	p.taken = r.lost != nil
	return p.to(release, r.afterTenure(why))
}

// again decides when a node campaigns again, after a campaign that failed or a tenure that ended with err: at once,
// or after a hold-off, which is twice as long as the last one and spread by a tenth either way.
//
// Even a refusal that looks permanent is worth another try: an operator may be replacing the access rules,
// or another elector's lease may use the Will.
func (p phases) again(err error, atOnce bool, random float64) phases {
	switch {
	// No request can succeed any more.
	case errors.Is(err, transport.ErrClosed), errors.Is(err, transport.ErrSessionTakenOver):
		return p.to(finish, fmt.Errorf("election: %w", err))
	case atOnce:
		return p.to(await, nil)
	case p.step == release:
		err = nil
	}
	first := p.options.HoldOff
	p.holdOff = min(max(first, 2*p.holdOff), maxHoldOff*first)
	p.rest = p.holdOff + time.Duration((random*2-1)*float64(p.holdOff)/10)
	return p.to(await, err)
}

// returned is why a term is over whose function returned err. If the process stood still, no timer has ended
// the context of a tenure yet that is over.
func (r result) returned(err error) error { return cmp.Or(r.over, errors.Join(ErrReturned, err)) }

// afterTenure returns why a term ended. If its tenure is over, the cause of that comes first:
// all else came later or followed from it.
func (r result) afterTenure(cause error) error {
	if r.over == nil || errors.Is(cause, r.over) {
		return cause
	}
	return errors.Join(r.over, cause)
}
