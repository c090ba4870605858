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
// request that goes on and on holds up nothing else: look and the pulse end the contexts in time. Functions of
// the program that run in a request, or hear of it, do so in another goroutine, so that none can delay the end
// of the tenure.
func (t *Tenure) run(client context.Context) {
	var news news
	defer func() {
		t.end(errGoexit) // unless it has ended
		news.close()
		t.finish()
	}()
	for e := (event{}); ; {
		if client.Err() != nil { // first: the connection of a client that has ended is lost too
			e = event{kind: ended, err: context.Cause(client)}
		}
		switch next, until := t.step(e); next {
		case finish:
			return
		case watch:
			e = event{}
			news.watch(t)
		case confirm:
			e = news.request(client, t, func() (event, func()) { return t.confirm(until), nil })
		case renew:
			e = news.request(client, t, func() (event, func()) { return t.renewed(t.renew(until)) })
		case wait:
			e = news.next(client, t)
		}
	}
}

// news is what the goroutine of a tenure waits for, beside time and the tenure's signals.
type news struct {
	watching *transport.Watch        // of the key; nil before
	changes  <-chan transport.Change // of watching, until that ends
	reported chan event              // gets the result of a request when the functions of the program have returned
}

// watch begins to watch the key.
func (n *news) watch(t *Tenure) {
	if w, err := t.lease.client.Watch(t.lease.name); err == nil { // else the client is closed
		n.watching, n.changes = w, w.Changes()
	}
}

// request makes a request, and calls the functions of the program that are to hear of its result. It returns the
// result, or what happened before that. Where functions of the program run, a goroutine of their own waits for them.
func (n *news) request(client context.Context, t *Tenure, ask func() (result event, report func())) event {
	if t.lease.client.CallsProgram() {
		n.aside(func(result *event) {
			var report func()
			if *result, report = ask(); report != nil {
				report()
			}
		})
		return n.next(client, t)
	}
	e, report := ask()
	if report == nil {
		return e
	}
	n.aside(func(result *event) {
		*result = e
		report()
	})
	return n.next(client, t)
}

// aside runs do in a goroutine, which then reports the result.
func (n *news) aside(do func(result *event)) {
	reported := make(chan event, 1)
	n.reported = reported
	go func() {
		result := event{kind: ended, err: errGoexit}
		defer func() { reported <- result }()
		do(&result)
	}()
}

// next waits until the goroutine has to look at the schedule, and returns what happened.
func (n *news) next(client context.Context, t *Tenure) event {
	for {
		select {
		case <-t.wake:
		case <-t.lost:
		case <-t.replaced:
		case <-client.Done():
		case e := <-n.reported:
			n.reported = nil
			return e
		case change, open := <-n.changes:
			switch {
			case !open:
				n.changes = nil
				t.unwatched(n.watching.Err())
			case !change.Exists || string(change.Value) != t.value:
				return event{kind: doubted}
			default:
				continue // its own renewal
			}
		}
		return event{}
	}
}

// close ends the watch, and waits for the functions of the program that are called.
func (n *news) close() {
	if n.watching != nil {
		n.watching.Close()
	}
	if n.reported != nil {
		<-n.reported
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
	t.mu.Lock()
	first := !t.looked
	t.looked = true
	t.mu.Unlock()
	if first {
		t.joinPulse() // before it reads its clock
	}
	began := time.Now() // as in step
	now := t.lease.options.Clock()
	t.mu.Lock()
	defer t.mu.Unlock()
	if !t.noteLocked(now, event{}) {
		t.sleepLocked(began, t.schedule.due(now)-now)
	}
}

// sleepLocked makes the next look come some time after began. The first one comes soon, and joins a pulse: a
// tenure that is released before has none to join.
func (t *Tenure) sleepLocked(began time.Time, pause time.Duration) {
	if !t.looked {
		pause = min(pause, t.lease.options.lookEvery())
	}
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
	t.closeWill()
	t.turn <- struct{}{}
	if t.timer != nil && t.timer.Stop() {
		t.looks.Done()
	}
	t.looks.Wait()
	t.leavePulse()
	t.reportEnded() // after that: a function of the program does not delay a Release
}

// confirm asks the store what the key holds: a notification that says that it is not this tenure's value may
// be late or forged. If there is no answer, the next renewal finds out.
func (t *Tenure) confirm(until time.Time) event {
	_ = t.ask(t.TokenContext(), t.lease.client, transport.Binding{Store: t.store, Connection: t.lost, Until: until})
	return event{kind: confirmed}
}

// renew makes one attempt to renew, and returns when the request left.
func (t *Tenure) renew(until time.Time) (sent time.Duration, err error) {
	binding, err := t.renewalBinding(until)
	sent = t.lease.options.Clock()
	if err == nil {
		_, err = t.lease.set(t.renewing, t.value, &binding, t.lease.options.probeHeld())
	}
	return sent, err
}

// renewalBinding returns what ties a renewal to the store, and bounds it.
func (t *Tenure) renewalBinding(until time.Time) (binding transport.Binding, err error) {
	binding, confirmed := t.confirmedBinding(t.lease.client)
	if !confirmed {
		bounded, cancel := context.WithDeadline(t.renewing, until)
		binding, err = t.Bind(bounded, t.lease.client)
		cancel()
	}
	binding.Until = until
	return binding, err
}

// renewed takes note of the result of a renewal. If functions of the program are to hear of it, it returns what
// calls them: the schedule has the result when that has returned.
func (t *Tenure) renewed(sent time.Duration, err error) (result event, report func()) {
	if !errors.Is(err, transport.ErrNotSent) {
		t.mu.Lock()
		t.sent = sent
		t.mu.Unlock()
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
