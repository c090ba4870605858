package lease

import (
	"context"
	"errors"
	"time"

	"github.com/tenurelock/tenure/internal/random"
	"github.com/tenurelock/tenure/transport"
)

// run is the goroutine of a tenure: it does what the schedule says until the tenure is over, and then ends
// what that has left. It is a task of the client. While the tenure lasts, it waits for time and for news, and
// for nothing else: requests, and functions of the program, run in goroutines of their own. So no
// function can keep a tenure alive that is over, nor delay another tenure.
func (t *Tenure) run(client context.Context) {
	var watching *transport.Watch
	var changes <-chan transport.Change // of watching, until that ends
	var asking sending
	for e := (event{}); ; {
		if client.Err() != nil { // first: the connection of a client that has ended is lost too
			e = event{kind: ended, err: context.Cause(client)}
		}
		next, until, stops := t.step(e)
		if next == finish || stops && asking.renews {
			asking.giveUp()
		}
		e = event{}
		switch next {
		case finish:
			if watching != nil {
				watching.Close()
			}
			t.finish(&asking)
			return
		case watch:
			if w, err := t.lease.client.Watch(t.lease.name); err == nil { // else the client is closed
				watching, changes = w, w.Changes()
			}
			continue
		case confirm, renew:
			t.send(&asking, next == renew, until)
			continue
		}
		for news := false; !news; {
			news = true
			select {
			case <-t.wake:
			case <-t.lost:
			case <-t.replaced:
			case <-client.Done():
			case e = <-asking.underWay:
				asking.underWay = nil
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

// step reports an event to the schedule. It returns what to do then, and until when on Go's clock; stops says
// that no renewal is of use any more. If there is nothing to do, the timer wakes the goroutine in time.
func (t *Tenure) step(e event) (do actionKind, until time.Time, stops bool) {
	// The order matters: a pause of this goroutine between the two, or after them, wakes the tenure early or
	// in time. The other way round it would wake as late as the pause is long, and its context would end late.
	began := time.Now()
	now := t.lease.options.Clock()
	t.mu.Lock()
	defer t.mu.Unlock()
	s, next := t.schedule.next(now, t.withSignals(e))
	t.applyLocked(s)
	until = began.Add(next.until - now)
	if next.do == wait {
		t.dueAt = s.due(now)
		t.sleepLocked(until)
	}
	return next.do, until, s.stopped
}

// look looks at the clock while the goroutine waits. A timer runs it: it wakes the goroutine if something is
// due, and spares it most of the looks, which are many.
func (t *Tenure) look() {
	defer t.looks.Done()
	began := time.Now() // first, as in step
	now := t.lease.options.Clock()
	t.mu.Lock()
	defer t.mu.Unlock()
	switch {
	case t.schedule.cause != nil: // no look follows
	case now >= t.dueAt:
		signal(t.wake)
	default:
		t.sleepLocked(began.Add(min(t.dueAt-now, t.lease.options.lookEvery())))
	}
}

// sleepLocked makes the next look come at a time.
func (t *Tenure) sleepLocked(until time.Time) {
	switch pause := time.Until(until); {
	case pause <= 0: // it has passed since
		signal(t.wake)
	case t.timer == nil:
		t.looks.Add(1)
		t.timer = time.AfterFunc(pause, t.look)
	case !t.timer.Reset(pause):
		t.looks.Add(1)
	}
}

// finish ends what a tenure that is over has left. From then on the tenure sends nothing but what a
// Release sends.
func (t *Tenure) finish(asking *sending) {
	if asking.underWay != nil {
		<-asking.underWay
	}
	t.closeWill()
	t.turn <- struct{}{}
	if t.timer != nil && t.timer.Stop() {
		t.looks.Done()
	}
	t.looks.Wait()
	t.reportEnded() // after that: a function of the program does not delay a Release
}

// sending is what a tenure has under way: one request at a time, in a goroutine of its own.
type sending struct {
	underWay chan event // gets the result of the request; nil if there is none
	renews   bool       // it is a renewal, and not a question
	result   chan event // underWay, for the next one; nil before the first

	ctx    context.Context // of the requests, until one is given up; nil before
	cancel context.CancelFunc
}

// giveUp ends a request whose result is of no use.
func (s *sending) giveUp() {
	if s.ctx != nil {
		s.cancel()
		s.ctx = nil
	}
}

var errGoexit = errors.New("a function of the program ended the goroutine of the renewal")

// send sends a renewal, or asks the store whether the key still has this tenure's value: a notification
// that says otherwise may be late or forged. The request ends just before a time: the schedule has its result
// when it is looked at by then, in virtual time at least, where a simulation repeats a course.
func (t *Tenure) send(s *sending, renews bool, until time.Time) {
	if s.result == nil {
		s.result = make(chan event, 1)
	}
	if s.ctx == nil {
		s.ctx, s.cancel = context.WithCancel(context.Background())
	}
	s.underWay, s.renews = s.result, renews
	ctx, result, until := s.ctx, s.result, until.Add(-time.Nanosecond)
	go func() {
		e := event{kind: confirmed}
		if renews {
			e = event{kind: failed, err: errGoexit, random: 0.5}
		}
		defer func() { result <- e }()
		if renews {
			e = t.renew(ctx, until)
		} else {
			e = t.confirm(ctx, until)
		}
	}()
}

// confirm asks the store what the key holds. If there is no answer, the next renewal finds out.
func (t *Tenure) confirm(ctx context.Context, until time.Time) event {
	binding := t.binding()
	binding.Until = until
	entry, err := t.lease.get(ctx, t.lease.client, binding, t.lease.options.probeHeld())
	return told(t.value, entry, err)
}

// renew makes one attempt to renew, and calls the functions of the program that are to hear of it. The
// schedule has the result when they have returned.
func (t *Tenure) renew(ctx context.Context, until time.Time) event {
	l := t.lease
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
	result := renewal(sent, err, random.Fraction())
	t.reportRenewal(sent, result)
	return result
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
