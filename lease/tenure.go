package lease

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/cenkalti/backoff/v4"

	"github.com/tenurelock/tenure/hlc"
	"github.com/tenurelock/tenure/transport"
)

// Tenure is one uninterrupted holding of a lease. It renews itself until it is
// released or lost, ends exactly once, and never comes back. It is safe for
// concurrent use, and no method but Release waits for the network.
type Tenure struct {
	lease *Lease
	value string
	token hlc.Timestamp

	ctx    context.Context // for the owner's work
	cancel context.CancelCauseFunc

	renewing    context.Context // ends when no renewal may be sent any more
	stopRenewal context.CancelFunc
	over        chan struct{} // closed with cause
	idle        chan struct{} // closed when keep has returned
	releasing   chan struct{} // holds one item while a Release is under way

	mu       sync.Mutex
	sent     time.Duration // on the lease's clock: when the latest request for the lease left
	deadline time.Duration // on the lease's clock: past it the tenure is over
	cause    error         // why it is over; nil before
	freed    bool          // the store is known to hold nothing of this tenure
}

// begin starts a tenure that was acquired by a request sent at sent.
func (l *Lease) begin(value string, token hlc.Timestamp, sent time.Duration) (*Tenure, error) {
	t := &Tenure{
		lease:     l,
		value:     value,
		token:     token,
		over:      make(chan struct{}),
		idle:      make(chan struct{}),
		releasing: make(chan struct{}, 1),
		sent:      sent,
		deadline:  l.deadline(sent),
	}
	t.ctx, t.cancel = context.WithCancelCause(context.Background())
	t.renewing, t.stopRenewal = context.WithCancel(context.Background())
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
// the tenure ends, and Options.Notice before the deadline if renewals fail;
// context.Cause says why.
func (t *Tenure) Context() context.Context { return t.ctx }

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
func (t *Tenure) Token() (hlc.Timestamp, error) {
	if _, err := t.remaining(); err != nil {
		return hlc.Timestamp{}, fmt.Errorf("lease: token of %q: %w", t.lease.name, err)
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
	now := t.lease.options.Clock()
	t.mu.Lock()
	if t.cause == nil && now >= t.deadline {
		t.endLocked(ErrDeadlinePassed)
	}
	left, cause := t.deadline-now, t.cause
	t.mu.Unlock()
	if cause != nil {
		return 0, cause
	}
	return left, nil
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
	close(t.over)
	t.stopRenewal()
	t.cancel(t.causeError(cause))
}

func (t *Tenure) causeError(cause error) error {
	return fmt.Errorf("lease: tenure of %q ended: %w", t.lease.name, cause)
}

// FencedOut ends the tenure at once, because a protected resource refused its
// token in favour of a newer one. Whoever sees such a refusal calls it, and
// retries nothing: somebody else has been elected. evidence becomes part of the
// cause.
func (t *Tenure) FencedOut(evidence error) {
	t.end(fmt.Errorf("%w: %w", ErrFencedOut, evidence))
}

// StopRenewing lets the tenure run out: it goes on until its deadline, and
// Release may still end it earlier. It bounds the time that winding up may take.
func (t *Tenure) StopRenewing() { t.stopRenewal() }

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
	ctx, cancel := context.WithTimeout(ctx, left)
	defer cancel()
	if err := t.lease.free(ctx, t.value); err != nil && t.leftAtStore() > 0 {
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
	if t.freed || errors.Is(t.cause, ErrLost) {
		return 0
	}
	return t.sent + t.lease.options.TTL + t.lease.options.Margin - now
}

func (t *Tenure) releaseError(err error) error {
	return fmt.Errorf("lease: release %q: %w; it frees itself within %v", t.lease.name, err, t.leftAtStore())
}

// keep renews the tenure until it is over, and watches the deadline. It is the
// tenure's only goroutine; the client owns it.
func (t *Tenure) keep(client context.Context, sent time.Duration) {
	defer close(t.idle)
	options := &t.lease.options
	pause := t.lease.newBackoff()
	renewAt := sent + t.nextRenewal()
	renewing := t.renewing.Done()
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		now := options.Clock()
		left, err := t.remaining()
		if err != nil {
			return
		}
		noticeIn := left - options.Notice
		switch {
		case noticeIn <= 0:
			// Too late for a renewal: warn the owner, then wait for the end.
			t.cancel(t.causeError(ErrDeadlinePassed))
			t.stopRenewal()
			timer.Reset(left)
		case renewing != nil && now >= renewAt:
			renewAt = t.renew(noticeIn, pause)
			timer.Reset(0)
		case renewing != nil:
			timer.Reset(min(renewAt-now, noticeIn))
		default:
			timer.Reset(noticeIn)
		}
		select {
		case <-timer.C:
		case <-renewing:
			renewing = nil
		case <-t.over:
			return
		case <-client.Done():
			t.end(context.Cause(client))
			return
		}
	}
}

// nextRenewal spreads the renewals of many leases.
func (t *Tenure) nextRenewal() time.Duration {
	every := t.lease.options.RenewEvery
	return every - rand.N(every/10+1)
}

// renew makes one attempt, which takes no longer than available, and returns
// when to make the next.
func (t *Tenure) renew(available time.Duration, pause backoff.BackOff) (next time.Duration) {
	ctx, cancel := context.WithTimeout(t.renewing, available)
	defer cancel()
	sent := t.lease.options.Clock()
	_, err := t.lease.set(ctx, t.value)
	if !errors.Is(err, transport.ErrNotSent) {
		t.mu.Lock()
		t.sent = sent
		t.mu.Unlock()
	}
	switch {
	case err == nil:
		if t.extend(sent) {
			pause.Reset()
		}
		return sent + t.nextRenewal()
	case errors.Is(err, transport.ErrConditionFailed):
		t.end(ErrLost)
	case isTerminal(err):
		t.end(err)
	case t.renewing.Err() == nil:
		t.lease.options.Logger.Warn("a renewal failed and will be repeated", "lease", t.lease.name, "error", err)
	}
	return t.lease.options.Clock() + pause.NextBackOff()
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
