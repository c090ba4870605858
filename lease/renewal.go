package lease

import (
	"context"
	"errors"
	"time"

	"github.com/tenurelock/tenure/internal/keywatch"
	"github.com/tenurelock/tenure/internal/random"
	"github.com/tenurelock/tenure/transport"
)

// maintain decides what the tenure does, until it is over. It waits for time and for events, and
// for nothing else: requests run in the goroutine of a worker, with all functions of the program
// that they call, such as the functions of a Trace, a Logger's handler or a Conn. So none of these can keep the
// contexts of a tenure alive that is over. When the client is closed, it ends the context client
// and waits for maintain.
func (t *Tenure) maintain(client context.Context) {
	defer t.reportEnded()
	defer func() { t.idle <- struct{}{} }() // before the report: its functions do not delay a Release
	defer t.closeWill()
	if isClosed(t.tokenCtx.Done()) {
		return // released before this goroutine ran: it needs no timer
	}
	key := keywatch.New(t.lease.client, t.lease.name, 0)
	defer key.Close()
	timer := time.NewTimer(t.lease.options.TTL)
	defer timer.Stop()
	w := &t.worker
	defer w.wait() // its request ends with the tenure
	for e := (event{}); ; {
		next := t.step(e)
		e = event{}
		switch next.do {
		case finish:
			return
		case watch:
			_ = key.Start() // if the client is closed, so is the context
		case confirm, renew:
			w.start(t, next)
		case wait:
			timer.Reset(next.until - t.lease.options.Clock())
			select {
			case <-timer.C:
			case e = <-w.results:
				w.working = false
			case change, open := <-key.Changes():
				if !open {
					w.unwatched = key.Ended()
				} else if !t.isOurs(change.Entry) {
					e = event{kind: doubted}
				}
			case <-t.lost:
				e = event{kind: ended, err: ErrConnectionLost}
			case <-t.replaced:
				e = event{kind: ended, err: ErrStoreReplaced}
			case <-t.tokenCtx.Done():
			case <-client.Done():
				e = event{kind: ended, err: context.Cause(client)}
			}
		}
	}
}

// worker runs the requests of one tenure, one at a time, each in a goroutine that ends with it.
type worker struct {
	run       func()     // what a goroutine runs; nil before the first one: many tenures are short
	results   chan event // gets one item from each goroutine
	working   bool       // one runs, or its result has not been received
	next      action     // what it does
	logs      error      // why the key is not watched, if it is to log that
	unwatched error      // as logs, for the next one
}

// start does what the schedule asked for. The result follows, also if a function of the program
// ends the goroutine.
func (w *worker) start(t *Tenure, next action) {
	if w.run == nil {
		w.results = make(chan event, 1)
		w.run = func() {
			result := event{kind: confirmed}
			if w.next.do == renew {
				result = event{kind: failed, err: errGoexit, random: random.Fraction()}
			}
			defer func() { w.results <- result }()
			if w.logs != nil {
				t.lease.options.Logger.Warn("the key of the lease cannot be watched; its deletion will be noticed late or never",
					"lease", t.lease.name, "error", w.logs)
			}
			if w.next.do == renew {
				result = t.renew(w.next.until)
			} else {
				t.confirm(w.next.until)
			}
		}
	}
	w.working, w.next = true, next
	w.logs, w.unwatched = w.unwatched, nil
	go w.run()
}

// wait returns when no request is under way.
func (w *worker) wait() {
	if w.working {
		<-w.results
	}
}

var errGoexit = errors.New("a function of the program ended the goroutine of the renewal")

func (t *Tenure) isOurs(entry transport.Entry) bool {
	return entry.Exists && string(entry.Value) == t.value
}

// until returns a context that ends just before a time on the lease's clock, or when the tenure is
// over. Just before: maintain has the result when it looks at the schedule at that time, in virtual
// time at least, where a simulation repeats a course.
func (t *Tenure) until(at time.Duration) (context.Context, context.CancelFunc) {
	return context.WithTimeout(t.tokenCtx, at-t.lease.options.Clock()-time.Nanosecond)
}

// confirm asks the store whether the key still has this tenure's value: a notification that says
// otherwise may be late or forged. If there is no answer, the next renewal finds out.
func (t *Tenure) confirm(until time.Duration) {
	ctx, cancel := t.until(until)
	defer cancel()
	_ = t.ask(ctx, t.lease.client, t.binding())
}

// renew makes one attempt, which takes no longer than until.
func (t *Tenure) renew(until time.Duration) event {
	ctx, cancel := t.until(until)
	defer cancel()
	t.mu.Lock()
	t.cancelRenewal = cancel
	if t.schedule.stopped { // since the schedule asked for the renewal
		cancel()
	}
	t.mu.Unlock()
	binding, err := t.Bind(ctx, t.lease.client)
	bound, sent := err == nil, t.lease.options.Clock()
	if bound {
		_, err = t.lease.set(ctx, t.value, binding)
	}
	result := renewal(sent, err, random.Fraction())
	now := t.lease.options.Clock()
	t.mu.Lock()
	t.cancelRenewal = nil
	if bound && !errors.Is(err, transport.ErrNotSent) {
		t.sent = sent
	}
	goesOn := t.schedule.cause == nil && !t.schedule.stopped && now < t.schedule.deadline
	headroom := t.schedule.deadline - now
	t.mu.Unlock()
	switch {
	case !goesOn:
	case result.kind == renewed:
		t.traceRenewed(now-sent, headroom)
	case result.kind == failed:
		t.traceRenewalFailed(headroom, err)
		t.lease.options.Logger.Warn("a renewal failed and will be repeated", "lease", t.lease.name, "error", err)
	}
	return result
}
