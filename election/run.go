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
	"github.com/tenurelock/tenure/internal/pause"
	"github.com/tenurelock/tenure/lease"
)

// run is one call of Run.
type run struct {
	*Elector
	lead     func(context.Context, *Term) error
	monitor  *monitor
	tasks    sync.WaitGroup // what Run waits for
	standby  standby        // the latest
	bidEnded chan struct{}  // closed when nothing is left of the latest bid
}

// loop campaigns and leads by turns.
func (r *run) loop(ctx context.Context) error {
	holdOff := backoff.NewExponentialBackOff(
		backoff.WithInitialInterval(r.options.HoldOff),
		backoff.WithMultiplier(2),
		backoff.WithRandomizationFactor(0.1),
		backoff.WithMaxInterval(maxHoldOff*r.options.HoldOff),
		backoff.WithMaxElapsedTime(0), // for as long as it campaigns
	)
	rest := r.afterCrash(ctx) // how long to stay out before the next campaign
	for ctx.Err() == nil {
		fit, release, err := r.whileFit(ctx)
		if err != nil {
			return err
		}
		if !r.stayOut(fit, rest) {
			release()
			continue // and stay out for as long again once it is healthy
		}
		rest = 0
		began, taken, err := r.campaign(fit)
		unfit := fit.Err() != nil
		release()
		switch {
		case began.IsZero(): // it did not get the lease
			if unfit {
				continue
			}
			return fmt.Errorf("election: %w", err)
		case r.options.OneShot:
			return err
		case taken:
			continue // not of our own will: try at once
		}
		if time.Since(began) >= r.options.TTL {
			holdOff.Reset()
		}
		rest = holdOff.NextBackOff()
	}
	return context.Cause(ctx)
}

// afterCrash returns how long to stay out because an earlier process of this node
// died while it led, and its lease is still there. A preferred node that keeps
// crashing and is restarted within the TTL would otherwise win each vacancy that
// it causes, and nobody else would ever lead.
func (r *run) afterCrash(ctx context.Context) time.Duration {
	if r.options.FailBackAfter == 0 {
		return 0
	}
	look, cancel := context.WithTimeout(ctx, r.requestTimeout())
	defer cancel()
	holder, err := r.lease.Holder(look)
	own := r.options.Lease.Holder
	if own == "" {
		own = r.client.ClientID()
	}
	if err != nil || holder.Name != own {
		return 0
	}
	r.enter(Standby, hlc.Timestamp{}, ErrCrashed)
	return r.options.TTL + r.options.HoldOff
}

// whileFit waits until nothing keeps this node from campaigning, and returns a
// context that ends with ctx or when the node is not healthy any more. The error
// is the cause of ctx's end.
func (r *run) whileFit(ctx context.Context) (fit context.Context, release func(), err error) {
	period, err := r.monitor.await(ctx, func(cause error) { r.enter(Standby, hlc.Timestamp{}, cause) })
	if err != nil {
		return nil, nil, err
	}
	fit, cancel := context.WithCancelCause(ctx)
	unlink := context.AfterFunc(period, func() { cancel(context.Cause(period)) })
	return fit, func() { unlink(); cancel(nil) }, nil
}

// stayOut waits for the standby function of an earlier campaign, and then for
// rest. It reports false as soon as ctx ends.
func (r *run) stayOut(ctx context.Context, rest time.Duration) bool {
	if !r.standby.returned() {
		r.enter(Standby, hlc.Timestamp{}, ErrNotReady)
		select {
		case <-ctx.Done():
			return false
		case <-r.standby.done:
		}
	}
	if rest > 0 {
		return pause.For(ctx, rest)
	}
	return ctx.Err() == nil
}

// campaign waits for the lease and goes through a term. began is when it got the
// lease, zero if it did not; the rest is as with serve.
func (r *run) campaign(ctx context.Context) (began time.Time, taken bool, err error) {
	r.enter(Standby, hlc.Timestamp{}, nil)
	r.standby = r.startStandby(ctx)
	r.tasks.Go(r.standby.wait)
	defer r.standby.stop()
	stopBid := r.startBid(ctx)
	tenure, err := r.lease.Acquire(ctx)
	stopBid()
	if err != nil {
		return time.Time{}, false, err
	}
	began = time.Now()
	taken, err = r.serve(ctx, tenure)
	return began, taken, err
}

