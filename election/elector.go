package election

import (
	"context"
	"fmt"
	"iter"
	"sync"
	"sync/atomic"

	"github.com/tenurelock/tenure/fencing"
	"github.com/tenurelock/tenure/internal/protocol"
	"github.com/tenurelock/tenure/lease"
	"github.com/tenurelock/tenure/transport"
)

// Elector campaigns for one name. Its methods are safe for concurrent use, but
// Run runs once at a time.
type Elector struct {
	client  *transport.Client
	lease   *lease.Lease
	options Options

	mu      sync.Mutex
	running bool
	term    *Term // while Active or Draining

	onWaiting func(cause error) // of the present Run; only its goroutine uses it
	barred    atomic.Bool       // something other than a leader keeps this node from the lease
}

// New returns an elector that campaigns for name, which is a key in the store.
// The error says which option makes no sense and which values would do.
func New(client *transport.Client, name string, options Options) (*Elector, error) {
	if err := options.complete(); err != nil {
		return nil, fmt.Errorf("election: %q: %w", name, err)
	}
	for _, key := range options.Claim {
		if key == name || key == name+protocol.BidSuffix {
			return nil, fmt.Errorf("election: %q: Options.Claim has %q: %w", name, key, fencing.ErrLeaseKey)
		}
	}
	e := &Elector{client: client, options: options}
	alsoTold := options.Lease.OnWaiting
	options.Lease.OnWaiting = func(cause error) {
		e.onWaiting(cause)
		if alsoTold == nil {
			return
		}
		if err := <-call(waitingFunction, func() error { alsoTold(cause); return nil }); err != nil {
			e.options.Logger.Error("Options.Lease.OnWaiting failed", "error", err)
		}
	}
	var err error
	if e.lease, err = lease.New(client, name, options.Lease); err != nil {
		return nil, fmt.Errorf("election: %w", err)
	}
	return e, nil
}

// Run campaigns, and calls lead whenever this node leads, until ctx ends. Calls
// of lead do not overlap. lead must return when its context ends; the error that
// it returns, or its panic as a *PanicError, ends the term and goes to the Observer.
//
// Run returns the cause of ctx's end, or an error that matches transport.ErrClosed or
// ErrSessionTakenOver if the client is finished, and ErrRunning if it runs already. No
// refusal ends it: a campaign that fails is followed by a Standby with that cause, and by
// another campaign. With OneShot it also returns after a term: the error of lead, or why
// the term did not start; if the tenure ended before lead returned, it returns why, joined
// with the error of lead. When it returns, no function of the Options nor lead is
// running, and the lease is released and the bid withdrawn as far as the store could be
// reached.
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
	r := &run{Elector: e, lead: lead, monitor: newMonitor(&e.options), bidEnded: make(chan struct{})}
	close(r.bidEnded)
	r.observer = announcer{observer: e.options.Observer, logger: e.options.Logger, tasks: &r.tasks}
	e.onWaiting = r.onWaiting
	defer r.tasks.Wait()
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	// The end of the client must end even a node that stays out.
	unlinked := make(chan struct{})
	if !e.client.Go(func(client context.Context) {
		defer close(unlinked)
		select {
		case <-client.Done():
			cancel(fmt.Errorf("election: %w", context.Cause(client)))
		case <-ctx.Done():
		}
	}) {
		return fmt.Errorf("election: %w", transport.ErrClosed)
	}
	r.tasks.Go(func() { <-unlinked })
	r.tasks.Go(func() { r.monitor.run(ctx) })
	return r.loop(ctx)
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

// Leaders returns who leads and then each change, with an error where the store cannot
// be asked, until ctx ends or the client is finished; see [lease.Lease.Observe]. It works
// whether or not Run runs.
func (e *Elector) Leaders(ctx context.Context) iter.Seq2[lease.Holder, error] {
	return e.lease.Observe(ctx)
}
