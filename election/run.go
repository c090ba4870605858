package election

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/cenkalti/backoff/v4"

	"github.com/tenurelock/tenure/fencing"
	"github.com/tenurelock/tenure/hlc"
	"github.com/tenurelock/tenure/internal/sleep"
	"github.com/tenurelock/tenure/lease"
	"github.com/tenurelock/tenure/transport"
)

// run is one call of Run.
type run struct {
	*Elector
	lead     func(context.Context, *Term) error
	monitor  monitor
	tasks    sync.WaitGroup // what Run waits for
	observer observerQueue
	standby  standby // the latest

	failBackEnded chan struct{} // closed when the latest fail-back request is deleted
}

// loop campaigns and leads in turns.
func (r *run) loop(ctx context.Context) error {
	holdOff := backoff.NewExponentialBackOff(
		backoff.WithInitialInterval(r.options.HoldOff),
		backoff.WithMultiplier(2),
		backoff.WithRandomizationFactor(0.1),
		backoff.WithMaxInterval(maxHoldOff*r.options.HoldOff),
		backoff.WithMaxElapsedTime(0), // for as long as it campaigns
	)
	follow := sync.OnceFunc(func() { r.tasks.Go(func() { r.followRequests(ctx) }) })
	rest := r.afterCrash(ctx) // how long to stay out before the next campaign
	for ctx.Err() == nil {
		healthy, err := r.monitor.await(ctx, r.standBy)
		if err != nil {
			return err
		}
		follow()
		if !r.stayOut(healthy, rest) {
			continue // and stay out for as long again once it is healthy
		}
		rest = 0
		t, err := r.campaign(healthy)
		interrupted := healthy.Err() != nil
		switch {
		case t.acquired && r.options.OneShot:
			return err
		case isTerminal(t.ended): // there will be no other term
			return fmt.Errorf("election: %w", t.ended)
		case !t.acquired && interrupted:
			continue
		case !t.acquired:
			// Even a refusal that looks permanent is worth another try: an operator may be
			// replacing the access rules, or another elector's lease may use the Will.
			r.options.Logger.Error("the campaign failed and will be repeated", "election", r.lease.Name(), "error", err)
			r.standBy(err)
		default:
			// A node that had its lease taken campaigns again at once, unless the term was
			// short: then what ended it may end the next one, too.
			if t.lasted >= r.options.TTL {
				holdOff.Reset()
				if t.taken {
					continue
				}
			}
		}
		rest = holdOff.NextBackOff()
	}
	return context.Cause(ctx)
}

// settle waits until a campaign that was given up is known to hold nothing, so that a program that
// closes its client after Run leaves no lease. It waits no longer than two requests take. Package
// lease logs what it could not free.
func (r *run) settle() {
	ctx, cancel := context.WithTimeout(context.Background(), 2*r.requestTimeout())
	defer cancel()
	_ = r.lease.Settle(ctx)
}

// outcome is how a campaign ended.
type outcome struct {
	acquired bool          // it got the lease; the rest is about the term that followed
	lasted   time.Duration // from the acquisition to the release
	taken    bool          // the lease was taken from this node, rather than given up
	ended    error         // why the tenure ended before its release, or why there was none
}

// isTerminal reports whether no request of this client can succeed any more.
func isTerminal(err error) bool {
	return errors.Is(err, transport.ErrClosed) || errors.Is(err, transport.ErrSessionTakenOver)
}

// afterCrash returns how long to stay out because an earlier process of this node
// crashed as the leader, and its lease is still in the store. Otherwise a preferred node
// that keeps crashing, and is restarted within the TTL, would take the lease again each
// time, and no other node would ever lead.
func (r *run) afterCrash(ctx context.Context) time.Duration {
	if r.options.FailBackAfter == 0 {
		return 0
	}
	look, cancel := context.WithTimeout(ctx, r.requestTimeout())
	defer cancel()
	holder, err := r.lease.Holder(look)
	if err != nil || holder.Name != r.holderName() {
		return 0
	}
	r.standBy(ErrCrashed)
	return r.options.TTL + r.options.HoldOff
}

// stayOut waits for the standby function of an earlier campaign, and then for
// rest. It reports false as soon as ctx ends.
func (r *run) stayOut(ctx context.Context, rest time.Duration) bool {
	select {
	case <-r.standby.done:
	default:
		r.standBy(errStandbyRuns)
		select {
		case <-ctx.Done():
			return false
		case <-r.standby.done:
		}
	}
	if rest <= 0 {
		return ctx.Err() == nil
	}
	r.options.Logger.Info("staying out of the election for a while", "election", r.lease.Name(), "for", rest)
	r.set(func() { r.status.HoldOffUntil = time.Now().Add(rest) })
	defer r.set(func() { r.status.HoldOffUntil = time.Time{} })
	return sleep.For(ctx, rest)
}

