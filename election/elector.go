package election

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tenurelock/tenure/fencing"
	"github.com/tenurelock/tenure/hlc"
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
	running atomic.Bool

	mu          sync.Mutex
	status      Status          // all but the Leader
	term        *Term           // from the acquisition of its lease to the release
	campaigning context.Context // of the healthy period in which it waits for the lease; nil: it does not
	since       time.Time       // when the campaign or the function of the term began
	notified    <-chan error    // closed when the observer has returned from what was told last

	tasks sync.WaitGroup // what Run waits for
}

// New returns an elector that campaigns for name, which is a key in the store.
// The error says which option makes no sense and which values would do.
func New(client *transport.Client, name string, options Options) (*Elector, error) {
	if err := options.complete(); err != nil {
		return nil, fmt.Errorf("election: %q: %w", name, err)
	}
	options.Lease.Holder = cmp.Or(options.Lease.Holder, client.ClientID())
	// Among the lines of the lease, which gets the program's logger.
	options.Logger = client.Dispatched(options.Logger).With("lease", name)
	none := make(chan error)
	close(none)
	e := &Elector{client: client, options: options, notified: none, status: Status{Phase: Stopped, Since: time.Now()}}
	options.Lease.OnWaiting = e.standBy
	var err error
	if e.lease, err = lease.New(client, name, options.Lease); err != nil {
		return nil, fmt.Errorf("election: %w", err)
	}
	return e, nil
}

// requestKey is the key at which the electors of a name are asked to hand over.
func requestKey(name string) string { return name + protocol.FailBackSuffix }

// Run campaigns, and calls lead whenever this node leads, until ctx ends. Calls of lead do not
// overlap. lead must return when its context ends. If it returns earlier, the term is over; its
// error, or its panic, is part of the cause that the Observer gets.
//
// Run returns the cause of ctx's end; an error that matches transport.ErrClosed or
// ErrSessionTakenOver if the client is finished; or an error if it is running already. No
// refusal ends it: a campaign that fails is followed by a Standby with that cause, and by
// another campaign. A program that wants one term only ends ctx in lead.
//
// When Run returns, neither lead nor a function of the Options is running. The lease is
// released and the fail-back request deleted, if the store could be reached.
func (e *Elector) Run(ctx context.Context, lead func(ctx context.Context, term *Term) error) (err error) {
	if !e.running.CompareAndSwap(false, true) {
		return errors.New("election: this elector is running already")
	}
	defer func() {
		e.set(func() { e.enterLocked(Stopped, err) })
		e.running.Store(false)
	}()
	r := &run{Elector: e, lead: lead, began: time.Now(), phases: phases{options: &e.options},
		periods: make(chan context.Context, 1), changed: make(chan struct{}, 1)}
	defer e.tasks.Wait()
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	// The end of the client ends Run during hold-off too.
	if !e.client.Go(func(client context.Context) {
		defer context.AfterFunc(client, func() {
			cancel(fmt.Errorf("election: %q: %w", e.lease.Name(), context.Cause(client)))
		})()
		<-ctx.Done()
	}) {
		return fmt.Errorf("election: %q: %w", e.lease.Name(), transport.ErrClosed)
	}
	r.tasks.Go(func() { r.checkHealth(ctx) })
	r.tasks.Go(func() { r.followRequests(ctx) })
	return r.loop(ctx)
}

// set changes fields that mu guards.
func (e *Elector) set(change func()) {
	e.mu.Lock()
	defer e.mu.Unlock()
	change()
}

// Resign ends the present term, and reports whether there was one: the context of the function ends
// with ErrResigned, and when the function has returned the lease is released. This node then
// stays out for its hold-off. Resign does not wait for any of that.
func (e *Elector) Resign() bool {
	_, term := e.stance()
	if term != nil {
		term.cancel(ErrResigned)
	}
	return term != nil
}

// Term is one period of leadership. It is safe for concurrent use.
type Term struct {
	tenure *lease.Tenure
	guard  *fencing.Guard
	token  hlc.Token
	ctx    context.Context // of the function: ends with the healthy period, with the tenure, by Resign, or to hand over
	cancel context.CancelCauseFunc

	function <-chan error // what the leader function returns; only the goroutine of Run uses it
}

// Guard returns the guard through which to write: it attaches the term's token
// and refuses to write once the tenure is over.
func (t *Term) Guard() *fencing.Guard { return t.guard }

// Tenure returns the tenure of the term: this holding of the lease.
func (t *Term) Tenure() *lease.Tenure { return t.tenure }

// Token returns the fencing token, for resources outside the store. Like
// [lease.Tenure.Token] it never blocks, and fails once the tenure is over.
func (t *Term) Token() (hlc.Token, error) { return t.tenure.Token() }
