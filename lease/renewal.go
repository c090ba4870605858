package lease

import (
	"context"
	"errors"
	"time"

	"github.com/tenurelock/tenure/internal/async"
	"github.com/tenurelock/tenure/internal/random"
	"github.com/tenurelock/tenure/transport"
)

// drive reports an event to the schedule, and does what the schedule says until it says wait. Any
// goroutine may call it: the scheduler's, or one that has a result. It waits for nothing. What
// it starts is started once, because the schedule does not ask for a second request before it
// has the result of the first.
func (t *Tenure) drive(e event) {
	// The order matters: a pause of this goroutine between the two, or after them, wakes the tenure early or
	// in time. The other way round it would wake as late as the pause is long, and its context would end late.
	began := t.scheduler.now()
	now := t.lease.options.Clock()
	for {
		t.mu.Lock()
		s, next := t.schedule.next(now, t.withSignals(e))
		news := t.applyLocked(s)
		switch next.do {
		case confirm, renew:
			t.busy, t.renewing = true, next.do == renew
		case wait: // with the lock, so that an earlier decision does not replace a later one
			at := next.until
			if t.lease.systemClock { // the scheduler looks at it
				at = s.due(now)
			}
			t.scheduler.wake(t, began+(at-now))
		}
		t.mu.Unlock()
		t.act(news)
		switch next.do {
		case wait, finish:
			return
		case watch:
			t.watch()
		case confirm:
			t.confirm(next.until)
		case renew:
			t.bindAndRenew(next.until)
		}
		e = event{}
	}
}

// news is what an event has changed.
type news struct {
	ended   bool // the tenure is over
	stopped bool // a renewal that is under way is to end
}

// act does what follows from news, once for each.
func (t *Tenure) act(n news) {
	if n.ended {
		t.scheduler.remove(t)
		t.mu.Lock()
		watching := t.watching
		t.watching = nil
		t.mu.Unlock()
		if watching != nil {
			watching.Close()
		}
	}
	if n.ended || n.stopped {
		t.giveUp()
	}
	if n.ended {
		t.settle()
	}
}

// giveUp ends the request that is under way, if the tenure has no use for its result. It does nothing
// before the request began: what begins one calls giveUp afterwards.
func (t *Tenure) giveUp() {
	t.mu.Lock()
	useless := t.busy && (t.schedule.cause != nil || t.renewing && t.schedule.stopped)
	cancel, request := t.cancelBind, t.call.Request()
	t.mu.Unlock()
	if useless && cancel != nil {
		cancel()
	}
	// The one that was under way with the lock: the renewal may have ended since, and the question whether
	// the key was deleted may be under way in its place.
	if useless && request != nil {
		request.Cancel(context.Canceled)
	}
}

// settle ends what a tenure that is over has left, as soon as no request is under way: from then on
// the tenure sends nothing but what a Release sends.
func (t *Tenure) settle() {
	t.mu.Lock()
	settles := t.schedule.cause != nil && !t.busy && !t.settling
	t.settling = t.settling || settles
	t.mu.Unlock()
	if !settles {
		return
	}
	t.closeWill()
	t.mu.Lock()
	t.settled = true
	t.changedLocked()
	t.mu.Unlock()
	// After that: a function of the program does not delay a Release.
	if !t.lease.hears(t.lease.options.Trace.Ended != nil) {
		t.scheduler.reported()
		return
	}
	t.scheduler.calling(func() {
		defer t.scheduler.reported()
		t.reportEnded()
	})
}

// complete notes the result of the request that was under way.
func (t *Tenure) complete(e event) {
	t.mu.Lock()
	t.busy = false
	t.mu.Unlock()
	t.drive(e)
	t.settle()
}

// watch begins to watch the key.
func (t *Tenure) watch() {
	watching, err := t.lease.client.WatchWith(t.lease.name, (*keyWatcher)(t))
	if err != nil {
		return // the client is closed, and so the tenure is over
	}
	t.mu.Lock()
	over := t.schedule.cause != nil
	if !over {
		t.watching = watching
	}
	t.mu.Unlock()
	if over {
		watching.Close()
	}
}

// keyWatcher gets what the client hears of the key of a tenure. It is called with the client's lock
// held.
type keyWatcher Tenure

// Changed implements async.Watcher.
func (k *keyWatcher) Changed(exists bool, value []byte) {
	if !exists || string(value) != k.value {
		k.scheduler.doubt((*Tenure)(k))
	}
}

// Ended implements async.Watcher.
func (k *keyWatcher) Ended(err error) {
	t := (*Tenure)(k)
	if t.lease.hears(false) && !isTerminal(err) {
		t.scheduler.calling(func() {
			t.lease.options.Logger.Warn("the key of the lease cannot be watched; its deletion will be noticed late or never",
				"lease", t.lease.name, "error", err)
		})
	}
}