// campaign waits for the lease and goes through a term. The error is why it did not get
// the lease, or as with serve.
func (r *run) campaign(ctx context.Context) (o outcome, err error) {
	r.standBy(nil)
	r.standby = r.startStandby(ctx)
	defer r.standby.stop()
	stopFailBack := r.startFailBack(ctx)
	r.setTenure(nil, true)
	tenure, err := r.lease.Acquire(ctx)
	r.setTenure(tenure, false)
	stopFailBack()
	if err != nil {
		return outcome{ended: err}, err
	}
	defer r.setTenure(nil, false)
	began := time.Now()
	taken, err := r.serve(ctx, tenure)
	o = outcome{acquired: true, lasted: time.Since(began), taken: taken}
	if ended := tenure.Err(); !errors.Is(ended, lease.ErrReleased) {
		o.ended = ended
	}
	return o, err
}

// onWaiting is called by Acquire with what keeps the node from the lease, other than
// another leader. It does not wait for the observer, because Acquire waits for it.
func (r *run) onWaiting(cause error) {
	r.enter(Standby, hlc.Token{}, cause)
}

// serve goes through one term, from the acquired tenure to its release. It
// reports whether the tenure was taken from this node, rather than given up, and
// returns the error of lead, after why the tenure ended if that came first.
func (r *run) serve(ctx context.Context, tenure *lease.Tenure) (taken bool, err error) {
	// The function's context ends with Run's, with the node's health, with the
	// tenure, by Resign, or when a preferred node asks for the lead.
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	unlink := context.AfterFunc(tenure.Context(), func() { cancel(tenure.Err()) })
	defer unlink()

	term := &Term{tenure: tenure, guard: fencing.NewGuard(r.client, tenure), cancel: cancel}
	token, err := term.Token()
	if err == nil {
		err = r.standby.finish(ctx, tenure)
	}
	if err == nil {
		err = r.claim(ctx, term, token)
	}
	if err == nil {
		err = startable(ctx, tenure)
	}
	active := err == nil
	if active {
		r.set(func() { r.term = term })
		defer r.set(func() { r.term = nil })
		err = r.enterAndWait(ctx, tenure, Active, token)
	}
	if err == nil { // the observer may have taken long, too
		err = startable(ctx, tenure)
	}
	if err != nil {
		taken = tenure.Err() != nil
		err = afterTenure(tenure, err)
		if active { // the observer got Active, though the function was not called
			r.enter(Draining, token, err)
		}
		r.release(ctx, tenure, token, err)
		return taken, err
	}
	var yielding sync.WaitGroup
	if r.options.Rank > 0 {
		yielding.Go(func() { r.awaitFailBack(ctx, term) })
	}
	returned, hasReturned := call("the leader function", func() error { return r.lead(ctx, term) }), false
	select {
	case err = <-returned:
		hasReturned = true
		if _, over := tenure.Token(); over != nil {
			cancel(tenure.Err()) // the process stood still, so no timer has done it yet
		}
		cancel(errors.Join(ErrReturned, err))
	case <-ctx.Done():
	}
	tenure.StopRenewing() // from here on nothing that blocks keeps the lease
	yielding.Wait()
	cause := context.Cause(ctx)
	taken = cause == tenure.Err()
	cause = afterTenure(tenure, cause)
	delivered := r.enter(Draining, token, cause)
	if !hasReturned {
		err = r.drain(tenure, returned)
	}
	// If the observer is late, the lease is released anyway: the others wait for it.
	_ = awaitInTenure(context.WithoutCancel(ctx), delivered, tenure, errObserverRuns)
	r.release(ctx, tenure, token, cause)
	if taken {
		err = errors.Join(cause, err)
	}
	return taken, err
}

// afterTenure returns why a term ended. If its tenure is over, the cause of that comes first:
// all else came later or followed from it.
func afterTenure(tenure *lease.Tenure, cause error) error {
	if _, err := tenure.Token(); err == nil || errors.Is(cause, tenure.Err()) {
		return cause
	}
	return errors.Join(tenure.Err(), cause)
}

// startable returns why a term must not start any more, because the steps before it took
// too long. It asks the tenure's clock: a timer may not have fired yet.
func startable(ctx context.Context, tenure *lease.Tenure) error {
	if _, err := tenure.Token(); err != nil {
		return err
	}
	return context.Cause(ctx)
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
		"election", tenure.Name())
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
		r.options.Logger.Info("the lease ends with its connection", "election", tenure.Name(), "error", err)
	default:
		r.options.Logger.Warn("the lease could not be released", "election", tenure.Name(), "error", err)
		cause = errors.Join(cause, err)
	}
	delivered := r.enter(Released, token, cause)
	overdue := time.NewTimer(r.options.TTL)
	defer overdue.Stop()
	select {
	case <-delivered:
	case <-overdue.C:
		r.options.Logger.Error("the observer does not return; this node stays out until it does", "election", tenure.Name())
		<-delivered
	}
}
