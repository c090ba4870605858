package election

import (
	"context"
	"errors"
	"math"
	"time"

	"github.com/tenurelock/tenure/fencing"
	"github.com/tenurelock/tenure/internal/random"
	"github.com/tenurelock/tenure/internal/sleep"
	"github.com/tenurelock/tenure/lease"
)

// run is one call of Run. Its goroutine carries out the steps of phases.
type run struct {
	*Elector
	lead    func(context.Context, *Term) error
	began   time.Time
	periods chan context.Context // healthy periods that begin
	changed chan struct{}        // wakes the follower of requests

	// Only the goroutine of Run uses these.
	phases      phases
	healthy     context.Context    // the latest healthy period; nil: there was none
	standby     <-chan error       // closed when the latest call of Options.Standby has returned
	stopStandby context.CancelFunc // ends its context
}

// loop campaigns and leads in turns.
func (r *run) loop(ctx context.Context) error {
	defer r.awaitFreed()
	for res := (result{err: r.afterCrash(ctx)}); ; res = r.do(ctx) {
		res.random = random.Fraction()
		r.phases = r.phases.next(time.Since(r.began), res)
		if r.phases.step == finish {
			return r.phases.cause
		}
	}
}

// do carries out a step.
func (r *run) do(ctx context.Context) result {
	t, cause := r.term, r.phases.cause
	var err error
	switch r.phases.step {
	case await:
		if cause != nil {
			r.options.Logger.Error("the campaign failed and will be repeated", "lease", r.lease.Name(), "error", cause)
			r.standBy(cause)
		}
		return result{err: r.awaitHealthy(ctx)}
	case stayOut:
		r.stayOut(r.healthy, r.phases.rest)
	case campaign:
		err = r.campaign(r.healthy)
	case prepare:
		r.stopStandby()
		err = wait(t.ctx, r.standby, t.tenure.Remaining(), errStandbyRuns)
	case claim:
		if len(r.options.Claim) == 0 {
			break
		}
		if err = r.entering(Claiming); err == nil {
			_, err = t.guard.ClaimAll(t.ctx, r.options.Claim...)
		}
	case activate:
		err = r.entering(Active)
	case lead:
		r.change(func() {})
		t.function = r.call("the leader function", false, func() error { return r.lead(t.ctx, t) })
		select {
		case err := <-t.function:
			t.cancel(r.came(nil).returned(err))
		case <-t.ctx.Done():
		}
	case drain:
		r.drain(t, cause)
	case release:
		return r.release(t, cause)
	}
	return r.came(err)
}

// came is what a step came to that failed with err.
func (r *run) came(err error) result {
	t := r.term
	if t == nil {
		return result{err: err, ended: context.Cause(r.healthy)}
	}
	_, over := t.tenure.Token() // first: it may end the context
	res := result{err: err, lost: context.Cause(t.tenure.Context()), ended: context.Cause(t.ctx)}
	if over != nil {
		res.over = res.lost
	}
	return res
}

// change changes fields that mu guards when a campaign, a term or its function begins or ends.
func (r *run) change(change func()) {
	r.set(func() {
		r.since = time.Now()
		change()
	})
	select {
	case r.changed <- struct{}{}:
	default:
	}
}

// awaitFreed waits until a campaign that was given up is known to hold nothing, so that a program that
// closes its client after Run leaves no lease. It waits no longer than two requests take. Package
// lease logs what it could not free.
func (r *run) awaitFreed() {
	ctx, cancel := context.WithTimeout(context.Background(), 2*r.options.requestTimeout())
	defer cancel()
	_ = r.lease.Settle(ctx)
}

// afterCrash returns ErrCrashed if an earlier process of this node crashed as the leader, and its
// lease is still in the store.
func (r *run) afterCrash(ctx context.Context) error {
	if r.options.FailBackAfter == 0 {
		return nil
	}
	look, cancel := context.WithTimeout(ctx, r.options.requestTimeout())
	defer cancel()
	holder, err := r.lease.Holder(look)
	if err != nil || holder.Name != r.options.Lease.Holder {
		return nil
	}
	r.standBy(ErrCrashed)
	return ErrCrashed
}

