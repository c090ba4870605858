package lease

import (
	"context"
	"errors"
	"fmt"
	"math"
	"sync"
	"time"

	"github.com/tenurelock/tenure/hlc"
	"github.com/tenurelock/tenure/internal/random"
	"github.com/tenurelock/tenure/transport"
)

// Tenure is one uninterrupted holding of a lease. It renews itself until it is
// released or lost, ends exactly once, and never comes back. It is safe for
// concurrent use, and no method but Release waits for the network.
type Tenure struct {
	lease *Lease
	*candidacy
	token hlc.Token

	ctx    context.Context // for the owner's work
	cancel context.CancelCauseFunc

	living    context.Context // ends with cause
	die       context.CancelCauseFunc
	stopped   chan struct{} // closed when no renewal may be sent any more
	idle      chan struct{} // closed when keep has returned
	releasing chan struct{} // holds one item while a Release is under way

	mu       sync.Mutex
	sent     time.Duration // on the lease's clock: when the latest request for the lease left
	deadline time.Duration // on the lease's clock: past it the tenure is over
	failure  error         // why the latest renewal failed; nil if it did not
	cause    error         // why it is over; nil before
	freed    bool          // the store is known to hold nothing of this tenure

	cancelRenewal context.CancelFunc // of the one under way, if any

	// confirmed has, for each client, the connection over which the store last said that it
	// has this tenure. It is for stores without an identity.
	confirmed map[*transport.Client]<-chan struct{}
}

// begin starts a tenure that was acquired by a request sent at sent.
func (l *Lease) begin(c *candidacy, token hlc.Token, sent time.Duration) (*Tenure, error) {
	t := &Tenure{
		lease:     l,
		candidacy: c,
		token:     token,
		stopped:   make(chan struct{}),
		idle:      make(chan struct{}),
		releasing: make(chan struct{}, 1),
		sent:      sent,
		deadline:  l.deadline(sent),
	}
	if c.store == "" && !isClosed(c.connection) {
		t.confirmed = map[*transport.Client]<-chan struct{}{l.client: c.connection}
	}
	t.ctx, t.cancel = context.WithCancelCause(context.Background())
	t.living, t.die = context.WithCancelCause(context.Background())
	if !l.client.Go(func(client context.Context) { t.keep(client, sent) }) {
		return nil, transport.ErrClosed
	}
	return t, nil
}

// deadline is when a tenure is over whose last accepted request left at sent.
func (l *Lease) deadline(sent time.Duration) time.Duration {
	return sent + l.options.TTL - l.options.Margin
}

// Name returns the name of the lease.
func (t *Tenure) Name() string { return t.lease.name }

// Context returns a context for the work that this tenure allows. It ends when
// the tenure ends, and Options.GracePeriod before the deadline if renewals fail;
// context.Cause says why.
func (t *Tenure) Context() context.Context { return t.ctx }

// TokenContext returns a context for requests that carry the token. It ends when Token
// begins to refuse, which is later than Context by up to Options.GracePeriod; context.Cause
// says why.
func (t *Tenure) TokenContext() context.Context { return t.living }

// Done is closed when Context ends.
func (t *Tenure) Done() <-chan struct{} { return t.ctx.Done() }

// Err returns nil while Context is alive and then the cause of its end.
func (t *Tenure) Err() error { return context.Cause(t.ctx) }

// Token returns the fencing token: the version that the store gave to the
// request which acquired the lease. It stays the same through all renewals, is
// greater than every token of earlier tenures and smaller than those of later
// ones.
//
// Once the tenure is over Token returns an error instead, which says why. That
// is decided inside the call, on the lease's clock: a process that was stopped
// or suspended past the deadline cannot get a token, whatever its goroutines
// have had time to notice.
func (t *Tenure) Token() (hlc.Token, error) {
	if _, err := t.remaining(); err != nil {
		return hlc.Token{}, fmt.Errorf("lease: token of %q: %w", t.lease.name, err)
	}
	return t.token, nil
}

// Remaining returns how long the tenure lasts if no further renewal succeeds;
// zero once it is over.
func (t *Tenure) Remaining() time.Duration {
	left, _ := t.remaining()
	return left
}

// Deadline returns the time of day at which the tenure is over if no further
// renewal succeeds. It is for people; Remaining does not depend on the time of
// day.
func (t *Tenure) Deadline() time.Time { return time.Now().Add(t.Remaining()) }

func (t *Tenure) remaining() (time.Duration, error) {
	return t.remainingAt(t.lease.options.Clock())
}

