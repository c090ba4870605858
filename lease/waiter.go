package lease

import (
	"context"
	"time"

	"github.com/tenurelock/tenure/hlc"
	"github.com/tenurelock/tenure/internal/keywatch"
	"github.com/tenurelock/tenure/internal/random"
	"github.com/tenurelock/tenure/internal/sleep"
	"github.com/tenurelock/tenure/transport"
)

// waiter decides when a process that wants a lease should try again.
//
// Notifications only wake it: a delete means "try now", a renewal "not before
// another TTL". Beside them runs a timer towards the latest time at which the
// lease can expire if its holder has died. Once the timer proved the
// notifications wrong (it fired, and there had been a renewal that nobody told
// of) the waiter looks every Jitter, until a notification comes again. So losing
// all of them costs at most Jitter, and hearing them costs no polling.
//
// With AcquireDelay "try" becomes: look with a GET, and if the lease is free, wait that
// long for another to take it, then try. The look comes when a try would have
// come, so AcquireDelay is added to every delay once, never more.
type waiter struct {
	lease *Lease
	why   *obstacle
	key   *keywatch.Watch
	timer *time.Timer

	seen   hlc.Timestamp // the holder's latest version known
	hinted bool          // a notification said that the lease is free
	deaf   bool          // notifications are not to be relied on
	rests  bool          // the timer runs towards a try that no notification may hasten
}

func (l *Lease) newWaiter(why *obstacle, seen hlc.Timestamp) (*waiter, error) {
	w := &waiter{
		lease: l,
		why:   why,
		key:   keywatch.New(l.client, l.name, l.options.TTL), // the reason for a refusal may pass
		timer: time.NewTimer(l.expiry()),
		seen:  seen,
	}
	if err := w.key.Start(); err != nil {
		return nil, err
	}
	if l.options.AcquireDelay > 0 {
		w.timer.Reset(1) // at once: nobody has asked the store yet
	}
	return w, nil
}

func (w *waiter) close() {
	w.key.Close()
	w.timer.Stop()
}

// expiry is the time to wait for a holder that may have renewed just now.
func (l *Lease) expiry() time.Duration { return l.options.TTL + jitter(l.options.Jitter) }

// turn returns when it is time to try, and others had the chance to. The errors are
// those of wait and delay.
func (w *waiter) turn(ctx context.Context, lost <-chan struct{}) error {
	for {
		if err := w.wait(ctx, lost); err != nil {
			return err
		}
		if free, err := w.delay(ctx, lost); free || err != nil {
			return err
		}
	}
}

// wait returns when it is time to try, with an error when ctx or the client
// ended first, or lost was closed.
func (w *waiter) wait(ctx context.Context, lost <-chan struct{}) error {
	for {
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-lost:
			return errReconnected
		case <-w.timer.C:
			w.rests = false
			return nil
		case change, open := <-w.key.Changes():
			if open && change.Exists && change.Missed && w.deaf {
				// It was read, so it is no sign that notifications arrive, and the renewal
				// that it shows may be old: the next look is not to be put off.
				w.seen = change.Version
				w.why.heard(change.Entry)
				continue
			}
			tryIn := time.Duration(0)
			switch {
			case !open:
				if err := w.key.Ended(); isTerminal(err) {
					return err
				}
				// The store grants no watch: the timer must do.
				w.deaf = true
				tryIn = jitter(w.lease.options.Jitter)
			case !change.Exists:
				w.hinted, w.deaf = true, false
				tryIn = jitter(min(w.lease.options.Jitter, releaseJitter))
			default:
				w.seen, w.hinted, w.deaf = change.Version, false, false
				tryIn = w.lease.expiry()
			}
			if open {
				w.why.heard(change.Entry)
			}
			if !w.rests {
				w.timer.Reset(tryIn)
			}
		}
	}
}

// rest makes the next try come after d, whatever notifications say: the store refuses,
// and none tells when that is over.
func (w *waiter) rest(d time.Duration) {
	w.rests = true
	w.timer.Reset(d)
}

// delay lets others have the lease first, and reports whether it is still for
// the taking. The error is one for which waiting is in vain.
func (w *waiter) delay(ctx context.Context, lost <-chan struct{}) (free bool, err error) {
	if w.lease.options.AcquireDelay == 0 {
		return true, nil
	}
	if free, err := w.look(ctx); !free {
		return false, err
	}
	w.timer.Reset(w.lease.options.AcquireDelay)
	for {
		select {
		case <-ctx.Done():
			return false, context.Cause(ctx)
		case <-lost:
			return false, errReconnected
		case <-w.timer.C:
			return true, nil
		case change, open := <-w.key.Changes():
			if open {
				w.why.heard(change.Entry)
			}
			switch {
			case !open:
				if err := w.key.Ended(); isTerminal(err) {
					return false, err
				}
				w.deaf = true
			case change.Exists:
				// Somebody took it, or the news is old or forged: then the wait
				// goes on where it was.
				w.hinted, w.deaf = true, false
				if free, err := w.look(ctx); !free {
					return false, err
				}
			}
		}
	}
}

// look reports whether the lease is free at this moment. If it is not, the timer
// runs towards the next look.
func (w *waiter) look(ctx context.Context) (free bool, err error) {
	entry, err := w.ask(ctx)
	if err == nil && entry.Exists {
		w.refused(entry.Version)
	}
	return err == nil && !entry.Exists, err
}

// ask asks who holds the lease, and repeats that while there is no answer, until
// ctx ends.
func (w *waiter) ask(ctx context.Context) (transport.Entry, error) {
	l, backoff := w.lease, w.lease.options.retryBackoff(0)
	for {
		entry, err := l.get(ctx, l.client, transport.Binding{})
		switch {
		case err == nil:
			w.why.heard(entry)
			if entry.Exists { // else a try may still be refused
				w.why.gone()
			}
			return entry, nil
		case isRefusal(err), isTerminal(err):
			return entry, err
		case ctx.Err() == nil:
			l.options.Logger.Warn("a look at the lease failed and will be repeated", "lease", l.name, "error", err)
			w.why.met(err)
		}
		if !sleep.For(ctx, backoff.next(random.Fraction())) {
			// Not err: an unknown outcome of a GET leaves nothing behind.
			return transport.Entry{}, context.Cause(ctx)
		}
	}
}

// refused takes note of a try that failed: version is the holder's.
func (w *waiter) refused(version hlc.Timestamp) {
	if !w.hinted && version != w.seen {
		w.deaf = true
	}
	w.seen, w.hinted, w.rests = version, false, false
	_ = w.key.Start() // if the client is closed, the next request says so
	if w.deaf {
		w.timer.Reset(w.lease.options.Jitter/2 + jitter(w.lease.options.Jitter/2))
	} else {
		w.timer.Reset(w.lease.expiry())
	}
}

func jitter(limit time.Duration) time.Duration { return random.Duration(limit) }
