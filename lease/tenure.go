package lease

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/tenurelock/tenure/hlc"
	"github.com/tenurelock/tenure/internal/closed"
	"github.com/tenurelock/tenure/internal/operror"
	"github.com/tenurelock/tenure/internal/random"
	"github.com/tenurelock/tenure/internal/wake"
	"github.com/tenurelock/tenure/transport"
)

// Tenure is one uninterrupted holding of a lease. It renews itself until it is released or
// lost, ends exactly once, and never comes back. It is safe for concurrent use. Only Bind, Confirm
// and Release wait for the network.
type Tenure struct {
	*attempt
	token    hlc.Token
	acquired time.Duration // when the tenure began, on the lease's clock

	wake  chan struct{}  // holds an item if the goroutine of the tenure has to look at the schedule
	looks sync.WaitGroup // calls of look that are due or under way
	// released is a semaphore of Release. It holds an item from the end of run on: is the tenure known to be gone
	// from the store?
	released chan bool

	usable context.Context // TokenContext
	expire context.CancelCauseFunc

	mu       sync.Mutex
	work     context.Context // Context; nil until the program asks for it: many tenures are short
	warn     context.CancelCauseFunc
	schedule schedule
	timer    *time.Timer        // runs look; nil before the first wait
	giveUp   context.CancelFunc // of the latest renewal; nil before the first

	// confirmed is, for each client, the connection over which the store last said that it
	// has this tenure. Only stores without an identity need it.
	confirmed map[*transport.Client]<-chan struct{}
}

// begin starts a tenure that was acquired by a request sent at sent. ctx is the caller's,
// for the Trace.
func (a *attempt) begin(ctx context.Context, token hlc.Token, sent time.Duration) (*Tenure, error) {
	l := a.lease
	t := &Tenure{
		attempt:  a,
		token:    token,
		acquired: l.options.Clock(),
		wake:     make(chan struct{}, 1),
		released: make(chan bool, 1),
		schedule: newSchedule(&l.options, sent, random.Fraction()),
	}
	t.usable, t.expire = context.WithCancelCause(context.Background())
	if a.store == "" {
		t.confirmed = map[*transport.Client]<-chan struct{}{l.client: a.connection}
	}
	if !l.client.Go(t.run) {
		t.end(transport.ErrClosed)
		return nil, transport.ErrClosed
	}
	t.reportAcquired(ctx, sent)
	wake.Up(t.wake)
	_, _ = t.remaining() // the process may have stood still: the tenure must not be behind
	a.waiter = nil       // a tenure keeps its attempt
	l.last.Store(nil)
	l.limit.Reset()
	return t, nil
}

// Name returns the name of the lease.
func (t *Tenure) Name() string { return t.lease.name }

// Value returns what the lease's key holds while this tenure lasts: see [Holder.Value].
func (t *Tenure) Value() string { return t.value }

// Context returns a context for the work that this tenure allows. It ends when the tenure
// ends, or Options.GracePeriod before the deadline if renewals fail. context.Cause says why.
func (t *Tenure) Context() context.Context {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.work == nil {
		t.work, t.warn = context.WithCancelCause(t.usable)
		t.endContextsLocked()
	}
	return t.work
}

// TokenContext returns a context for requests that carry the token. It ends when Token
// begins to refuse, up to Options.GracePeriod after Context. context.Cause says why.
func (t *Tenure) TokenContext() context.Context { return t.usable }

// Token returns the fencing token: the version that the store gave to the request which
// acquired the lease. Renewals do not change it. It is greater than the tokens of all
// earlier tenures and smaller than the tokens of all later ones.
//
// Once the tenure is over, Token returns an error that says why. It looks at the lease's
// clock in each call, so a process that was stopped or suspended past the deadline cannot
// get a token, even if none of its other goroutines has run since.
func (t *Tenure) Token() (hlc.Token, error) {
	if _, err := t.remaining(); err != nil {
		return hlc.Token{}, operror.New("lease: token of", t.lease.name, err)
	}
	return t.token, nil
}

// Remaining returns how long the tenure lasts if no further renewal succeeds; zero: it is over.
func (t *Tenure) Remaining() time.Duration {
	left, _ := t.remaining()
	return left
}

func (t *Tenure) remaining() (time.Duration, error) { return t.note(event{}) }