func (t *Tenure) remainingAt(now time.Duration) (time.Duration, error) {
	t.mu.Lock()
	switch {
	case t.cause != nil:
	case isClosed(t.replaced):
		t.endLocked(ErrStoreReplaced)
	case isClosed(t.lost):
		t.endLocked(ErrConnectionLost)
	case now >= t.deadline:
		t.endLocked(t.lateLocked())
	}
	left, cause := t.deadline-now, t.cause
	t.mu.Unlock()
	if cause != nil {
		return 0, cause
	}
	return left, nil
}

// lateLocked is the cause of a tenure that was not renewed in time. It tells of the last
// renewal, but does not match its error: it becomes part of the errors of writes that were
// not sent, of which the outcome is well known.
func (t *Tenure) lateLocked() error {
	if t.failure == nil {
		return ErrDeadlinePassed
	}
	return fmt.Errorf("%w; the last one: %v", ErrDeadlinePassed, t.failure)
}

// end makes the tenure over, unless it was.
func (t *Tenure) end(cause error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.cause == nil {
		t.endLocked(cause)
	}
}

func (t *Tenure) endLocked(cause error) {
	t.cause = cause
	ended := t.causeError(cause)
	t.die(ended)
	t.cancel(ended)
}

func (t *Tenure) causeError(cause error) error { return &endedError{t.lease.name, cause} }

// endedError is what the contexts of a tenure end with. Its text is seldom asked for.
type endedError struct {
	lease string
	cause error
}

func (e *endedError) Error() string {
	return fmt.Sprintf("lease: tenure of %q ended: %v", e.lease, e.cause)
}
func (e *endedError) Unwrap() error { return e.cause }

// FencedOut ends the tenure at once, because a protected resource refused its
// token, as a rule in favour of a newer one. A program that sees such a refusal calls it
// and retries nothing: another holder has been elected. evidence becomes part of the
// cause, which is ErrStoreReplaced if evidence matches transport.ErrOtherStore, and
// ErrFencedOut otherwise.
func (t *Tenure) FencedOut(evidence error) {
	if errors.Is(evidence, transport.ErrOtherStore) {
		t.end(fmt.Errorf("%w: %w", ErrStoreReplaced, evidence))
		return
	}
	t.end(fmt.Errorf("%w: %w", ErrFencedOut, evidence))
}

// Bind returns what ties a request of client, made on behalf of this tenure, to the store
// that granted it. Another store, such as one that was restarted without its data, then
// refuses the request.
//
// A store deployed today has no identity. The request is then tied to the present
// connection of client instead, and once for each connection, and again after a request
// met no store (transport.ErrNoStore), Bind asks the store whether it still has this
// tenure, which ends if it does not. A request of the client that holds the lease is tied
// to its connection where the tenure ends with that.
//
// The error is why the tenure ended, or why the store could not be asked. Bind waits no
// longer than ctx lasts.
func (t *Tenure) Bind(ctx context.Context, client *transport.Client) (transport.Binding, error) {
	binding := transport.Binding{Store: t.store, Connection: t.lost}
	if t.store != "" || t.lost != nil && client == t.lease.client {
		return binding, nil
	}
	for {
		binding.Connection = client.Unbroken()
		t.mu.Lock()
		confirmed := t.confirmed[client]
		t.mu.Unlock()
		if confirmed == binding.Connection && !isClosed(binding.Connection) {
			return binding, nil
		}
		ask := binding
		if isClosed(ask.Connection) {
			ask.Connection = nil // there is none: wait for the next, and ask again over that
		}
		if err := t.ask(ctx, client, ask); err != nil {
			if errors.Is(err, transport.ErrNotSent) && !errors.Is(err, transport.ErrNoStore) &&
				isClosed(binding.Connection) && ctx.Err() == nil && !isTerminal(err) {
				continue
			}
			return binding, asNotSent(err)
		}
		if ask.Connection == nil {
			continue
		}
		t.mu.Lock()
		if t.confirmed == nil {
			t.confirmed = make(map[*transport.Client]<-chan struct{})
		}
		t.confirmed[client] = ask.Connection
		t.mu.Unlock()
	}
}

// ask asks the store whether it holds this tenure, and ends the tenure if it does not.
// The error says why that is not known, or is the cause of the end.
func (t *Tenure) ask(ctx context.Context, client *transport.Client, binding transport.Binding) error {
	entry, err := t.lease.get(ctx, client, binding)
	switch {
	case errors.Is(err, transport.ErrOtherStore):
		t.FencedOut(err)
	case err != nil:
		return err
	case !entry.Exists:
		t.end(ErrDeleted)
	case !t.isOurs(entry):
		t.end(ErrLost)
	}
	_, over := t.remaining()
	return over
}

