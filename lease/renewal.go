package lease

import (
	"context"
	"errors"
	"time"

	"github.com/tenurelock/tenure/internal/keywatch"
	"github.com/tenurelock/tenure/internal/random"
	"github.com/tenurelock/tenure/transport"
)

// maintain is the tenure's only goroutine. It does what the schedule asks for, until the tenure
// is over. When the client is closed, it ends the context client and waits for maintain.
func (t *Tenure) maintain(client context.Context) {
	defer func() { t.idle <- struct{}{} }()
	defer t.reportEnded()
	defer t.closeWill()
	if isClosed(t.tokenCtx.Done()) {
		return // released before this goroutine ran: it needs no timer
	}
	key := keywatch.New(t.lease.client, t.lease.name, 0)
	defer key.Close()
	timer := time.NewTimer(t.lease.options.TTL)
	defer timer.Stop()
	for e := (event{}); ; {
		next := t.step(e)
		e = event{}
		switch next.do {
		case finish:
			return
		case watch:
			_ = key.Start() // if the client is closed, so is the context
		case confirm:
			e = t.confirm(next.until)
		case renew:
			e = t.renew(next.until)
		case wait:
			timer.Reset(next.until - t.lease.options.Clock())
			select {
			case <-timer.C:
			case change, open := <-key.Changes():
				if !open {
					t.lease.options.Logger.Warn("the key of the lease cannot be watched; its deletion will be noticed late or never",
						"lease", t.lease.name, "error", key.Ended())
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

func (t *Tenure) isOurs(entry transport.Entry) bool {
	return entry.Exists && string(entry.Value) == t.value
}

// until returns a context that ends at a time on the lease's clock, or when the tenure is over.
func (t *Tenure) until(at time.Duration) (context.Context, context.CancelFunc) {
	return context.WithTimeout(t.tokenCtx, at-t.lease.options.Clock())
}

// confirm asks the store whether the key still has this tenure's value: a notification that says
// otherwise may be late or forged. If there is no answer, the next renewal finds out.
func (t *Tenure) confirm(until time.Duration) event {
	ctx, cancel := t.until(until)
	defer cancel()
	_ = t.ask(ctx, t.lease.client, t.binding())
	return event{kind: confirmed}
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
