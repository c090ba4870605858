package lease

import (
	"context"
	"errors"
	"time"

	"github.com/tenurelock/tenure/hlc"
	"github.com/tenurelock/tenure/internal/keywatch"
	"github.com/tenurelock/tenure/internal/operror"
	"github.com/tenurelock/tenure/internal/random"
	"github.com/tenurelock/tenure/internal/sleep"
	"github.com/tenurelock/tenure/transport"
)

// waiter is one Acquire. It decides when to try again.
//
// Notifications only wake it: a deletion means "try now", a renewal "not before another TTL". After
// a deletion every waiter tries at once: with two candidates any delay would only be time without a
// holder, and with a thousand each of the refused ones costs the store microseconds. A waiter that
// tried at once less than Jitter ago spreads: where releases or forged deletions follow each other
// closely, most waiters then hear of the next holder before they try.
//
// Beside them a timer runs to the latest time at which the lease can expire if its holder has
// died. When the timer has fired and a try shows a renewal that no notification reported, the
// waiter polls: it tries every Jitter, until a notification comes again. So a loss of all
// notifications costs at most Jitter, and no request is spent on polling while they arrive.
//
// With AcquireDelay, "try" becomes: look with a GET, and if the lease is free, wait that
// long for another waiter to take it, then try. The look comes when a try would have come,
// so AcquireDelay is added to every delay once, never more.
type waiter struct {
	lease   *Lease
	reason  *waitReason
	key     *keywatch.Watch
	timer   *time.Timer
	silence *time.Timer  // runs since the latest notification
	backoff retryBackoff // after refusals

	started    bool          // the key is watched; a lease that is free costs no watch
	seen       hlc.Timestamp // the holder's latest version known
	hinted     bool          // a notification said that the lease is free
	polling    bool          // notifications are not to be relied on
	backingOff bool          // the timer runs to a try that no notification may hasten
	hurried    time.Time     // when a deletion last made it try at once
}

func (l *Lease) newWaiter() *waiter {
	return &waiter{
		lease:   l,
		reason:  &waitReason{lease: l},
		key:     keywatch.New(l.client, l.name, l.options.TTL), // the reason for a refusal may pass
		timer:   time.NewTimer(0),
		silence: time.NewTimer(l.silence()),
		backoff: l.options.retryBackoff(l.options.Jitter),
	}
}

// start watches the key, the first time that it is called. seen is the holder's version.
func (w *waiter) start(seen hlc.Timestamp) error {
	if w.started {
		return nil
	}
	w.started, w.seen = true, seen
	return operror.Inner(w.key.Start())
}

func (w *waiter) close() {
	w.key.Close()
	w.timer.Stop()
	w.silence.Stop()
}

// silence is how long a waiter hears nothing of a holder before it doubts its connection: two renewals.
// With its machine a store can fall silent without ending its connections, and without a doubt the
// waiter would notice that when the TTL is over, and not when another store can give it the lease.
func (l *Lease) silence() time.Duration { return 2 * l.options.RenewEvery }

// expiry is the time to wait for a holder that may have renewed just now.
func (l *Lease) expiry() time.Duration { return l.options.TTL + random.Duration(l.options.Jitter) }

// acquire tries until it holds the lease, waiting is useless, or ctx or the attempt ends.
func (w *waiter) acquire(ctx context.Context, a *attempt) (*Tenure, error) {
	delayed := w.lease.acquireDelay() > 0
	if delayed {
		if err := w.start(hlc.Timestamp{}); err != nil {
			return nil, err
		}
	}
	for wait := delayed; ; wait = true {
		var tenure *Tenure
		var version hlc.Timestamp
		var err error
		if wait {
			err = w.untilTry(ctx, a.lost)
		}
		if err == nil {
			tenure, version, err = a.try(ctx)
		}
		held := errors.Is(err, transport.ErrConditionFailed)
		if err == nil || !held && (ctx.Err() != nil || errors.Is(err, errReconnected) || errors.Is(err, errTooSlow) || isPermanent(err)) {
			return tenure, err
		}
		if closed := w.start(version); closed != nil {
			return nil, closed
		}
		switch {
		case held && version.IsZero(): // no version, so no holder: the store is in its hold-off
			w.reason.failed(&HeldError{Lease: w.lease.name})
			w.polling = true // the store does not notify when its hold-off ends
			w.held(version)
		case held:
			w.reason.isHeld()
			w.backoff.reset()
			w.held(version)
		default:
			w.reason.failed(err)
			w.lease.logFailure("the lease cannot be acquired for now", err)
			// No notification says when the store would no longer refuse.
			w.backingOff = true
			w.timer.Reset(w.backoff.next(random.Fraction()))
		}
	}
}