// StopRenewing lets the tenure run out: it goes on until its deadline, and
// Release may still end it earlier. It bounds the time that winding up may take.
func (t *Tenure) StopRenewing() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.stopRenewingLocked()
}

func (t *Tenure) stopRenewingLocked() {
	if !isClosed(t.stopped) {
		close(t.stopped)
	}
	if t.cancelRenewal != nil {
		t.cancelRenewal()
	}
}

// Release ends the tenure and frees the lease at the store, so that the next
// holder need not wait for the TTL. Stop the work first: from the call on the
// token is refused.
//
// Requests are repeated until the answer is known, ctx ends, or the TTL is over
// anyway, which counts as released. A nil error means that nothing of this tenure is left in the store, so
// releasing a tenure that was lost, or releasing twice, is no error. Otherwise
// the lease frees itself when the TTL ends, or another Release may try again.
// Once Release has returned, no request of this tenure is sent.
func (t *Tenure) Release(ctx context.Context) error {
	t.end(ErrReleased)
	select {
	case t.releasing <- struct{}{}:
		defer func() { <-t.releasing }()
	case <-ctx.Done():
		return t.releaseError(context.Cause(ctx))
	}
	select {
	case <-t.idle: // a renewal under way was cancelled; nothing follows it
	case <-ctx.Done():
		return t.releaseError(context.Cause(ctx))
	}
	left := t.leftAtStore()
	if left <= 0 {
		return nil
	}
	if t.bequest != nil && isClosed(t.lost) {
		// Nothing of a tenure that ends with its connection is sent over the next one.
		return t.releaseError(fmt.Errorf("%w, and the broker releases the lease by the Will of that", ErrConnectionLost))
	}
	if err := t.lease.free(ctx, t.value, t.binding(), left); err != nil && t.leftAtStore() > 0 {
		return t.releaseError(err)
	}
	t.mu.Lock()
	t.freed = true
	t.mu.Unlock()
	return nil
}

// leftAtStore returns how long the store may keep something of this tenure: until
// the TTL of its latest request is over, by the slower of the two clocks.
func (t *Tenure) leftAtStore() time.Duration {
	now := t.lease.options.Clock()
	t.mu.Lock()
	defer t.mu.Unlock()
	// That the client of a guard met another store says nothing of the one that this
	// lease's client asks.
	if t.freed || errors.Is(t.cause, ErrLost) || errors.Is(t.cause, ErrStoreReplaced) && isClosed(t.replaced) {
		return 0
	}
	// The latest request may have reached the store as late as its sender waited for it.
	return t.sent + t.lease.options.RequestTimeout + t.lease.options.TTL + t.lease.options.Margin - now
}

func (t *Tenure) releaseError(err error) error {
	return fmt.Errorf("lease: release %q: %w; it frees itself within %v", t.lease.name, err, t.leftAtStore())
}

// keep renews the tenure until it is over, and watches the deadline, the key and
// the connection. It is the tenure's only goroutine; the client owns it.
//
// It looks at the clock twice in a GracePeriod, however far off the next renewal is. Go's
// timers stand still while a machine is suspended and the lease's clock does not, so
// that after the machine woke the context ends when half a GracePeriod of running time has
// passed. (Token and Remaining notice at once.)
func (t *Tenure) keep(client context.Context, sent time.Duration) {
	defer close(t.idle)
	defer t.withdraw()
	if isClosed(t.living.Done()) {
		return // released before this goroutine had its turn
	}
	options := &t.lease.options
	between := pauses{lease: t.lease}
	renewAt := sent + options.RenewEvery/2 + random.Duration(options.RenewEvery/2+1)
	stopped := (<-chan struct{})(t.stopped)
	// A tenure that is released soon is to cost the store no watch. One that begins later
	// finds what happened before, as long as no renewal has covered it up.
	watchAt := sent + min(options.GracePeriod/2, options.RenewEvery/4)
	var watch *transport.Watch
	var changes <-chan transport.Change
	defer func() {
		if watch != nil {
			watch.Close()
		}
	}()
	doubted, askAt := false, sent // something said that the key is not ours any more; when it may be looked at
	timer := time.NewTimer(options.TTL)
	defer timer.Stop()
	for {
		now := options.Clock()
		left, err := t.remainingAt(now)
		if err != nil {
			return
		}
		if now >= watchAt {
			watchAt = never
			if watch = t.watchKey(); watch != nil {
				changes = watch.Changes()
			}
		}
		graceIn := left - options.GracePeriod
		next := left
		if graceIn > 0 {
			next = graceIn
		} else {
			t.warn() // too late for a renewal; the owner must wind up
		}
		wake := min(next, max(options.GracePeriod/2, time.Millisecond))
		if doubted && now >= askAt {
			t.confirm(next)
			doubted, askAt = false, options.Clock()+options.RetryAfter // a flood of hints is not a flood of questions
			continue
		} else if doubted {
			wake = min(wake, askAt-now)
		}
		if stopped != nil && graceIn > 0 {
			if now >= renewAt {
				renewAt = t.renew(graceIn, &between)
				continue
			}
			wake = min(wake, renewAt-now)
		}
		timer.Reset(min(wake, watchAt-now))
		select {
		case <-timer.C:
		case <-stopped:
			stopped = nil
		case change, open := <-changes:
			if !open {
				t.lease.options.Logger.Warn("cannot watch the key of the lease; that it was deleted will be noticed late or never",
					"lease", t.lease.name, "error", watch.Err())
				changes = nil
			}
			doubted = doubted || open && !t.isOurs(change.Entry)
		case <-t.lost:
			t.end(ErrConnectionLost)
			return
		case <-t.replaced:
			t.end(ErrStoreReplaced)
			return
		case <-t.living.Done():
			return
		case <-client.Done():
			t.end(context.Cause(client))
			return
		}
	}
}

