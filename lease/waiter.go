package lease

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/tenurelock/tenure/internal/keywatch"
	"github.com/tenurelock/tenure/internal/operror"
	"github.com/tenurelock/tenure/internal/random"
	"github.com/tenurelock/tenure/transport"
)

// waiter is one Acquire. It carries out what its waiting decides, and knows why it still waits. A
// TryAcquire does not wait: its waiter has no timers and no watch.
type waiter struct {
	lease   *Lease
	key     *keywatch.Watch
	began   time.Time // of the times of the waiting
	timer   *time.Timer
	waiting waiting
	silence *time.Timer // runs since the latest notification

	failure   error           // of the latest request; nil if the store answered it
	onWaiting func(err error) // gets failure when its class changes; may be nil
	held      *HeldError      // by the latest answer or notification; nil: the lease is free, as far as is known

	logged   string    // the name of the holder in the latest log line; "": none yet
	loggedAt time.Time // when that was
}

func (l *Lease) newWaiter() *waiter {
	return &waiter{
		lease:     l,
		key:       keywatch.New(l.client.WatchWaiting, l.name, l.options.TTL), // the reason for a refusal may pass
		began:     time.Now(),
		timer:     time.NewTimer(0),
		waiting:   waiting{options: &l.options, backoff: l.options.retryBackoff(l.options.Jitter)},
		silence:   time.NewTimer(l.silence()),
		onWaiting: l.options.OnWaiting,
	}
}

func (w *waiter) close() {
	w.key.Close()
	w.timer.Stop()
	w.silence.Stop()
}

// note notes why a request failed, or with nil that the store answered it.
func (w *waiter) note(err error) {
	changed := classOf(err) != classOf(w.failure)
	if w.failure = err; changed && w.onWaiting != nil {
		w.onWaiting(err)
	}
}

// failed notes and logs why an attempt failed: the first time, and then with growing pauses. At level
// Debug each one is logged.
func (w *waiter) failed(ctx context.Context, err error) {
	// Past its deadline, what fails fails because of that. On a busy machine ctx ends later.
	if deadline, ok := ctx.Deadline(); ctx.Err() != nil || ok && !time.Now().Before(deadline) {
		return
	}
	l := w.lease
	l.options.Logger.Log(context.Background(), l.limit.Level(slog.LevelWarn, classOf(err)),
		"the lease cannot be acquired for now", "lease", l.name, "error", err)
	w.note(err)
}

// heard notes what the key holds. It logs which holder Acquire waits for, when that changes. A client that
// forges notifications cannot make it log more often than once in a TTL.
func (w *waiter) heard(entry transport.Entry) {
	l := w.lease
	holder := l.heard(entry)
	if w.held = nil; !holder.Held {
		return
	}
	w.held = &HeldError{Holder: holder}
	if holder.Name == w.logged || w.logged != "" && time.Since(w.loggedAt) < l.options.TTL {
		return
	}
	w.logged, w.loggedAt = holder.Name, time.Now()
	l.options.Logger.Info("waiting for the lease: another holder has it", "lease", l.name,
		"holder", fmt.Sprintf("%.*s", shownName, holder.Name))
}

// silence is how long a waiter hears nothing of a holder before it doubts its connection: two renewals.
// With its machine a store can fall silent without ending its connections, and without a doubt the
// waiter would notice that when the TTL is over, and not when another store can give it the lease.
func (l *Lease) silence() time.Duration { return 2 * l.options.RenewEvery }

// await tries until it holds the lease, waiting is useless, or ctx or the attempt ends.
func (w *waiter) await(ctx context.Context, a *attempt) (*Tenure, error) {
	w.waiting.delaying = false // of an attempt before: this one looks itself
	if w.lease.acquireDelay() > 0 {
		w.waiting.watches = true
		_ = w.key.Start() // if the client is closed, the look says so
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
			w.failed(ctx, err)
		case e.version.IsZero():
			w.note(&HeldError{})
		default:
			w.held = cmp.Or(w.held, &HeldError{}) // the refusal does not name the holder
			w.note(nil)
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
			if ctx.Err() != nil {
				return context.Cause(ctx) // not err: an unknown outcome of a GET leaves nothing behind
			}
			if err != nil {
				return err
			}
			e = waitEvent{kind: looked, exists: entry.Exists, version: entry.Version}
			continue
		}
		w.timer.Reset(w.waiting.dueAt - time.Since(w.began))
		e = waitEvent{}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-lost:
			return errReconnected
		case <-w.timer.C:
		case <-w.silence.C: // once: a holder that died is silent too
			w.lease.client.Probe(w.lease.options.RequestTimeout + w.lease.options.probe()) // as after a request
		case change, open := <-w.key.Changes():
			if !open {
				if err := w.key.Ended(); isTerminal(err) {
					return err
				}
				e = waitEvent{kind: unwatched}
				break
			}
			w.heard(change.Entry)
			w.silence.Reset(w.lease.silence())
			e = waitEvent{kind: changed, exists: change.Exists, version: change.Version, missed: change.Missed}
		}
	}
}

// look reads the key. What this Lease has left there it frees first.
func (w *waiter) look(ctx context.Context) (transport.Entry, error) {
	l := w.lease
	entry, err := l.get(ctx, l.client, transport.Binding{}, l.options.probe())
	if err == nil && entry.Exists && l.freeLeft(ctx) {
		entry, err = l.get(ctx, l.client, transport.Binding{}, l.options.probe())
	}
	if err != nil {
		return entry, err
	}
	w.heard(entry)
	if entry.Exists { // else a try may still be refused
		w.note(nil)
		_ = w.key.Start() // if the client is closed, the next request says so
	}
	return entry, nil
}
