package lease

import (
	"context"
	"errors"
	"time"

	"github.com/tenurelock/tenure/internal/random"
	"github.com/tenurelock/tenure/transport"
)

// run is the goroutine of a tenure: it does what the schedule says until the tenure is over, and then ends
// what that has left. It is a task of the client. It makes the tenure's requests itself, one at a time. A
// request that goes on and on holds up nothing else: look ends the contexts in time. Functions of the program
// that hear of a request run in a goroutine of their own, so that none can delay the end of the tenure.
func (t *Tenure) run(client context.Context) {
	var watching *transport.Watch
	var changes <-chan transport.Change // of watching, until that ends
	var reported chan event             // gets the result of a renewal of which functions hear; nil if none does
	defer func() {
		t.end(errGoexit) // unless it has ended
		if watching != nil {
			watching.Close()
		}
		if reported != nil {
			<-reported
		}
		t.finish()
	}()
	t.joinPulse()
	for e := (event{}); ; {
		if client.Err() != nil { // first: the connection of a client that has ended is lost too
			e = event{kind: ended, err: context.Cause(client)}
		}
		next, until := t.step(e)
		e = event{}
		switch next {
		case finish:
			return
		case watch:
			if w, err := t.lease.client.Watch(t.lease.name); err == nil { // else the client is closed
				watching, changes = w, w.Changes()
			}
			continue
		case confirm:
			e = t.confirm(until)
			continue
		case renew:
			var report func()
			if e, report = t.renew(until); report == nil {
				continue
			}
			reported = make(chan event, 1)
			go func(result event, reported chan<- event) {
				defer func() { reported <- result }()
				report()
			}(e, reported)
		}
		e = event{}
		for news := false; !news; {
			news = true
			select {
			case <-t.wake:
			case <-t.lost:
			case <-t.replaced:
			case <-client.Done():
			case e = <-reported:
				reported = nil
			case change, open := <-changes:
				switch {
				case !open:
					changes = nil
					t.unwatched(watching.Err())
				case !change.Exists || string(change.Value) != t.value:
					e = event{kind: doubted}
				default:
					news = false // its own renewal
				}
			}
		}
	}
}

var errGoexit = errors.New("a function of the program, such as Trace.Request of the client, ended the goroutine of the tenure")

// step reports an event to the schedule. It returns what to do then, and until when on Go's clock. If
// there is nothing to do, look wakes the goroutine in time.
func (t *Tenure) step(e event) (do actionKind, until time.Time) {
	// The order matters: a pause of this goroutine between the two, or after them, wakes the tenure early or
	// in time. The other way round it would wake as late as the pause is long, and its context would end late.
	began := time.Now()
	now := t.lease.options.Clock()
	t.mu.Lock()
	defer t.mu.Unlock()
	s, next := t.schedule.next(now, t.withSignals(e))
	t.applyLocked(s)
	if next.do != finish {
		t.sleepLocked(began, s.due(now)-now)
	}
	// A request ends just before that: the schedule has its result when it is looked at by then, in virtual
	// time at least, where a simulation repeats a course.
	return next.do, began.Add(next.until - now - time.Nanosecond)
}

// look looks at the clock, whatever the goroutine does. A timer runs it when something is due: it ends the
// contexts in time, and wakes the goroutine.
func (t *Tenure) look() {
	defer t.looks.Done()
	began := time.Now() // first, as in step
	now := t.lease.options.Clock()
	t.mu.Lock()
	defer t.mu.Unlock()
	if !t.noteLocked(now, event{}) {
		t.sleepLocked(began, t.schedule.due(now)-now)
	}
}

// sleepLocked makes the next look come some time after began.
func (t *Tenure) sleepLocked(began time.Time, pause time.Duration) {
	pause = max(time.Until(began.Add(pause)), 0)
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
	t.leavePulse()
	t.closeWill()
	t.turn <- struct{}{}
	if t.timer != nil && t.timer.Stop() {
		t.looks.Done()
	}
	t.looks.Wait()
	t.reportEnded() // after that: a function of the program does not delay a Release
}

// confirm asks the store what the key holds: a notification that says that it is not this tenure's value may
// be late or forged. If there is no answer, the next renewal finds out.
func (t *Tenure) confirm(until time.Time) event {
	binding := t.binding()
	binding.Until = until
	entry, err := t.lease.get(t.TokenContext(), t.lease.client, binding, t.lease.options.probeHeld())
	return told(t.value, entry, err)
}

// renew makes one attempt to renew. If functions of the program are to hear of it, it returns what calls
// them: the schedule has the result when that has returned.
func (t *Tenure) renew(until time.Time) (result event, report func()) {
	l, ctx := t.lease, t.renewing
	binding, confirmed := t.confirmedBinding(l.client)
	var err error
	if !confirmed {
		bounded, cancel := context.WithDeadline(ctx, until)
		binding, err = t.Bind(bounded, l.client)
		cancel()
	}
	sent := l.options.Clock()
	if err == nil {
		binding.Until = until
		_, err = l.client.Set(ctx, l.name, []byte(t.value), l.setOptions(binding))
		err = l.answered(l.client, err, l.options.probeHeld())
		if !errors.Is(err, transport.ErrNotSent) {
			t.mu.Lock()
			t.sent = sent
			t.mu.Unlock()
		}
	}
	result = renewal(sent, err, random.Fraction())
	return result, t.reportOf(sent, result)
}

// unwatched logs that the watch of the key has ended by itself.
func (t *Tenure) unwatched(err error) {
	if isTerminal(err) {
		return
	}
	t.lease.client.Go(func(context.Context) { // the handler of the program may block
		t.lease.options.Logger.Warn("the key of the lease cannot be watched; its deletion will be noticed late or never",
			"lease", t.lease.name, "error", err)
	})
}

// signal makes one receiver of a channel with room for one item look again.
func signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}
