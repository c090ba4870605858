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
	monitor  *monitor
	tasks    sync.WaitGroup // what Run waits for
	observer announcer
	standby  standby       // the latest
	bidEnded chan struct{} // closed when nothing is left of the latest bid
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
		t, err := r.campaign(fit)
		unfit := fit.Err() != nil
		release()
		switch {
		case t.acquired && r.options.OneShot:
			return err
		case isTerminal(t.ended): // there will be no other term
			return fmt.Errorf("election: %w", t.ended)
		case !t.acquired && isTerminal(err):
			return fmt.Errorf("election: %w", err)
		case !t.acquired && unfit:
			continue
		case !t.acquired:
			// Even what looks as if it would last is worth another try: its reason may be
			// an access rule that is being replaced, or a lease of another elector.
			r.options.Logger.Error("the campaign failed and will be repeated", "election", r.lease.Name(), "error", err)
			r.enter(Standby, err)
		default:
			// A node whose lease was taken campaigns again at once, unless the term was
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

// outcome is how a campaign ended.
type outcome struct {
	acquired bool          // it got the lease; the rest is about the term that followed
	lasted   time.Duration // from the acquisition to the release
	taken    bool          // the lease was taken from this node, rather than given up
	ended    error         // why the tenure ended before it was released; nil if it did not
}

// isTerminal reports whether no request of this client can succeed any more.
func isTerminal(err error) bool {
	return errors.Is(err, transport.ErrClosed) || errors.Is(err, transport.ErrSessionTakenOver)
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
	r.enter(Standby, ErrCrashed)
	return r.options.TTL + r.options.HoldOff
}

// whileFit waits until nothing keeps this node from campaigning, and returns a
// context that ends with ctx or when the node is not healthy any more. The error
// is the cause of ctx's end.
func (r *run) whileFit(ctx context.Context) (fit context.Context, release func(), err error) {
	period, err := r.monitor.await(ctx, func(cause error) { r.enter(Standby, cause) })
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
		r.enter(Standby, errStandbyRuns)
		select {
		case <-ctx.Done():
			return false
		case <-r.standby.done:
		}
	}
	if rest > 0 {
		return sleep.For(ctx, rest)
	}
	return ctx.Err() == nil
}

// campaign waits for the lease and goes through a term. The error is why it did not get
// the lease, or as with serve.
func (r *run) campaign(ctx context.Context) (o outcome, err error) {
	r.enter(Standby, nil)
	r.standby = r.startStandby(ctx)
	r.tasks.Go(r.standby.wait)
	defer r.standby.stop()
	r.barred.Store(false)
	stopBid := r.startBid(ctx)
	tenure, err := r.lease.Acquire(ctx)
	stopBid()
	if err != nil {
		return outcome{}, err
	}
	began := time.Now()
	taken, err := r.serve(ctx, tenure)
	o = outcome{acquired: true, lasted: time.Since(began), taken: taken}
	if ended := tenure.Err(); !errors.Is(ended, lease.ErrReleased) {
		o.ended = ended
	}
	return o, err
}

// onWaiting is called by Acquire with what keeps the node from the lease, other than
// another leader. It must not wait for the observer, because Acquire waits for it.
func (r *run) onWaiting(cause error) {
	r.barred.Store(cause != nil)
	r.observer.tell(Transition{Phase: Standby, At: time.Now(), Cause: cause})
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
// returns the error of lead, after why the tenure ended if that came first.
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
	active := err == nil
	if active {
		r.setTerm(term)
		defer r.setTerm(nil)
		err = r.show(ctx, tenure, Active, token)
	}
	if err == nil { // the observer may have taken long, too
		err = startable(ctx, tenure)
	}
	if err != nil {
		taken = tenure.Err() != nil
		err = afterTenure(tenure, err)
		if active { // as the observer was told, though the function was not called
			r.tell(Draining, token, err)
		}
		r.release(ctx, tenure, token, err)
		return taken, err
	}
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
		if _, over := tenure.Token(); over != nil {
			cancel(tenure.Err()) // as no timer has had time to do: the process stood still
		}
		cancel(errors.Join(ErrReturned, err))
	case <-ctx.Done():
	}
	yielding.Wait()
	cause := context.Cause(ctx)
	taken = cause == tenure.Err()
	cause = afterTenure(tenure, cause)
	tenure.StopRenewing()
	told := r.tell(Draining, token, cause)
	if !hasReturned {
		err = r.drain(tenure, returned)
	}
	_ = await(context.WithoutCancel(ctx), told, tenure) // late or not, the others wait for the lease
	r.release(ctx, tenure, token, cause)
	if taken {
		err = errors.Join(cause, err)
	}
	return taken, err
}

// afterTenure returns why a term ended. If its tenure is over, that comes first: what else
// happened came later or followed from it.
func afterTenure(tenure *lease.Tenure, cause error) error {
	if _, err := tenure.Token(); err == nil || errors.Is(cause, tenure.Err()) {
		return cause
	}
	return errors.Join(tenure.Err(), cause)
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
func (r *run) claim(ctx context.Context, term *Term, token hlc.Token) error {
	if len(r.options.Claim) == 0 {
		return nil
	}
	if err := r.show(ctx, term.tenure, Claiming, token); err != nil {
		return err
	}
	_, err := term.guard.ClaimAll(ctx, r.options.Claim...)
	return err
}

// drain waits for the function. Nothing can make it return; it is reported when
// it takes longer than the tenure lasts. Where that ended without notice, it has
// as long as a notice is by default.
func (r *run) drain(tenure *lease.Tenure, returned <-chan error) error {
	deadline := time.NewTimer(max(tenure.Remaining(), r.options.TTL/10))
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
	told := r.tell(Released, token, cause)
	overdue := time.NewTimer(r.options.TTL)
	defer overdue.Stop()
	select {
	case <-told:
	case <-overdue.C:
		r.options.Logger.Error("the observer does not return; this node stays out until it does", "election", tenure.Name())
		<-told
	}
}

// tell tells the observer of a new phase, and does not wait for it.
func (r *run) tell(phase Phase, token hlc.Token, cause error) (told <-chan struct{}) {
	return r.observer.tell(Transition{Phase: phase, At: time.Now(), Token: token, Cause: cause})
}

// enter tells the observer of a new phase without the lease, and waits for it as long as
// it takes, because no other node needs anything of this one then.
func (r *run) enter(phase Phase, cause error) { <-r.tell(phase, hlc.Token{}, cause) }

// show tells the observer of a new phase that comes before the function of the leader, and
// waits for it. The error says why the term cannot go on.
func (r *run) show(ctx context.Context, tenure *lease.Tenure, phase Phase, token hlc.Token) error {
	return await(ctx, r.tell(phase, token, nil), tenure)
}

// await waits until the observer was told, but no longer than the tenure lasts without a
// renewal, or until ctx ends: the others wait for this node to lead, or to let them lead.
func await(ctx context.Context, told <-chan struct{}, tenure *lease.Tenure) error {
	select {
	case <-told:
		return nil
	default:
	}
	patience := time.NewTimer(tenure.Remaining())
	defer patience.Stop()
	select {
	case <-told:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-patience.C:
		return errObserverRuns
	}
}
