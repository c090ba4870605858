package election

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"log/slog"
	"runtime/debug"
	"sync"
	"time"

	"github.com/cenkalti/backoff/v4"

	"github.com/tenurelock/tenure/fencing"
	"github.com/tenurelock/tenure/hlc"
	"github.com/tenurelock/tenure/internal/pause"
	"github.com/tenurelock/tenure/lease"
	"github.com/tenurelock/tenure/transport"
)

// Options configures an Elector. The zero value is safe.
type Options struct {
	// TTL is how long the others wait for a leader that is gone; see
	// lease.Options.TTL. Default 10 s.
	TTL time.Duration
	// Lease refines the timing of the lease. Its TTL is the TTL above.
	Lease lease.Options
	// Claim lists keys that a new leader protects with its token before its
	// function starts, so that no write of its predecessor can follow.
	Claim []string
	// HoldOff is how long a node stays out after it ended its own term (it
	// resigned, or its function returned or failed), so that another gets its
	// turn. It doubles, up to eightfold, while such terms are shorter than TTL.
	// Default TTL/2.
	HoldOff time.Duration
	// OneShot makes Run return after one term.
	OneShot bool
	// Observer is told of each change of phase, one at a time, in order. Run
	// waits for it, renewals do not.
	Observer func(Transition)
	// Logger receives what no caller can; nil keeps silent.
	Logger *slog.Logger
}

// maxHoldOff is how many times HoldOff can grow to.
const maxHoldOff = 8

// Elector campaigns for one name. Its methods are safe for concurrent use, but
// Run runs once at a time.
type Elector struct {
	client  *transport.Client
	lease   *lease.Lease
	options Options

	mu      sync.Mutex
	running bool
	term    *Term // while Active or Draining
}

// New returns an elector that campaigns for name, which is a key in the store.
// The error says which option makes no sense and which values would do.
func New(client *transport.Client, name string, options Options) (*Elector, error) {
	if options.Lease.TTL != 0 && options.Lease.TTL != options.TTL {
		return nil, fmt.Errorf("election: %q: Options.Lease.TTL is %v and Options.TTL %v; set Options.TTL alone",
			name, options.Lease.TTL, options.TTL)
	}
	if options.TTL == 0 {
		options.TTL = defaultTTL
	}
	if options.HoldOff < 0 {
		return nil, fmt.Errorf("election: %q: Options.HoldOff %v is negative", name, options.HoldOff)
	}
	if options.HoldOff == 0 {
		options.HoldOff = options.TTL / 2
	}
	if options.Logger == nil {
		options.Logger = slog.New(slog.DiscardHandler)
	}
	options.Lease.TTL = options.TTL
	if options.Lease.Logger == nil {
		options.Lease.Logger = options.Logger
	}
	options.Claim = append([]string(nil), options.Claim...)
	contested, err := lease.New(client, name, options.Lease)
	if err != nil {
		return nil, fmt.Errorf("election: %w", err)
	}
	return &Elector{client: client, lease: contested, options: options}, nil
}

const defaultTTL = 10 * time.Second

// Run campaigns, and calls lead whenever this node leads, until ctx ends. Calls
// of lead do not overlap. lead must return when its context ends; the error that
// it returns, or its panic as a *PanicError, ends the term, goes to the Observer,
// and with OneShot is what Run returns.
//
// Run returns the cause of ctx's end, or the error of a campaign that can never
// succeed: a client that is closed or was taken over, or a store that refuses
// the lease. When it returns, lead is not running and the lease is released as
// far as the store could be reached.
func (e *Elector) Run(ctx context.Context, lead func(ctx context.Context, term *Term) error) error {
	e.mu.Lock()
	running := e.running
	e.running = true
	e.mu.Unlock()
	if running {
		return ErrRunning
	}
	defer func() {
		e.mu.Lock()
		e.running = false
		e.mu.Unlock()
	}()
	holdOff := backoff.NewExponentialBackOff(
		backoff.WithInitialInterval(e.options.HoldOff),
		backoff.WithMultiplier(2),
		backoff.WithRandomizationFactor(0.1),
		backoff.WithMaxInterval(maxHoldOff*e.options.HoldOff),
		backoff.WithMaxElapsedTime(0), // for as long as it campaigns
	)
	for {
		e.enter(Standby, hlc.Timestamp{}, nil)
		tenure, err := e.lease.Acquire(ctx)
		if err != nil {
			if ctx.Err() != nil {
				return context.Cause(ctx)
			}
			return fmt.Errorf("election: %w", err)
		}
		began := time.Now()
		taken, err := e.serve(ctx, tenure, lead)
		switch {
		case e.options.OneShot:
			return err
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case taken:
			continue // not of our own will: try at once
		}
		if time.Since(began) > e.options.TTL {
			holdOff.Reset()
		}
		if !pause.For(ctx, holdOff.NextBackOff()) {
			return context.Cause(ctx)
		}
	}
}