// never is later than any time on a lease's clock.
const never = time.Duration(math.MaxInt64)

// watchKey follows the lease's key. It returns nil if nothing is to be followed, or can
// be: the client is closed then, of which keep hears otherwise.
func (t *Tenure) watchKey() *transport.Watch {
	if t.lease.options.NoWatch {
		return nil
	}
	watch, err := t.lease.client.Watch(t.lease.name)
	if err != nil {
		return nil
	}
	return watch
}

// warn ends the owner's context ahead of the deadline.
func (t *Tenure) warn() {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.cause == nil {
		t.cancel(t.causeError(t.lateLocked()))
		t.stopRenewingLocked()
	}
}

func (t *Tenure) isOurs(entry transport.Entry) bool {
	return entry.Exists && string(entry.Value) == t.value
}

// confirm asks the store whether the key is still ours, since a notification that says
// otherwise is but a hint: it may be late, or forged. If there is no answer the next
// renewal tells.
func (t *Tenure) confirm(available time.Duration) {
	ctx, cancel := context.WithTimeout(t.living, available)
	defer cancel()
	_ = t.ask(ctx, t.lease.client, t.binding())
}

// nextRenewal spreads the renewals of many leases.
func (t *Tenure) nextRenewal() time.Duration {
	every := t.lease.options.RenewEvery
	return every - random.Duration(every/10+1)
}

// renew makes one attempt, which takes no longer than available, and returns
// when to make the next.
func (t *Tenure) renew(available time.Duration, between *pauses) (next time.Duration) {
	ctx, cancel := context.WithTimeout(t.living, available)
	defer cancel()
	t.mu.Lock()
	t.cancelRenewal = cancel
	if isClosed(t.stopped) {
		cancel()
	}
	t.mu.Unlock()
	binding, err := t.Bind(ctx, t.lease.client)
	bound, sent := err == nil, t.lease.options.Clock()
	if bound {
		_, err = t.lease.set(ctx, t.value, binding)
	}
	t.mu.Lock()
	t.cancelRenewal = nil
	if bound && !errors.Is(err, transport.ErrNotSent) {
		t.sent = sent
	}
	wanted := t.cause == nil && !isClosed(t.stopped)
	if wanted {
		t.failure = err
	}
	t.mu.Unlock()
	switch {
	case err == nil:
		if t.extend(sent) {
			between.reset()
		}
		return sent + t.nextRenewal()
	case errors.Is(err, transport.ErrConditionFailed):
		t.end(ErrLost)
	case errors.Is(err, transport.ErrOtherStore):
		t.FencedOut(err)
	case isTerminal(err):
		t.end(err)
	case wanted:
		t.lease.options.Logger.Warn("a renewal failed and will be repeated", "lease", t.lease.name, "error", err)
	}
	return t.lease.options.Clock() + between.next()
}

// extend moves the deadline after an accepted renewal. A reply that comes past
// the deadline extends nothing: by then another may have held the lease.
func (t *Tenure) extend(sent time.Duration) bool {
	if _, err := t.remaining(); err != nil {
		return false
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.cause != nil || t.ctx.Err() != nil {
		return false
	}
	t.deadline = max(t.deadline, t.lease.deadline(sent))
	return true
}