// stayOut waits for the standby function of an earlier campaign, and then for
// rest, unless ctx ends.
func (r *run) stayOut(ctx context.Context, rest time.Duration) {
	if wait(ctx, r.standby, 1, errStandbyRuns) != nil {
		r.standBy(errStandbyRuns)
		_ = wait(ctx, r.standby, math.MaxInt64, nil)
	}
	if rest <= 0 || ctx.Err() != nil {
		return
	}
	r.options.Logger.Info("staying out of the election for a while", "lease", r.lease.Name(), "for", rest)
	r.set(func() { r.status.HoldOffUntil = time.Now().Add(rest) })
	defer r.set(func() { r.status.HoldOffUntil = time.Time{} })
	sleep.For(ctx, rest)
}

// campaign waits for the lease, with which a term begins.
func (r *run) campaign(ctx context.Context) error {
	r.standBy(nil)
	r.startStandby(ctx)
	r.change(func() { r.campaigning = ctx })
	tenure, err := r.lease.Acquire(ctx)
	if err != nil {
		r.stopStandby()
		r.change(func() { r.campaigning = nil })
		return err
	}
	t := &Term{tenure: tenure, guard: fencing.NewGuard(r.client, tenure)}
	t.ctx, t.cancel = context.WithCancelCause(ctx)
	context.AfterFunc(tenure.Context(), func() { t.cancel(context.Cause(tenure.Context())) })
	t.token, _ = tenure.Token()
	r.change(func() {
		r.campaigning, r.term = nil, t
		r.status.Term++
	})
	return nil
}

// startStandby calls Options.Standby, if there is one.
func (r *run) startStandby(ctx context.Context) {
	ctx, r.stopStandby = context.WithCancel(ctx)
	if r.options.Standby == nil {
		return
	}
	r.standby = r.call("the standby function", true, func() error {
		err := r.options.Standby(ctx)
		if ctx.Err() != nil && errors.Is(err, context.Canceled) { // as it is meant to be
			return nil
		}
		return err
	})
}

// entering enters a phase that comes before the leader function, and waits for the observer, but no longer than
// the tenure lasts without a renewal: the other nodes wait for this one to lead or to release the lease.
func (r *run) entering(phase Phase) error {
	t := r.term
	return wait(t.ctx, r.enter(phase, nil), t.tenure.Remaining(), errObserverRuns)
}

// drain waits for the leader function, if it was called. Nothing can make it return. If it takes longer than
// the tenure lasts, that is logged. If the tenure ended without a grace period, the function has as long as
// the grace period is by default.
func (r *run) drain(t *Term, cause error) {
	t.tenure.StopRenewing() // from here on nothing that blocks keeps the lease
	delivered := r.enter(Draining, cause)
	if t.function == nil {
		return
	}
	err := r.waitOrLog(t.function, max(t.tenure.Remaining(), r.options.TTL/10),
		"the leader function did not return in time; its writes are refused and another node may lead")
	if err != nil && !errors.Is(err, context.Canceled) && !errors.Is(err, context.Cause(t.ctx)) {
		r.options.Logger.Error("the leader function failed while it drained", "lease", r.lease.Name(), "error", err)
	}
	// If the observer is late, the lease is released anyway: the others wait for it.
	_ = wait(context.Background(), delivered, t.tenure.Remaining(), nil)
}

// release frees the lease, whatever has become of the context of the term.
func (r *run) release(t *Term, cause error) result {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(t.ctx), r.options.TTL)
	defer cancel()
	switch err := t.tenure.Release(ctx); {
	case err == nil:
	case errors.Is(err, lease.ErrConnectionLost): // as it is meant to be: the broker releases the lease by the Will
	default:
		r.options.Logger.Warn("the lease could not be released", "lease", t.tenure.Name(), "error", err)
		cause = errors.Join(cause, err)
	}
	_ = r.waitOrLog(r.enter(Released, cause), r.options.TTL,
		"the observer does not return; this node stays out until it does")
	res := r.came(nil)
	t.cancel(nil)
	r.stopStandby()
	r.change(func() { r.term = nil })
	return res
}

// waitOrLog waits until a function of the program has returned, and returns its error. It logs text if that takes
// longer than the patience.
func (r *run) waitOrLog(returned <-chan error, patience time.Duration, text string) error {
	overdue := time.AfterFunc(patience, func() { r.options.Logger.Error(text, "lease", r.lease.Name()) })
	defer overdue.Stop()
	return <-returned
}