// note reports an event to the schedule, and leaves to the goroutine what is to be done then. It returns
// how long the tenure lasts if no further renewal succeeds, or why it is over.
func (t *Tenure) note(e event) (left time.Duration, cause error) {
	now := t.lease.options.Clock()
	t.mu.Lock()
	defer t.mu.Unlock()
	t.noteLocked(now, e)
	if t.schedule.cause != nil {
		return 0, t.schedule.cause
	}
	return t.schedule.deadline - now, nil
}

// noteLocked is note at a time. It reports whether the goroutine has something to do.
func (t *Tenure) noteLocked(now time.Duration, e event) bool {
	t.schedule = t.schedule.after(now, t.withSignals(e))
	t.endContextsLocked()
	due := t.schedule.cause != nil || now >= t.schedule.due(now)
	if due {
		wake.Up(t.wake)
	}
	return due
}

// withSignals returns e, or what ends the tenure before it: a lost connection, or another store.
func (t *Tenure) withSignals(e event) event {
	return e.unless(closed.Is(t.lost), closed.Is(t.replaced))
}

// endContextsLocked makes the contexts follow the schedule.
func (t *Tenure) endContextsLocked() {
	if warned := t.schedule.warned; warned != nil && t.work != nil && t.work.Err() == nil {
		t.warn(operror.New("lease: tenure of", t.lease.name, warned))
	}
	if cause := t.schedule.cause; cause != nil && t.usable.Err() == nil {
		t.expire(operror.New("lease: tenure of", t.lease.name, cause))
	}
	if t.schedule.stopped && t.giveUp != nil {
		t.giveUp()
	}
}

// end ends the tenure, unless it has ended.
func (t *Tenure) end(cause error) { _, _ = t.note(event{kind: ended, err: cause}) }

// FencedOut ends the tenure at once, because a protected resource refused its token, usually
// because it has seen a newer one. A program that meets such a refusal calls FencedOut and
// retries nothing: there is another holder. evidence becomes part of the cause, which is
// ErrStoreReplaced if evidence matches transport.ErrOtherStore, and ErrFencedOut otherwise.
func (t *Tenure) FencedOut(evidence error) { t.end(refusedBy(evidence)) }

// refusedBy returns the cause of the end of a tenure whose token or store was refused.
func refusedBy(evidence error) error {
	if errors.Is(evidence, transport.ErrOtherStore) {
		return fmt.Errorf("%w: %w", ErrStoreReplaced, evidence)
	}
	return fmt.Errorf("%w: %w", ErrFencedOut, evidence)
}

// Bind returns what ties a request of client on behalf of this tenure to the store that granted
// it. Another store, such as one that was restarted without its data, refuses the request.
//
// Stores deployed today have no identity. With them, the request is tied to the present
// connection of client. Once for each connection, and again after a request met no store
// (transport.ErrNoStore), Bind asks the store whether it still has this tenure, and ends the
// tenure if it does not. If the tenure ends with its connection, a request of the client
// that holds the lease is tied to that connection too.
//
// Bind waits no longer than the tenure lasts, nor than it would last without another renewal. The error
// is why the tenure ended, why the store could not be asked, or the end of ctx.
func (t *Tenure) Bind(ctx context.Context, client *transport.Client) (transport.Binding, error) {
	now := time.Now() // first: if the process stands still in between, the wait is shorter, and never longer
	return t.bind(ctx, client, now.Add(t.Remaining()))
}

// bind is Bind with a bound in time.
func (t *Tenure) bind(ctx context.Context, client *transport.Client, until time.Time) (transport.Binding, error) {
	for {
		binding, confirmed := t.confirmedBinding(client)
		if confirmed {
			return binding, nil
		}
		ask := binding
		ask.While, ask.Until = t.usable, until
		if closed.Is(ask.Connection) {
			ask.Connection = nil // wait for the next connection, and ask again over that
		}
		if err := t.ask(ctx, client, ask); err != nil {
			if errors.Is(err, transport.ErrNotSent) && !errors.Is(err, transport.ErrNoStore) && closed.Is(binding.Connection) &&
				ctx.Err() == nil && t.usable.Err() == nil && time.Now().Before(until) && !isTerminal(err) {
				continue
			}
			return binding, asNotSent(err)
		}
		if ask.Connection == nil {
			continue
		}
		t.mu.Lock()
		t.confirmed[client] = ask.Connection
		t.mu.Unlock()
	}
}

