package lease

import (
	"context"
	"time"

	"github.com/tenurelock/tenure/hlc"
	"github.com/tenurelock/tenure/internal/random"
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
type waiter struct {
	lease   *Lease
	watch   *transport.Watch
	changes <-chan transport.Change // of watch; nil once that has ended
	timer   *time.Timer

	seen   hlc.Timestamp // the holder's latest version known
	hinted bool          // a notification said that the lease is free
	deaf   bool          // notifications are not to be relied on
}

func (l *Lease) newWaiter(seen hlc.Timestamp) (*waiter, error) {
	watch, err := l.client.Watch(l.name)
	if err != nil {
		return nil, err
	}
	return &waiter{
		lease:   l,
		watch:   watch,
		changes: watch.Changes(),
		timer:   time.NewTimer(l.expiry()),
		seen:    seen,
	}, nil
}

func (w *waiter) close() {
	w.watch.Close()
	w.timer.Stop()
}

// expiry is the time to wait for a holder that may have renewed just now.
func (l *Lease) expiry() time.Duration { return l.options.TTL + jitter(l.options.Jitter) }

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
			return nil
		case change, open := <-w.changes:
			switch {
			case !open:
				if err := w.watch.Err(); isTerminal(err) {
					return err
				}
				// The store grants no watch: the timer must do.
				w.changes, w.deaf = nil, true
				w.timer.Reset(jitter(w.lease.options.Jitter))
			case !change.Exists:
				w.hinted, w.deaf = true, false
				w.timer.Reset(jitter(min(w.lease.options.Jitter, releaseJitter)))
			default:
				w.seen, w.hinted, w.deaf = change.Version, false, false
				w.timer.Reset(w.lease.expiry())
			}
		}
	}
}

// refused takes note of a try that failed: version is the holder's.
func (w *waiter) refused(version hlc.Timestamp) {
	if !w.hinted && version != w.seen {
		w.deaf = true
	}
	w.seen, w.hinted = version, false
	if w.deaf {
		w.timer.Reset(w.lease.options.Jitter/2 + jitter(w.lease.options.Jitter/2))
	} else {
		w.timer.Reset(w.lease.expiry())
	}
}

func jitter(limit time.Duration) time.Duration { return random.Duration(limit) }
