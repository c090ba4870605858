package lease

import (
	"context"
	"errors"
	"fmt"

	"github.com/tenurelock/tenure/internal/operror"
	"github.com/tenurelock/tenure/transport"
)

// TryAcquire acquires the lease if it is free. If it is held, the error matches ErrHeld, and has a
// *HeldError with the holder. A tenure of this process counts too: each tenure is a holder of its own.
//
// A request without an answer is repeated until ctx ends, with the same effect as if it had
// been sent once. If ctx ends first, the error matches transport.ErrOutcomeUnknown, and the
// client tries in the background to free what may have been acquired; AwaitReleases waits for that.
func (l *Lease) TryAcquire(ctx context.Context) (*Tenure, error) {
	if l.options.InstantFailover { // spare the client a new connection that would be useless
		if holder, err := l.Holder(ctx); err == nil && holder.Held && !l.freeLeft(ctx) {
			return nil, l.acquireError(&HeldError{Holder: holder})
		}
	}
	w := &waiter{lease: l}
	tenure, err := w.acquire(ctx, func(ctx context.Context, a *attempt) (*Tenure, error) {
		tenure, _, err := a.try(ctx)
		return tenure, err
	})
	if !errors.Is(err, transport.ErrConditionFailed) {
		return tenure, l.acquireError(err)
	}
	held := &HeldError{}
	held.Holder, _ = l.Holder(ctx) // not Held if it cannot be read
	if errors.Is(err, transport.ErrOutcomeUnknown) {
		return nil, l.acquireError(fmt.Errorf("%w; when last heard of: %w", transport.ErrOutcomeUnknown, held))
	}
	return nil, l.acquireError(held)
}

// Acquire waits until the lease is free and acquires it. It also waits while something else
// keeps it from acquiring that can pass: no connection, a store that does not answer, a refusal
// (transport.ErrNotAuthorized, ErrQuotaExceeded, a clock that is wrong, …). Options.OnWaiting
// gets such a reason. Like TryAcquire, it frees what it may have acquired when it fails.
//
// It returns when it holds the lease, when ctx ends, or when waiting is useless: the
// client is closed or was taken over (transport.ErrClosed, ErrSessionTakenOver), or the
// program must change. The program must change if the request is too large or makes no
// sense to the store (transport.ErrPacketTooLarge, ErrKeyLengthZero, ErrLockRule, or a
// *transport.RefusedError such as "syntax error"), or if InstantFailover is not possible (transport.ErrWillInUse, or a
// keep-alive that does not fit the TTL).
//
// If ctx ends first, the error matches the cause of ctx. It matches ErrHeld too, with the
// last known holder in a *HeldError, if the store last said that another holds the lease.
// It says why the latest request failed, and matches the sentinel of a refusal. It matches
// transport.ErrOutcomeUnknown if the lease may have been acquired.
func (l *Lease) Acquire(ctx context.Context) (*Tenure, error) {
	w := l.newWaiter()
	defer w.close()
	tenure, err := w.acquire(ctx, w.await)
	if err != nil && ctx.Err() != nil && !isPermanent(err) {
		err = w.gaveUp(ctx, err)
	}
	return tenure, l.acquireError(err)
}

func (l *Lease) acquireError(err error) error {
	return operror.New("lease: acquire", l.name, err)
}

// gaveUp returns the error of an Acquire whose ctx ended. err is the error of its latest attempt.
func (w *waiter) gaveUp(ctx context.Context, err error) error {
	gaveUp, unknown := context.Cause(ctx), errors.Is(err, transport.ErrOutcomeUnknown)
	if unknown {
		gaveUp = fmt.Errorf("%w: %w", transport.ErrOutcomeUnknown, gaveUp)
	}
	if w.failure != nil {
		gaveUp = fmt.Errorf("%w; the latest request: %w", gaveUp, &requestError{w.failure, unknown})
	}
	if w.held != nil {
		gaveUp = fmt.Errorf("%w; when last heard of: %w", gaveUp, w.held)
	}
	return gaveUp
}
