package election

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/tenurelock/tenure/fencing"
	"github.com/tenurelock/tenure/hlc"
	"github.com/tenurelock/tenure/internal/random"
	"github.com/tenurelock/tenure/internal/sleep"
	"github.com/tenurelock/tenure/lease"
)

// run is one call of Run.
type run struct {
	*Elector
	lead     func(context.Context, *Term) error
	began    time.Time
	phases   phases // only the goroutine of Run uses it
	monitor  monitor
	tasks    sync.WaitGroup // what Run waits for
	observer observerQueue
	standby  standby // the latest

	failBackEnded chan struct{} // closed when the latest fail-back request is deleted
}

// next returns what to do after the step under way came to res.
func (r *run) next(res result) phases {
	res.random = random.Fraction()
	r.phases = r.phases.next(time.Since(r.began), res)
	return r.phases
}

// loop campaigns and leads in turns.
func (r *run) loop(ctx context.Context) error {
	follow := sync.OnceFunc(func() { r.tasks.Go(func() { r.followRequests(ctx) }) })
	healthy := ctx
	for res := (result{err: r.afterCrash(ctx)}); ; {
		p := r.next(res)
		res = result{}
		switch p.step {
		case await:
			if p.cause != nil {
				r.options.Logger.Error("the campaign failed and will be repeated", "lease", r.lease.Name(), "error", p.cause)
				r.standBy(p.cause)
			}
			healthy, res.err = r.monitor.await(ctx, r.standBy)
		case stayOut:
			follow()
			r.stayOut(healthy, p.rest)
			res.ended = context.Cause(healthy)
		case campaign:
			res = r.campaign(healthy)
		default:
			return p.cause
		}
	}
}

// settle waits until a campaign that was given up is known to hold nothing, so that a program that
// closes its client after Run leaves no lease. It waits no longer than two requests take. Package
// lease logs what it could not free.
func (r *run) settle() {
	ctx, cancel := context.WithTimeout(context.Background(), 2*r.requestTimeout())
	defer cancel()
	_ = r.lease.Settle(ctx)
}

// afterCrash returns ErrCrashed if an earlier process of this node crashed as the leader, and its
// lease is still in the store.
func (r *run) afterCrash(ctx context.Context) error {
	if r.options.FailBackAfter == 0 {
		return nil
	}
	look, cancel := context.WithTimeout(ctx, r.requestTimeout())
	defer cancel()
	holder, err := r.lease.Holder(look)
	if err != nil || holder.Name != r.holderName() {
		return nil
	}
	r.standBy(ErrCrashed)
	return ErrCrashed
}

// stayOut waits for the standby function of an earlier campaign, and then for
// rest, unless ctx ends.
func (r *run) stayOut(ctx context.Context, rest time.Duration) {
	select {
	case <-r.standby.done:
	default:
		r.standBy(errStandbyRuns)
		select {
		case <-ctx.Done():
			return
		case <-r.standby.done:
		}
	}
	if rest <= 0 {
		return
	}
	r.options.Logger.Info("staying out of the election for a while", "lease", r.lease.Name(), "for", rest)
	r.set(func() { r.status.HoldOffUntil = time.Now().Add(rest) })
	defer r.set(func() { r.status.HoldOffUntil = time.Time{} })
	sleep.For(ctx, rest)
}

// campaign waits for the lease and goes through a term.
func (r *run) campaign(ctx context.Context) result {
	r.standBy(nil)
	r.standby = r.startStandby(ctx)
	defer r.standby.stop()
	stopFailBack := r.startFailBack(ctx)
	r.setTenure(nil, true)
	tenure, err := r.lease.Acquire(ctx)
	r.setTenure(tenure, false)
	stopFailBack()
	if err != nil {
		return result{err: err, ended: context.Cause(ctx)}
	}
	defer r.setTenure(nil, false)
	return r.serve(ctx, tenure)
}

// onWaiting is called by Acquire with what keeps the node from the lease, other than
// another leader. It does not wait for the observer, because Acquire waits for it.
func (r *run) onWaiting(cause error) {
	r.enter(Standby, hlc.Token{}, cause)
}