// confirmedBinding returns the binding of Bind, and whether the store need not be asked for it.
func (t *Tenure) confirmedBinding(client *transport.Client) (binding transport.Binding, confirmed bool) {
	binding = transport.Binding{Store: t.store, Connection: t.lost}
	if t.store != "" || t.lost != nil && client == t.lease.client {
		return binding, true
	}
	binding.Connection = client.Unbroken()
	t.mu.Lock()
	defer t.mu.Unlock()
	return binding, t.confirmed[client] == binding.Connection && !closed.Is(binding.Connection)
}

// Confirm asks the store once, for Options.RequestTimeout at most, whether it still has this tenure,
// and ends the tenure if it does not. A lease that was taken by force is otherwise noticed with the
// next notification or renewal. Nil means that the store had the tenure when it answered.
//
// The error is why the tenure is over, or why the store could not be asked: then the tenure goes on.
func (t *Tenure) Confirm(ctx context.Context) error {
	_, err := t.remaining()
	if err == nil {
		err = t.ask(ctx, t.lease.client, transport.Binding{Store: t.store, Connection: t.lost})
	}
	return operror.New("lease: confirm", t.lease.name, operror.Inner(err))
}

// ask asks the store whether it has this tenure, and ends the tenure if it does not. The
// error says why that is not known, or is the cause of the end.
func (t *Tenure) ask(ctx context.Context, client *transport.Client, binding transport.Binding) error {
	entry, err := t.lease.get(ctx, client, binding, t.lease.options.probeHeld())
	switch e := answered(t.value, entry, err); {
	case e.kind == ended:
		t.end(e.err)
	case err != nil:
		return err
	}
	_, over := t.remaining()
	return over
}

// StopRenewing lets the tenure run out: it lasts until its deadline, unless Release ends it
// earlier. It bounds the time in which work must stop.
func (t *Tenure) StopRenewing() { _, _ = t.note(event{kind: stopped}) }

// Release ends the tenure and frees the lease at the store, so that the next holder does not
// wait for the TTL. Stop the work first: Token refuses from the call on. It deletes the key only
// while that has this tenure's value, so it never frees the lease of another holder.
//
// Requests are repeated until the outcome is known, ctx ends, or the TTL is over. If that is over
// already, Release asks once, for Options.RequestTimeout at most: a store that has restarted with
// its data, or taken over, gives the lease its whole lifetime again.
//
// A nil error means that the store holds nothing of this tenure, so it is not an error to release
// a tenure that was lost, or to release twice. After an error the store may hold the lease until
// its TTL ends, or, if the store restarts with its data meanwhile, for a TTL after that. Release may
// be called again, and an acquisition of the same Lease that meets what was left frees it. Other
// than that, no request of this tenure is sent once Release has returned.
//
// With Options.InstantFailover, a tenure that ends with its connection sends nothing over the
// next one, and the error is ErrConnectionLost. The Will of that connection releases the lease, unless the client
// has replaced the connection itself for another Will.
func (t *Tenure) Release(ctx context.Context) error {
	t.end(ErrReleased)
	gone := false
	select {
	case gone = <-t.released: // no request is under way: a renewal was cancelled, and no other follows
	case <-ctx.Done():
		return t.releaseError(context.Cause(ctx))
	}
	defer func() { t.released <- gone }()
	if gone = gone || t.isGone(); gone {
		return nil
	}
	if err := t.lease.free(ctx, t.value, t.binding(), t.leftAtStore()); err != nil {
		return t.releaseError(err)
	}
	gone = true
	return nil
}

// isGone reports whether an answer has shown that the store holds nothing of this tenure.
func (t *Tenure) isGone() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	// If the client of a guard met another store, this lease's client may still be connected
	// to the store that has the tenure.
	return errors.Is(t.schedule.cause, ErrLost) || errors.Is(t.schedule.cause, ErrStoreReplaced) && closed.Is(t.replaced)
}

// leftAtStore returns how long the store may still have this tenure, as far as it is known to be renewed: until its
// TTL is over, by the slower of the two clocks.
func (t *Tenure) leftAtStore() time.Duration {
	o := &t.lease.options
	now := o.Clock()
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.schedule.deadline + 2*o.Margin + o.RequestTimeout - now // the request may have taken so long to arrive
}

// releaseError says when the store no longer has the lease: it gives it a whole lifetime again if it restarts with
// its data.
func (t *Tenure) releaseError(err error) error {
	err = fmt.Errorf("%w; it expires within %v, or as long after a restart of the store with its data",
		err, t.lease.options.TTL)
	return operror.New("lease: release", t.lease.name, err)
}
