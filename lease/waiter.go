package lease

import (
	"context"
	"errors"
	"time"

	"github.com/tenurelock/tenure/internal/keywatch"
	"github.com/tenurelock/tenure/internal/operror"
	"github.com/tenurelock/tenure/internal/random"
	"github.com/tenurelock/tenure/internal/sleep"
	"github.com/tenurelock/tenure/transport"
)

// waiter is one Acquire. It carries out what its waiting decides.
type waiter struct {
	lease   *Lease
	reason  *waitReason
	key     *keywatch.Watch
	began   time.Time // of the times of the waiting
	timer   *time.Timer
	waiting waiting
	silence *time.Timer // runs since the latest notification
}

func (l *Lease) newWaiter() *waiter {
	return &waiter{
		lease:   l,
		reason:  &waitReason{lease: l},
		key:     keywatch.New(l.client, l.name, l.options.TTL), // the reason for a refusal may pass
		began:   time.Now(),
		timer:   time.NewTimer(0),
		waiting: waiting{options: &l.options, backoff: l.options.retryBackoff(l.options.Jitter)},
		silence: time.NewTimer(l.silence()),
	}
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

// acquire tries until it holds the lease, waiting is useless, or ctx or the attempt ends.
func (w *waiter) acquire(ctx context.Context, a *attempt) (*Tenure, error) {
	w.waiting.delaying = false // of an attempt before: this one looks itself
	if w.lease.acquireDelay() > 0 {
		w.waiting.watches = true
		if err := w.key.Start(); err != nil {
			return nil, operror.Inner(err)
		}
	} else {
		w.waiting.dueAt = 0 // an attempt begins with a try
	}
	for e := (waitEvent{}); ; {
		err := w.untilTry(ctx, a.lost, e)
		if err == nil {
			var tenure *Tenure
			if tenure, e.version, err = a.try(ctx); err == nil {
				return tenure, nil
			}
		}
		if e.kind = refused; !errors.Is(err, transport.ErrConditionFailed) {
			e.kind = delayed
			if ctx.Err() != nil || again(err) || isPermanent(err) {
				return nil, err
			}
		}
		switch {
		case e.kind == delayed:
			w.reason.failed(err)
			w.lease.logFailure("the lease cannot be acquired for now", err)
		case e.version.IsZero():
			w.reason.failed(&HeldError{})
		default:
			w.reason.isHeld()
		}
		if e.kind == refused || !w.waiting.watches { // else what keeps it from a try may keep it from a watch
			if err := w.key.Start(); err != nil {
				return nil, operror.Inner(err)
			}
		}
	}
}

// untilTry reports an event, and returns when it is time to try. It returns an error when ctx or the
// client ends first, lost is closed, or the store does not let this waiter look.
func (w *waiter) untilTry(ctx context.Context, lost <-chan struct{}, e waitEvent) error {
	for {
		var do waitDo
		e.random = random.Fraction
		w.waiting.delay = w.lease.acquireDelay()
		w.waiting, do = w.waiting.next(time.Since(w.began), e)
		switch do {
		case tryNow:
			return nil
		case lookNow:
			entry, err := w.look(ctx)
			if err != nil {
				return err
			}
			e = waitEvent{kind: looked, exists: entry.Exists, version: entry.Version}
			continue
		}
		w.timer.Reset(w.waiting.dueAt - time.Since(w.began))
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-lost:
			return errReconnected
		case <-w.timer.C:
			e = waitEvent{}
		case <-w.silence.C: // once: a holder that died is silent too
			w.lease.client.Probe(w.lease.options.RequestTimeout + w.lease.options.probe()) // as after a request
			e = waitEvent{}
		case change, open := <-w.key.Changes():
			if !open {
				if err := w.key.Ended(); isTerminal(err) {
					return err
				}
				e = waitEvent{kind: unwatched}
				break
			}
			w.reason.heard(change.Entry)
			w.silence.Reset(w.lease.silence())
			e = waitEvent{kind: changed, exists: change.Exists, version: change.Version, missed: change.Missed}
		}
	}
}

// look reads the key. What this Lease has left there it frees first.
func (w *waiter) look(ctx context.Context) (transport.Entry, error) {
	entry, err := w.read(ctx)
	if err == nil && entry.Exists && w.lease.freeLeft(ctx) {
		entry, err = w.read(ctx)
	}
	if err == nil && entry.Exists {
		_ = w.key.Start() // if the client is closed, the next request says so
	}
	return entry, err
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