// serve goes through one term, from the acquired tenure to its release.
func (r *run) serve(ctx context.Context, tenure *lease.Tenure) result {
	// The function's context ends with Run's, with the node's health, with the
	// tenure, by Resign, or when a preferred node asks for the lead.
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	unlink := context.AfterFunc(tenure.Context(), func() { cancel(tenure.Err()) })
	defer unlink()

	term := &Term{tenure: tenure, guard: fencing.NewGuard(r.client, tenure), cancel: cancel}
	token, _ := term.Token()
	defer r.set(func() { r.term = nil })
	var yielding sync.WaitGroup
	var function <-chan error // what the leader function returns; nil: it does not run
	came := func(err error) result {
		_, over := tenure.Token() // before Err, which it may change
		res := result{err: err, lost: tenure.Err(), ended: context.Cause(ctx)}
		if over != nil {
			res.over = res.lost
		}
		return res
	}
	for res := came(nil); ; {
		p := r.next(res)
		switch p.step {
		case ready:
			res = came(r.standby.finish(ctx, tenure))
		case claim:
			res = came(r.claim(ctx, term, token))
		case activate:
			r.set(func() { r.term = term })
			res = came(r.enterAndWait(ctx, tenure, Active, token))
		case lead:
			if r.options.Rank > 0 {
				yielding.Go(func() { r.awaitFailBack(ctx, term) })
			}
			function = call("the leader function", func() error { return r.lead(ctx, term) })
			select {
			case err := <-function:
				res = came(err)
				res.returned = true
			case <-ctx.Done():
				res = came(nil)
			}
		case stop:
			cancel(p.cause)
			res = came(nil)
		case drain:
			tenure.StopRenewing() // from here on nothing that blocks keeps the lease
			yielding.Wait()
			delivered := r.enter(Draining, token, p.cause)
			res = came(nil)
			if function != nil {
				// If the observer is late, the lease is released anyway: the others wait for it.
				res.err = r.drain(tenure, function)
				_ = awaitInTenure(context.WithoutCancel(ctx), delivered, tenure, errObserverRuns)
			}
		default:
			r.release(ctx, tenure, token, p.cause)
			return came(nil)
		}
	}
}

// claim protects the keys of Options.Claim.
func (r *run) claim(ctx context.Context, term *Term, token hlc.Token) error {
	if len(r.options.Claim) == 0 {
		return nil
	}
	if err := r.enterAndWait(ctx, term.tenure, Claiming, token); err != nil {
		return err
	}
	_, err := term.guard.ClaimAll(ctx, r.options.Claim...)
	return err
}

// drain waits for the function. Nothing can make it return. If it takes longer than the
// tenure lasts, that is logged. If the tenure ended without a grace period, the function
// has as long as the grace period is by default.
func (r *run) drain(tenure *lease.Tenure, returned <-chan error) error {
	deadline := time.NewTimer(max(tenure.Remaining(), r.options.TTL/10))
	defer deadline.Stop()
	select {
	case err := <-returned:
		return err
	case <-deadline.C:
	}
	r.options.Logger.Error("the leader function did not return in time; its writes are refused and another node may lead",
		"lease", tenure.Name())
	return <-returned
}

// release frees the lease, whatever has become of ctx.
func (r *run) release(ctx context.Context, tenure *lease.Tenure, token hlc.Token, cause error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), r.options.TTL)
	defer cancel()
	switch err := tenure.Release(ctx); {
	case err == nil:
	case errors.Is(err, lease.ErrConnectionLost):
		// As it is meant to be: the broker releases the lease by the Will.
		r.options.Logger.Info("the lease ends with its connection", "lease", tenure.Name(), "error", err)
	default:
		r.options.Logger.Warn("the lease could not be released", "lease", tenure.Name(), "error", err)
		cause = errors.Join(cause, err)
	}
	delivered := r.enter(Released, token, cause)
	overdue := time.NewTimer(r.options.TTL)
	defer overdue.Stop()
	select {
	case <-delivered:
	case <-overdue.C:
		r.options.Logger.Error("the observer does not return; this node stays out until it does", "lease", tenure.Name())
		<-delivered
	}
}
