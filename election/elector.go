package election

import (
	"cmp"
	"context"
	"fmt"
	"iter"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tenurelock/tenure/fencing"
	"github.com/tenurelock/tenure/internal/protocol"
	"github.com/tenurelock/tenure/lease"
	"github.com/tenurelock/tenure/transport"
)

// Elector campaigns for one name. Its methods are safe for concurrent use, but
// only one call of Run runs at a time.
type Elector struct {
	client  *transport.Client
	lease   *lease.Lease
	options Options

	mu          sync.Mutex
	term        *Term         // while Active or Draining
	tenure      *lease.Tenure // of the term, from its acquisition to its release
	campaigning bool          // waits for the lease, and so hears of its holder
	status      Status        // all but the Leader

	running   atomic.Bool
	onWaiting func(cause error) // of the present Run; only its goroutine uses it
}

// New returns an elector that campaigns for name, which is a key in the store.
// The error says which option makes no sense and which values would do; it matches
// fencing.ErrLeaseKey if Options.Claim has a key of the election itself.
func New(client *transport.Client, name string, options Options) (*Elector, error) {
	if err := options.complete(); err != nil {
		return nil, fmt.Errorf("election: %q: %w", name, err)
	}
	for _, key := range options.Claim {
		if key == name || key == name+protocol.FailBackSuffix {
			return nil, fmt.Errorf("election: Options.Claim has %q: %w", key, fencing.ErrLeaseKey)
		}
	}
	e := &Elector{client: client, options: options, status: Status{Phase: Stopped, Since: time.Now()}}
	next := options.Lease.OnWaiting
	options.Lease.OnWaiting = func(cause error) {
		e.onWaiting(cause)
		if next == nil {
			return
		}
		if err := <-call("Options.Lease.OnWaiting", func() error { next(cause); return nil }); err != nil {
			e.options.Logger.Error("Options.Lease.OnWaiting failed", "error", err)
		}
	}
	var err error
	if e.lease, err = lease.New(client, name, options.Lease); err != nil {
		return nil, fmt.Errorf("election: %w", err)
	}
	return e, nil
}

// Run campaigns, and calls lead whenever this node leads, until ctx ends. Calls of lead do not
// overlap. lead must return when its context ends. If it returns earlier, the term is over; its
// error, or its panic as a *PanicError, is part of the cause that the Observer gets.
//
// Run returns the cause of ctx's end; an error that matches transport.ErrClosed or
// ErrSessionTakenOver if the client is finished; or ErrRunning if it is running already. No
// refusal ends it: a campaign that fails is followed by a Standby with that cause, and by
// another campaign. With OneShot it also returns after a term: the error of lead, or why
// the term did not start; if the tenure ended before lead returned, it returns why, joined
// with the error of lead.
//
// When Run returns, neither lead nor a function of the Options is running. The lease is
// released and the fail-back request deleted, if the store could be reached.
func (e *Elector) Run(ctx context.Context, lead func(ctx context.Context, term *Term) error) (err error) {
	if !e.running.CompareAndSwap(false, true) {
		return ErrRunning
	}
	defer func() {
		e.set(func() { e.status = Status{Phase: Stopped, Since: time.Now(), Term: e.status.Term, Cause: err} })
		e.running.Store(false)
	}()
	ended := make(chan struct{})
	close(ended)
	r := &run{Elector: e, lead: lead, began: time.Now(), phases: phases{options: &e.options}, standby: standby{done: ended}, failBackEnded: ended}
	r.monitor.options, r.monitor.changed, r.monitor.tasks = &e.options, make(chan struct{}), &r.tasks
	e.onWaiting = r.onWaiting
	defer r.tasks.Wait()
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	// The end of the client ends Run during hold-off too.
	r.tasks.Add(1)
	if !e.client.Go(func(client context.Context) {
		defer r.tasks.Done()
		select {
		case <-client.Done():
			cancel(fmt.Errorf("election: %q: %w", e.lease.Name(), context.Cause(client)))
		case <-ctx.Done():
		}
	}) {
		r.tasks.Done()
		return fmt.Errorf("election: %q: %w", e.lease.Name(), transport.ErrClosed)
	}
	r.tasks.Go(func() { r.monitor.run(ctx) })
	defer r.settle()
	return r.loop(ctx)
}

// set changes fields that mu guards.
func (e *Elector) set(change func()) {
	e.mu.Lock()
	defer e.mu.Unlock()
	change()
}

// stance returns what this node is to requests now, and its term; nil: there is none.
func (e *Elector) stance() (stance, *Term) {
	e.mu.Lock()
	defer e.mu.Unlock()
	s := stance{options: &e.options, clientID: e.client.ClientID(), holder: e.holderName(),
		holds: e.tenure != nil, campaigning: e.campaigning && e.status.Cause == nil}
	if e.term != nil {
		s.tenure, s.yields = e.term.tenure.Value(), e.term.yields
	}
	return s, e.term
}

// holderName is the name under which this node holds the lease.
func (e *Elector) holderName() string {
	return cmp.Or(e.options.Lease.Holder, e.client.ClientID())
}

// Resign ends the present term, as [Term.Resign] does, and reports whether there was one.
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

// Leader asks the store which node leads, and waits for the answer until ctx ends. Status
// answers at once, from what the node knows. For errors see [lease.Lease.Holder].
func (e *Elector) Leader(ctx context.Context) (lease.Holder, error) { return e.lease.Holder(ctx) }

// Leaders returns the leader and then each change of leader, also without Run, with an error
// where the store cannot be asked, until ctx or the client ends; see [lease.Lease.Observe].
func (e *Elector) Leaders(ctx context.Context) iter.Seq2[lease.Holder, error] {
	return e.lease.Observe(ctx)
}