// untilTry returns when it is time to try and AcquireDelay has passed. The errors are those
// of wait and delay.
func (w *waiter) untilTry(ctx context.Context, lost <-chan struct{}) error {
	for {
		if err := w.wait(ctx, lost); err != nil {
			return err
		}
		if free, err := w.delay(ctx, lost); free || err != nil {
			return err
		}
	}
}

// wait returns when it is time to try. It returns an error when ctx or the client ends
// first, or lost is closed.
func (w *waiter) wait(ctx context.Context, lost <-chan struct{}) error {
	for {
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-lost:
			return errReconnected
		case <-w.timer.C:
			w.backingOff = false
			return nil
		case <-w.silence.C: // once: a holder that died is silent too
			w.lease.client.Probe(w.lease.options.RequestTimeout + w.lease.options.probe()) // as after a request
		case change, open := <-w.key.Changes():
			if open {
				w.reason.heard(change.Entry)
				w.silence.Reset(w.lease.silence())
			}
			tryIn := time.Duration(0)
			switch {
			case !open:
				if err := w.key.Ended(); isTerminal(err) {
					return err
				}
				w.polling = true
				tryIn = random.Duration(w.lease.options.Jitter)
			case change.Exists && change.Missed && w.polling:
				// It was read, so it does not show that notifications arrive, and the renewal
				// that it shows may be old: the next try is not put off.
				w.seen = change.Version
				continue
			case change.Exists:
				w.seen, w.hinted, w.polling = change.Version, false, false
				tryIn = w.lease.expiry()
			default:
				w.hinted, w.polling = true, false
				if w.hurries() {
					return nil
				}
				tryIn = random.Duration(min(w.lease.options.Jitter, releaseJitter))
			}
			if !w.backingOff {
				w.timer.Reset(tryIn)
			}
		}
	}
}

// hurries reports whether a deletion that was just heard of is one to try at once after.
func (w *waiter) hurries() bool {
	now := time.Now()
	if w.backingOff || !w.hurried.IsZero() && now.Sub(w.hurried) < w.lease.options.Jitter {
		return false
	}
	w.hurried = now
	return true
}

// delay lets other waiters take the lease first, for AcquireDelay, and returns whether it is
// still free. The error is one after which waiting is useless.
func (w *waiter) delay(ctx context.Context, lost <-chan struct{}) (free bool, err error) {
	delay := w.lease.acquireDelay()
	if delay <= 0 {
		return true, nil
	}
	if free, err := w.isFree(ctx); !free {
		return false, err
	}
	w.timer.Reset(delay)
	for {
		select {
		case <-ctx.Done():
			return false, context.Cause(ctx)
		case <-lost:
			return false, errReconnected
		case <-w.timer.C:
			return true, nil
		case change, open := <-w.key.Changes():
			if !open {
				if err := w.key.Ended(); isTerminal(err) {
					return false, err
				}
				w.polling = true
				continue
			}
			w.reason.heard(change.Entry)
			if change.Exists {
				// Another waiter took it; or the notification is old or forged, and then the
				// delay goes on where it was.
				w.hinted, w.polling = true, false
				if free, err := w.isFree(ctx); !free {
					return false, err
				}
			}
		}
	}
}

// isFree returns whether the lease is free now. If not, the timer runs to the next look.
func (w *waiter) isFree(ctx context.Context) (bool, error) {
	entry, err := w.read(ctx)
	if err == nil && entry.Exists && w.lease.freeLeft(ctx) {
		entry, err = w.read(ctx)
	}
	if err == nil && entry.Exists {
		w.held(entry.Version)
	}
	return err == nil && !entry.Exists, err
}

// read reads the key, and repeats that while there is no answer, until ctx ends.
func (w *waiter) read(ctx context.Context) (transport.Entry, error) {
	l, backoff := w.lease, w.lease.options.retryBackoff(0)
	for {
		entry, err := l.get(ctx, l.client, transport.Binding{}, l.options.probe())
		switch {
		case err == nil:
			w.reason.heard(entry)
			if entry.Exists { // else a try may still be refused
				w.reason.failed(nil)
			}
			return entry, nil
		case isRefusal(err), isTerminal(err):
			return entry, err
		case ctx.Err() == nil:
			l.logFailure("a look at the lease failed and will be repeated", err)
			w.reason.failed(err)
		}
		if !sleep.For(ctx, backoff.next(random.Fraction())) {
			// Not err: an unknown outcome of a GET leaves nothing behind.
			return transport.Entry{}, context.Cause(ctx)
		}
	}
}

// held takes note that another holder has the lease. version is the version of its value.
func (w *waiter) held(version hlc.Timestamp) {
	if !w.hinted && version != w.seen {
		w.polling = true
	}
	w.seen, w.hinted, w.backingOff = version, false, false
	_ = w.key.Start() // if the client is closed, the next request says so
	if w.polling {
		half := w.lease.options.Jitter / 2
		w.timer.Reset(half + random.Duration(half))
	} else {
		w.timer.Reset(w.lease.expiry())
	}
}
