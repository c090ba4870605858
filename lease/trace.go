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
// The functions are called without a lock, and should not block. No function can keep a tenure
// alive: its contexts end in time, and Token refuses, also while one blocks. What a slow one delays
// is the acquisition or the next renewal, so it can lose the lease. They may use Token and Remaining
// of a tenure, and must neither release one nor wait for it. A panic in a function is a panic of its
// goroutine; an Acquire that ends with one frees what it may have acquired.
//
// Attempt and Acquired run in the goroutine of Acquire or TryAcquire. Renewed, RenewalFailed and
// Ended run in goroutines of the tenure: they come one at a time, in order and after Acquired.
// Those of several tenures run at the same time. Refused runs in the goroutine of the write, after
// the end of the tenure. [transport.Client.Close] returns after Ended of all its tenures.
type Trace struct {
	// Attempt is called after each request to acquire a lease. ctx is the context of Acquire or
	// TryAcquire, with its values. It may have ended.
	Attempt func(ctx context.Context, info TraceInfo)
	// Acquired is called when a tenure begins, before Acquire returns it. ctx is as for Attempt.
	// If the client is closed at this moment, Ended follows at once and Acquire returns an error.
	Acquired func(ctx context.Context, info TraceInfo)
	// Renewed is called after each renewal that the store accepted in time.
	Renewed func(info TraceInfo)
	// RenewalFailed is called after each renewal that failed and will be repeated.
	RenewalFailed func(info TraceInfo)
	// Ended is called when a tenure has ended: once for each call of Acquired. Release frees the
	// lease meanwhile, and does not return without an error before Ended has, unless its ctx ends.
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

// traceAttempt traces a request of an attempt that left at sent.
func (l *Lease) traceAttempt(ctx context.Context, sent time.Duration, err error) {
	if l.options.Trace.Attempt == nil {
		return
	}
	if errors.Is(err, transport.ErrConditionFailed) {
		err = &HeldError{} // the refusal does not name the holder
	}
	l.options.Trace.Attempt(ctx, TraceInfo{Lease: l.name, Holder: l.options.Holder, RoundTrip: l.options.Clock() - sent, Err: err})
}

// traced adds what each TraceInfo of a tenure has.
func (t *Tenure) traced(info TraceInfo) TraceInfo {
	info.Lease, info.Holder, info.Token = t.lease.name, t.lease.options.Holder, t.token
	return info
}

// reportAcquired traces and logs a tenure that begins.
func (t *Tenure) reportAcquired(ctx context.Context) {
	options := &t.lease.options
	waited := t.acquired - t.began
	if options.Trace.Acquired != nil {
		options.Trace.Acquired(ctx, t.traced(TraceInfo{RoundTrip: t.acquired - t.sent, Lasted: waited}))
	}
	if options.Logger.Enabled(ctx, slog.LevelInfo) {
		options.Logger.Info("the lease is acquired", "lease", t.lease.name, "holder", options.Holder, "token", t.token.String(), "waited", waited)
	}
}

// reportEnded traces and logs the end of a tenure. It is called once.
func (t *Tenure) reportEnded() {
	options := &t.lease.options
	if t.reported != nil {
		defer close(t.reported)
	}
	held := options.Clock() - t.acquired
	t.mu.Lock()
	cause := t.schedule.cause
	t.mu.Unlock()
	if options.Trace.Ended != nil {
		options.Trace.Ended(t.traced(TraceInfo{Lasted: held, Err: cause}))
	}
	if options.Logger.Enabled(context.Background(), slog.LevelInfo) {
		options.Logger.Info("the tenure has ended", "lease", t.lease.name, "token", t.token.String(), "held", held, "cause", cause)
	}
}

// reportOf returns what traces and logs the result of a renewal that left at sent; nil if that is of no use.
func (t *Tenure) reportOf(sent time.Duration, result event) func() {
	options := &t.lease.options
	heard := result.kind == renewed && options.Trace.Renewed != nil ||
		result.kind == failed && (options.Trace.RenewalFailed != nil || options.Logger.Handler() != slog.DiscardHandler)
	if !heard {
		return nil
	}
	now := options.Clock()
	t.mu.Lock()
	defer t.mu.Unlock()
	headroom := t.schedule.deadline - now
	switch {
	case t.schedule.cause != nil || t.schedule.stopped || headroom <= 0:
		return nil
	case result.kind == renewed:
		info := t.traced(TraceInfo{RoundTrip: now - sent, Headroom: headroom})
		return func() { options.Trace.Renewed(info) }
	}
	return func() {
		if options.Trace.RenewalFailed != nil {
			options.Trace.RenewalFailed(t.traced(TraceInfo{Headroom: headroom, Err: result.err}))
		}
		options.Logger.Warn("a renewal failed and will be repeated", "lease", t.lease.name, "error", result.err)
	}
}

// NoteRefusal calls Refused of Options.Trace. A fencing.Guard calls it for the operations that it
// refuses (local) or that the store refuses because of their token. A program that protects a
// resource with a fencing.Checker may call it for the resource. It has no other effect: see
// [Tenure.FencedOut].
func (t *Tenure) NoteRefusal(ctx context.Context, operation, key string, local bool, err error) {
	if refused := t.lease.options.Trace.Refused; refused != nil {
		refused(ctx, t.traced(TraceInfo{Operation: operation, Key: key, Local: local, Err: err}))
	}
}
