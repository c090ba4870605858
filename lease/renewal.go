package lease

import (
	"context"
	"time"

	"github.com/tenurelock/tenure/internal/random"
	"github.com/tenurelock/tenure/transport"
)

// run is the goroutine of a tenure: it does what the schedule says until the tenure is over, and then ends
// what that has left. It is a task of the client. It makes the tenure's requests itself, one at a time. A
// request that goes on and on holds up nothing else: look ends the contexts in time.
func (t *Tenure) run(client context.Context) {
	defer t.finish()
	<-t.wake                      // the beginning is reported, before anything else
	var watching *transport.Watch // of the key; nil before
	var changes <-chan transport.Change
	for e := (event{}); ; {
		if client.Err() != nil { // first: the connection of a client that has ended is lost too
			e = event{kind: ended, err: context.Cause(client)}
		}
		next, until := t.step(e)
		e = event{}
		switch next {
		case finish:
			return
		case watch: // once
			if t.lease.options.NoWatch {
				break
			}
			if w, err := t.lease.client.Watch(t.lease.name); err == nil { // else the client is closed
				defer w.Close()
				watching, changes = w, w.Changes()
			}
		case confirm:
			// A notification that says that the key does not hold this tenure's value may be late or forged. If
			// there is no answer, the next renewal finds out.
			_ = t.ask(t.TokenContext(), t.lease.client, transport.Binding{Store: t.store, Connection: t.lost, Until: until})
			e.kind = confirmed
		case renew:
			e = t.renew(until)
		case wait:
			select {
			case <-t.wake:
			case <-t.lost:
			case <-t.replaced:
			case <-client.Done():
			case change, open := <-changes:
				switch {
				case !open:
					changes = nil
					if err := watching.Err(); !isTerminal(err) {
						t.lease.options.Logger.Warn("the key of the lease cannot be watched; its deletion will be noticed late or never",
							"lease", t.lease.name, "error", err)
					}
				case !change.Exists || string(change.Value) != t.value:
					e.kind = doubted
				}
			}
		}
	}
}

// step reports an event to the schedule. It returns what to do then, and until when on Go's clock. If
// there is nothing to do, look wakes the goroutine in time.
func (t *Tenure) step(e event) (do actionKind, until time.Time) {
	// The order matters: a pause of this goroutine between the two, or after them, wakes the tenure early or
	// in time. The other way round it would wake as late as the pause is long, and its context would end late.
	began := time.Now()
	now := t.lease.options.Clock()
	t.mu.Lock()
	defer t.mu.Unlock()
	var next action
	t.schedule, next = t.schedule.next(now, t.withSignals(e))
	t.endContextsLocked()
	if next.do != finish {
		t.sleepLocked(began, now)
	}
	// A request ends just before that: the schedule has its result when it is looked at by then, in virtual
	// time at least, where a simulation repeats a course.
	return next.do, began.Add(next.until - now - time.Nanosecond)
}

// look looks at the clock and at the store, whatever the goroutine does. A timer runs it when something is due: it
// ends the contexts in time, and wakes the goroutine.
func (t *Tenure) look() {
	defer t.looks.Done()
	began := time.Now() // as in step
	now := t.lease.options.Clock()
	t.mu.Lock()
	defer t.mu.Unlock()
	if !t.noteLocked(now, event{}) {
		t.sleepLocked(began, now)
	}
}

// sleepLocked makes the next look come in time. The lease's clock showed now at began.
func (t *Tenure) sleepLocked(began time.Time, now time.Duration) {
	next := min(t.schedule.due(now), t.lease.options.lookAt(now))
	pause := max(time.Until(began.Add(next-now)), 0)
	if t.timer == nil {
		t.timer = time.AfterFunc(pause, t.look)
	} else if t.timer.Reset(pause) {
		return
	}
	t.looks.Add(1)
}

// finish ends what a tenure that is over has left. From then on the tenure sends nothing but what a
// Release sends.
func (t *Tenure) finish() {
	t.closeWill()
	t.reportEnded() // before Release returns
	t.released <- false
	if t.timer != nil && t.timer.Stop() {
		t.looks.Done()
	}
	t.looks.Wait()
}

// renew makes one attempt to renew. StopRenewing and the end of the tenure withdraw it, also while it waits
// for a connection.
func (t *Tenure) renew(until time.Time) event {
	ctx, giveUp := context.WithCancel(t.usable)
	defer giveUp()
	t.mu.Lock()
	t.giveUp = giveUp
	t.endContextsLocked() // StopRenewing may have come since the schedule was looked at
	t.mu.Unlock()
	binding, err := t.bind(ctx, t.lease.client, until)
	binding.Until = until
	sent := t.lease.options.Clock()
	if err == nil {
		_, err = t.lease.set(ctx, t.value, &binding, t.lease.options.probeHeld())
	}
	result := renewal(sent, err, random.Fraction())
	t.reportRenewal(sent, result)
	return result
}
