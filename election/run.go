package election

import (
	"context"
	"errors"
	"time"

	"github.com/tenurelock/tenure/fencing"
	"github.com/tenurelock/tenure/internal/random"
	"github.com/tenurelock/tenure/internal/sleep"
	"github.com/tenurelock/tenure/internal/wake"
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
	phases  phases
	healthy context.Context // the latest healthy period; nil: there was none
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
			r.options.Logger.Error("the campaign failed and will be repeated", "error", cause)
			r.standBy(cause)
		}
		return result{err: r.awaitHealthy(ctx)}
	case stayOut:
		if rest := r.phases.rest; rest > 0 {
			r.options.Logger.Info("staying out of the election for a while", "for", rest)
			sleep.For(r.healthy, rest)
		}
	case campaign:
		err = r.campaign(r.healthy)
	case claim:
		if len(r.options.Claim) > 0 {
			r.enter(Claiming, nil)
			_, err = t.guard.ClaimAll(t.ctx, r.options.Claim...)
		}
	case lead:
		r.enter(Active, nil)
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
	wake.Up(r.changed)
}

// awaitFreed waits until a campaign that was given up is known to hold nothing, so that a program that
// closes its client after Run leaves no lease. It waits no longer than two requests take. Package
// lease logs what it could not free.
func (r *run) awaitFreed() {
	ctx, cancel := context.WithTimeout(context.Background(), 2*r.options.requestTimeout())
	defer cancel()
	_ = r.lease.AwaitReleases(ctx)
}

// afterCrash returns ErrCrashed if an earlier process of this node crashed as the leader, and its
// lease is still in the store.
func (r *run) afterCrash(ctx context.Context) error {
	if r.options.FailBackAfter == 0 {
		return nil
	}
	look, cancel := context.WithTimeout(ctx, r.options.requestTimeout())
	defer cancel()
	if holder, _ := r.lease.Holder(look); holder.Name != r.options.Lease.Holder { // also if that is not known
		return nil
	}
	r.standBy(ErrCrashed)
	return ErrCrashed
}

// campaign waits for the lease, with which a term begins.
func (r *run) campaign(ctx context.Context) error {
	r.standBy(nil)
	r.change(func() { r.campaigning = ctx })
	tenure, err := r.lease.Acquire(ctx)
	var t *Term
	if err == nil {
		t = &Term{tenure: tenure, guard: fencing.NewGuard(r.client, tenure)}
		t.ctx, t.cancel = context.WithCancelCause(ctx)
		context.AfterFunc(tenure.Context(), func() { t.cancel(context.Cause(tenure.Context())) })
		t.token, _ = tenure.Token()
	}
	r.change(func() { r.campaigning, r.term = nil, t })
	return err
}

// drain waits for the leader function. Nothing can make it return. If it takes longer than the tenure lasts, that
// is logged. If the tenure ended without a grace period, the function has as long as the grace period is by default.
func (r *run) drain(t *Term, cause error) {
	t.tenure.StopRenewing() // from here on nothing that blocks keeps the lease
	r.enter(Draining, cause)
	defer time.AfterFunc(max(t.tenure.Remaining(), r.options.TTL/10), func() {
		r.options.Logger.Error("the leader function did not return in time; its writes are refused and another node may lead")
	}).Stop()
	err := <-t.function
	if err != nil && !errors.Is(err, context.Canceled) && !errors.Is(err, context.Cause(t.ctx)) {
		r.options.Logger.Error("the leader function failed while it drained", "error", err)
	}
}

// release frees the lease, whatever has become of the context of the term.
func (r *run) release(t *Term, cause error) result {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(t.ctx), r.options.TTL)
	defer cancel()
	// A lost connection is as it is meant to be: the broker releases the lease by the Will.
	if err := t.tenure.Release(ctx); err != nil && !errors.Is(err, lease.ErrConnectionLost) {
		r.options.Logger.Warn("the lease could not be released", "error", err)
		cause = errors.Join(cause, err)
	}
	r.enter(Released, cause)
	res := r.came(nil)
	t.cancel(nil)
	r.change(func() { r.term = nil })
	return res
}
