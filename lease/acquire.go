package lease

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/tenurelock/tenure/internal/operror"
	"github.com/tenurelock/tenure/transport"
)

// TryAcquire acquires the lease if it is free. If it is held, the error matches ErrHeld, and has a
// *HeldError with the holder. A tenure of this process counts too: each tenure is a holder of its own.
//
// A request without an answer is repeated until ctx ends, with the same effect as if it had
// been sent once. If ctx ends first, the error matches transport.ErrOutcomeUnknown, and the
// client tries in the background to free what may have been acquired; Settle waits for that.
func (l *Lease) TryAcquire(ctx context.Context) (*Tenure, error) {
	if l.options.InstantFailover { // spare the client a new connection that would be useless
		if holder, err := l.Holder(ctx); err == nil && holder.Held && !l.freeLeft(ctx) {
			return nil, l.acquireError(&HeldError{Holder: holder})
		}
	}
	tenure, err := l.acquire(ctx, nil, func(a *attempt) (*Tenure, error) {
		tenure, _, err := a.try(ctx)
		return tenure, err
	})
	if !errors.Is(err, transport.ErrConditionFailed) {
		return tenure, l.acquireError(err)
	}
	held := &HeldError{}
	held.Holder, _ = l.Holder(ctx) // not Held if it cannot be read
	if errors.Is(err, transport.ErrOutcomeUnknown) {
		return nil, l.acquireError(gaveUp(transport.ErrOutcomeUnknown, nil, held, false))
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
	tenure, err := l.acquire(ctx, w.reason, func(a *attempt) (*Tenure, error) { return w.acquire(ctx, a) })
	if err != nil && ctx.Err() != nil && !isPermanent(err) {
		err = w.reason.gaveUp(ctx, err)
	}
	return tenure, l.acquireError(err)
}

func (l *Lease) acquireError(err error) error {
	return operror.New("lease: acquire", l.name, err)
}

// waitReason is why one Acquire still waits: the error of the latest request, and the last
// known holder. A nil waitReason belongs to TryAcquire, and failed ignores it.
type waitReason struct {
	lease    *Lease
	err      error  // of the latest request; nil if the store answered it
	reported string // the class of err, which Options.OnWaiting got
	held     bool   // another holder has the lease
	holder   Holder // not Held if it is not known

	logged   string    // the name of the holder in the latest log line; "": none yet
	loggedAt time.Time // when that was
}

// failed notes why a request failed, or with nil that the store answered it.
func (r *waitReason) failed(err error) {
	if r == nil {
		return
	}
	class := classOf(err)
	changed := class != r.reported
	r.err, r.reported = err, class
	if changed && r.lease.options.OnWaiting != nil {
		r.lease.options.OnWaiting(err)
	}
}

// heard notes what the key holds. It logs which holder Acquire waits for, when that changes. A client that
// forges notifications cannot make it log more often than once in a TTL.
func (r *waitReason) heard(entry transport.Entry) {
	l := r.lease
	r.held, r.holder = entry.Exists, l.heard(entry)
	if !r.holder.Held || r.holder.Name == r.logged || r.logged != "" && time.Since(r.loggedAt) < l.options.TTL {
		return
	}
	r.logged, r.loggedAt = r.holder.Name, time.Now()
	l.options.Logger.Info("waiting for the lease: another holder has it", "lease", l.name,
		"holder", fmt.Sprintf("%.*s", shownName, r.holder.Name))
}

// isHeld notes that the store refused because another holder has the lease.
func (r *waitReason) isHeld() {
	if !r.held {
		r.holder = Holder{} // the refusal does not name it
	}
	r.held = true
	r.failed(nil)
}

// gaveUp returns the error of an Acquire whose ctx ended. err is the error of its latest attempt.
func (r *waitReason) gaveUp(ctx context.Context, err error) error {
	var held *HeldError
	if r.held {
		held = &HeldError{Holder: r.holder}
	}
	return gaveUp(context.Cause(ctx), r.err, held, errors.Is(err, transport.ErrOutcomeUnknown))
}