// startBid bids until stop is called or ctx ends. It does not wait for the bid to
// be withdrawn, which must not keep a term from starting.
func (r *run) startBid(ctx context.Context) (stop context.CancelFunc) {
	ctx, stop = context.WithCancel(ctx)
	if r.options.FailBackAfter == 0 {
		return stop
	}
	before, ended := r.bidEnded, make(chan struct{})
	r.bidEnded = ended
	r.tasks.Go(func() {
		defer close(ended)
		r.keepBid(ctx, before)
	})
	return stop
}

// serve goes through one term, from the acquired tenure to its release. It
// reports whether the tenure was taken from this node, rather than given up, and
// returns the error of lead.
func (r *run) serve(ctx context.Context, tenure *lease.Tenure) (taken bool, err error) {
	// The function's context ends with Run's, with the node's health, with the
	// tenure's, by Resign, or to yield.
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
	if err != nil {
		taken = tenure.Err() != nil
		r.release(ctx, tenure, token, err)
		return taken, err
	}
	r.setTerm(term)
	defer r.setTerm(nil)
	r.enter(Active, token, nil)
	var yielding sync.WaitGroup
	if r.options.Rank > 0 {
		yielding.Go(func() {
			if yield := r.awaitBid(ctx); yield != nil {
				cancel(yield)
			}
		})
	}
	returned, hasReturned := call(leaderFunction, func() error { return r.lead(ctx, term) }), false
	select {
	case err = <-returned:
		hasReturned = true
		cancel(errors.Join(ErrReturned, err))
	case <-ctx.Done():
	}
	yielding.Wait()
	cause := context.Cause(ctx)
	taken = cause == tenure.Err()
	tenure.StopRenewing()
	r.enter(Draining, token, cause)
	if !hasReturned {
		err = r.drain(tenure, returned)
	}
	r.release(ctx, tenure, token, cause)
	return taken, err
}

// startable returns why a term must not start any more: what went before it may
// have taken long. It asks the tenure's clock, since no timer need have fired.
func startable(ctx context.Context, tenure *lease.Tenure) error {
	if _, err := tenure.Token(); err != nil {
		return err
	}
	return context.Cause(ctx)
}

// claim protects the keys of Options.Claim.
func (r *run) claim(ctx context.Context, term *Term, token hlc.Timestamp) error {
	if len(r.options.Claim) == 0 {
		return nil
	}
	r.enter(Claiming, token, nil)
	_, err := term.guard.ClaimAll(ctx, r.options.Claim...)
	return err
}

// drain waits for the function. Nothing can make it return; it is reported when
// it takes longer than the tenure lasts.
func (r *run) drain(tenure *lease.Tenure, returned <-chan error) error {
	deadline := time.NewTimer(tenure.Remaining())
	defer deadline.Stop()
	select {
	case err := <-returned:
		return err
	case <-deadline.C:
	}
	r.options.Logger.Error("the function of the leader did not return in time; its writes are refused and another node may lead",
		"election", tenure.Name())
	return <-returned
}

// release frees the lease, whatever has become of ctx.
func (r *run) release(ctx context.Context, tenure *lease.Tenure, token hlc.Timestamp, cause error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), r.options.TTL)
	defer cancel()
	if err := tenure.Release(ctx); err != nil {
		r.options.Logger.Warn("the lease could not be released", "election", tenure.Name(), "error", err)
		cause = errors.Join(cause, err)
	}
	r.enter(Released, token, cause)
}

// enter tells the observer of a new phase. An observer that panics is reported,
// and not allowed to keep the lease from being released.
func (r *run) enter(phase Phase, token hlc.Timestamp, cause error) {
	if r.options.Observer == nil {
		return
	}
	transition := Transition{Phase: phase, At: time.Now(), Token: token, Cause: cause}
	// In a goroutine of its own, since it could end ours.
	err := <-call(observerFunction, func() error { r.options.Observer(transition); return nil })
	if err != nil {
		r.options.Logger.Error("the observer failed", "error", err)
	}
}