var errGoexit = errors.New("a function of the program ended the goroutine of the renewal")

// confirm asks the store whether the key still has this tenure's value: a notification that says
// otherwise may be late or forged. If there is no answer, the next renewal finds out.
func (t *Tenure) confirm(until time.Duration) {
	t.prepare(until)
	t.lease.client.BeginGet(&t.call, t.lease.name, transport.GetOptions{Binding: t.binding(), Urgent: true})
	t.giveUp()
}

// prepare prepares the call for a request that is about to leave, and ends just before until: the
// scheduler has the result when it looks at the schedule at that time, in virtual time at least,
// where a simulation repeats a course.
func (t *Tenure) prepare(until time.Duration) {
	if t.call.Done == nil {
		t.call.Done = t.answered
	}
	began := time.Now() // before the lease's clock, so that a pause makes the request end early: see drive
	now := t.lease.options.Clock()
	t.bound, t.leftAt = true, now
	t.call.Deadline = began.Add(min(t.lease.options.RequestTimeout, until-now-time.Nanosecond))
}

// bindAndRenew makes one attempt to renew, which takes no longer than until.
func (t *Tenure) bindAndRenew(until time.Duration) {
	if binding, confirmed := t.confirmedBinding(t.lease.client); confirmed {
		t.renew(binding, until)
		return
	}
	t.scheduler.calling(func() { // Bind waits for the store
		err := errGoexit
		defer func() {
			if err != nil {
				t.bound, t.leftAt = false, t.lease.options.Clock()
				t.result(async.Result{Err: err})
			}
		}()
		ctx, cancel := t.until(until)
		defer cancel()
		t.mu.Lock()
		t.cancelBind = cancel
		t.mu.Unlock()
		t.giveUp() // if it was useless before
		binding, failure := t.Bind(ctx, t.lease.client)
		t.mu.Lock()
		t.cancelBind = nil
		t.mu.Unlock()
		if err = failure; err == nil {
			t.renew(binding, until)
		}
	})
}

// until returns a context that ends just before a time on the lease's clock, or when the tenure is
// over.
func (t *Tenure) until(at time.Duration) (context.Context, context.CancelFunc) {
	began := time.Now() // first, as in prepare
	return context.WithDeadline(t.TokenContext(), began.Add(at-t.lease.options.Clock()-time.Nanosecond))
}

// renew sends a renewal. It does not wait for the answer.
func (t *Tenure) renew(binding transport.Binding, until time.Duration) {
	t.prepare(until)
	t.lease.client.BeginSet(&t.call, t.lease.name, []byte(t.value), t.lease.setOptions(binding))
	t.giveUp()
}

// answered gets the result of a request. It runs where the connection is read, and must not wait:
// what may call a function of the program runs in a goroutine of its own.
func (t *Tenure) answered(r async.Result) {
	if r.Err == nil && !(t.renewing && t.lease.options.Trace.Renewed != nil) {
		t.complete(t.judge(r))
		return
	}
	t.scheduler.calling(func() { t.result(r) })
}

// result handles a result, and calls the functions of the program that are to hear of it.
func (t *Tenure) result(r async.Result) {
	e := event{kind: confirmed}
	if t.renewing {
		e = event{kind: failed, err: errGoexit, random: random.Fraction()}
	}
	defer func() { t.complete(e) }()
	e = t.judge(r)
}

// judge returns the event that a result is for the schedule.
func (t *Tenure) judge(r async.Result) event {
	if r.Err != nil && t.bound {
		r.Err = t.lease.answered(t.lease.client, r.Err, t.lease.options.probeHeld())
	}
	if !t.renewing {
		return told(t.value, transport.Entry{Exists: r.Exists, Value: r.Value}, r.Err)
	}
	result := renewal(t.leftAt, r.Err, random.Fraction())
	now := t.lease.options.Clock()
	t.mu.Lock()
	if t.bound && !errors.Is(r.Err, transport.ErrNotSent) {
		t.sent = t.leftAt
	}
	goesOn := t.schedule.cause == nil && !t.schedule.stopped && now < t.schedule.deadline
	headroom := t.schedule.deadline - now
	t.mu.Unlock()
	switch {
	case !goesOn:
	case result.kind == renewed:
		t.traceRenewed(now-t.leftAt, headroom)
	case result.kind == failed:
		t.traceRenewalFailed(headroom, r.Err)
		t.lease.options.Logger.Warn("a renewal failed and will be repeated", "lease", t.lease.name, "error", r.Err)
	}
	return result
}
