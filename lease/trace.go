package lease

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/tenurelock/tenure/hlc"
	"github.com/tenurelock/tenure/transport"
)

// Trace is a set of functions that a Lease and its tenures call, for metrics, spans and logs. Each
// may be nil, and several leases may share one Trace. Without a Trace nothing is called or
// allocated for it.
//
// The client of the lease calls the functions as those of a transport.Trace, among them and the lines of its Logger:
// soon, in a goroutine of their own, one at a time and in order. No acquisition and no tenure waits for them. They
// should not block: while 16,384 calls wait, others are dropped, and the log says how many. So a counter of a metric
// can lack calls. The ctx of a function has the values of the context of the caller, which may have its result long
// since. transport.Client.Close waits for all calls, and none comes after it, so no function may call it. A panic in a
// function ends the process.
type Trace struct {
	// Attempt is called after each request to acquire a lease. ctx is the context of Acquire or TryAcquire.
	Attempt func(ctx context.Context, info TraceInfo)
	// Acquired is called when a tenure has begun, before the other functions hear of it. ctx is as for Attempt.
	Acquired func(ctx context.Context, info TraceInfo)
	// Renewed is called after each renewal that the store accepted in time.
	Renewed func(info TraceInfo)
	// RenewalFailed is called after each renewal that failed and will be repeated.
	RenewalFailed func(info TraceInfo)
	// Ended is called when a tenure has ended: once for each call of Acquired, unless one of them was dropped.
	// Release does not wait for it.
	Ended func(info TraceInfo)
	// Refused is called when a fencing.Guard refuses an operation because the tenure is over, or
	// the store refuses it because of the token. ctx is the context of the operation.
	Refused func(ctx context.Context, info TraceInfo)
}

// TraceInfo is what the functions of a Trace get. A field that names functions is zero for all others.
type TraceInfo struct {
	// Lease is the name of the lease, and Holder the name under which this process holds it.
	Lease, Holder string
	// Token is the fencing token of the tenure; zero for Attempt.
	Token hlc.Token
	// RoundTrip is the time from the request to its result. Attempt, Acquired, Renewed.
	RoundTrip time.Duration
	// Lasted is the time from the call of Acquire or TryAcquire to the tenure (Acquired), or how long
	// the tenure lasted (Ended).
	Lasted time.Duration
	// Headroom is how long the tenure would have lasted without this renewal (Renewed), or lasts if
	// no other one succeeds (RenewalFailed). If it comes near Options.GracePeriod, the lease was nearly lost.
	Headroom time.Duration
	// Err is why the request failed; it matches ErrHeld if another holder has the lease, and is nil
	// if the store granted it (Attempt). Or why the renewal failed (RenewalFailed), why the tenure ended: one
	// of the causes in the package comment (Ended), or the refusal, or why the tenure is over (Refused).
	Err error
	// Operation is the name of the operation in words, such as "set", and Key its key or resource. Refused.
	Operation, Key string
	// Local is true if nothing was sent, because the tenure is over. It is false if the store or
	// the resource refused the token: then a stale write was prevented. Refused.
	Local bool
}

// CauseText returns a short name of a tenure's cause, such as "released" or "deadline_passed",
// as a label of metrics. It returns "other" for an error that is none.
func CauseText(cause error) string {
	for _, known := range []struct {
		cause error
		text  string
	}{
		{ErrReleased, "released"}, {ErrLost, "lost"}, {ErrDeadlinePassed, "deadline_passed"},
		{ErrStoreReplaced, "store_replaced"}, {ErrFencedOut, "fenced_out"}, {ErrDeleted, "deleted"},
		{ErrConnectionLost, "connection_lost"},
		{transport.ErrSessionTakenOver, "session_taken_over"}, {transport.ErrClosed, "client_closed"},
	} {
		if errors.Is(cause, known.cause) {
			return known.text
		}
	}
	return "other"
}

// trace calls f later, unless it is nil.
func (l *Lease) trace(f func(TraceInfo), info TraceInfo) {
	if f != nil {
		kept := info // only here: without an f nothing is allocated
		kept.Lease, kept.Holder = l.name, l.options.Holder
		l.client.Dispatch(func() { f(kept) })
	}
}

// in returns f with its first argument; nil if f is nil.
func in(ctx context.Context, f func(context.Context, TraceInfo)) func(TraceInfo) {
	if f == nil {
		return nil
	}
	return func(info TraceInfo) { f(ctx, info) }
}

// traceAttempt traces a request of an attempt.
func (l *Lease) traceAttempt(ctx context.Context, took time.Duration, err error) {
	if errors.Is(err, transport.ErrConditionFailed) {
		err = &HeldError{} // the refusal does not name the holder
	}
	l.trace(in(ctx, l.options.Trace.Attempt), TraceInfo{RoundTrip: took, Err: err})
}

// reportAcquired traces and logs a tenure that begins.
func (t *Tenure) reportAcquired(ctx context.Context, sent time.Duration) {
	options := &t.lease.options
	waited := t.acquired - t.began
	t.lease.trace(in(ctx, options.Trace.Acquired), TraceInfo{Token: t.token, RoundTrip: t.acquired - sent, Lasted: waited})
	if options.Logger.Enabled(ctx, slog.LevelInfo) { // else nothing is allocated for it
		options.Logger.Info("the lease is acquired", "lease", t.lease.name, "holder", options.Holder,
			"token", t.token, "waited", waited)
	}
}

// reportEnded traces and logs the end of a tenure. It is called once.
func (t *Tenure) reportEnded() {
	options := &t.lease.options
	held := options.Clock() - t.acquired
	_, cause := t.remaining()
	t.lease.trace(options.Trace.Ended, TraceInfo{Token: t.token, Lasted: held, Err: cause})
	if options.Logger.Enabled(context.Background(), slog.LevelInfo) { // else nothing is allocated for it
		options.Logger.Info("the tenure has ended", "lease", t.lease.name, "token", t.token, "held", held, "cause", cause)
	}
}

// reportRenewal traces and logs the result of a renewal that left at sent, if that is of use.
func (t *Tenure) reportRenewal(sent time.Duration, result event) {
	options := &t.lease.options
	now := options.Clock()
	t.mu.Lock()
	headroom, over := t.schedule.deadline-now, t.schedule.cause != nil || t.schedule.stopped
	t.mu.Unlock()
	switch {
	case over || headroom <= 0:
	case result.kind == renewed:
		t.lease.trace(options.Trace.Renewed, TraceInfo{Token: t.token, RoundTrip: now - sent, Headroom: headroom})
	case result.kind == failed:
		t.lease.trace(options.Trace.RenewalFailed, TraceInfo{Token: t.token, Headroom: headroom, Err: result.err})
		options.Logger.Warn("a renewal failed and will be repeated", "lease", t.lease.name, "error", result.err)
	}
}

// NoteRefusal calls Refused of Options.Trace. A fencing.Guard calls it for the operations that it
// refuses (local) or that the store refuses because of their token. A program that protects a
// resource with a fencing.Checker may call it for the resource. It has no other effect: see
// [Tenure.FencedOut].
func (t *Tenure) NoteRefusal(ctx context.Context, operation, key string, local bool, err error) {
	t.lease.trace(in(ctx, t.lease.options.Trace.Refused),
		TraceInfo{Token: t.token, Operation: operation, Key: key, Local: local, Err: err})
}