// serve goes through one term, from the acquired tenure to its release. It
// reports whether the tenure was taken from this node, rather than given up, and
// returns the error of lead.
func (e *Elector) serve(ctx context.Context, tenure *lease.Tenure, lead func(context.Context, *Term) error) (taken bool, err error) {
	// The function's context ends with Run's, with the tenure's, or by Resign.
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	unlink := context.AfterFunc(tenure.Context(), func() { cancel(tenure.Err()) })
	defer unlink()

	term := &Term{tenure: tenure, guard: fencing.NewGuard(e.client, tenure), cancel: cancel}
	token, err := term.Token()
	if err == nil {
		err = e.claim(ctx, term, token)
	}
	if err != nil {
		taken = tenure.Err() != nil
		e.release(ctx, tenure, token, err)
		return taken, err
	}
	e.setTerm(term)
	defer e.setTerm(nil)
	e.enter(Active, token, nil)
	returned, hasReturned := start(ctx, term, lead), false
	select {
	case err = <-returned:
		hasReturned = true
		cancel(errors.Join(ErrReturned, err))
	case <-ctx.Done():
	}
	cause := context.Cause(ctx)
	taken = cause == tenure.Err()
	tenure.StopRenewing()
	e.enter(Draining, token, cause)
	if !hasReturned {
		err = e.drain(tenure, returned)
	}
	e.release(ctx, tenure, token, cause)
	return taken, err
}

// claim protects the keys of Options.Claim.
func (e *Elector) claim(ctx context.Context, term *Term, token hlc.Timestamp) error {
	if len(e.options.Claim) == 0 {
		return nil
	}
	e.enter(Claiming, token, nil)
	_, err := term.guard.ClaimAll(ctx, e.options.Claim...)
	return err
}

// drain waits for the function. Nothing can make it return; it is reported when
// it takes longer than the tenure lasts.
func (e *Elector) drain(tenure *lease.Tenure, returned <-chan error) error {
	deadline := time.NewTimer(tenure.Remaining())
	defer deadline.Stop()
	select {
	case err := <-returned:
		return err
	case <-deadline.C:
	}
	e.options.Logger.Error("the function of the leader did not return in time; its writes are refused and another node may lead",
		"election", tenure.Name())
	return <-returned
}

// release frees the lease, whatever has become of ctx.
func (e *Elector) release(ctx context.Context, tenure *lease.Tenure, token hlc.Timestamp, cause error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), e.options.TTL)
	defer cancel()
	if err := tenure.Release(ctx); err != nil {
		e.options.Logger.Warn("the lease could not be released", "election", tenure.Name(), "error", err)
		cause = errors.Join(cause, err)
	}
	e.enter(Released, token, cause)
}

// start runs the function of the leader in a goroutine, which ends with one
// item on the returned channel, even if the function panics.
func start(ctx context.Context, term *Term, lead func(context.Context, *Term) error) <-chan error {
	returned := make(chan error, 1)
	go func() {
		var err error
		finished := false
		defer func() {
			if !finished {
				err = &PanicError{Value: recover(), Stack: debug.Stack()}
			}
			returned <- err
		}()
		err = lead(ctx, term)
		finished = true
	}()
	return returned
}

// enter tells the observer of a new phase. An observer that panics is reported,
// and not allowed to keep the lease from being released.
func (e *Elector) enter(phase Phase, token hlc.Timestamp, cause error) {
	if e.options.Observer == nil {
		return
	}
	defer func() {
		if value := recover(); value != nil {
			e.options.Logger.Error("the observer panicked", "panic", value, "stack", string(debug.Stack()))
		}
	}()
	e.options.Observer(Transition{Phase: phase, At: time.Now(), Token: token, Cause: cause})
}

func (e *Elector) setTerm(term *Term) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.term = term
}

// Resign ends the present term, as [Term.Resign] does, and reports whether there
// was one.
func (e *Elector) Resign() bool {
	e.mu.Lock()
	term := e.term
	e.mu.Unlock()
	if term == nil {
		return false
	}
	term.Resign()
	return true
}

// Leader asks the store who leads at this moment.
func (e *Elector) Leader(ctx context.Context) (lease.Holder, error) { return e.lease.Holder(ctx) }

// Leaders returns who leads and then each change, until ctx ends or the client
// is closed; see [lease.Lease.Observe]. It works whether or not Run runs.
func (e *Elector) Leaders(ctx context.Context) iter.Seq[lease.Holder] { return e.lease.Observe(ctx) }
