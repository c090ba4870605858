package lease

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/tenurelock/tenure/hlc"
	"github.com/tenurelock/tenure/transport"
)

// phase is what a holder is about to do, or waits for.
type phase uint8

const (
	asking   phase = iota // for the answer to its request
	pausing               // until it claims again
	waits                 // for another holder
	holds                 // a tenure goes on
	clearing              // for the answer to a deletion of its value
	resting               // until it deletes its value again
)

var phaseNames = [...]string{"asks", "pauses", "waits", "holds", "frees", "pauses before it frees again"}

// holder is one process that acquires the lease, writes under it, and acquires it again when it is over.
// Everything that it decides, the values of this package decide: acquisition, waiting, schedule and freeing. What is
// here only carries that out, as attempt, waiter and Tenure do.
type holder struct {
	id     uint8
	clock  int // in ticks
	frozen bool

	phase    phase
	asked    int // the clock when a tenure asked what the store has
	attempt  uint8
	knows    uint8 // the store that answered last; 0: none yet
	bound    uint8 // the store that the attempt or the tenure is bound to; 0: none
	replaced bool  // another store has answered since
	willed   bool  // the connection has the Will of the present attempt
	lost     bool  // the connection of the present attempt has ended

	underWay  bool // a request, of the lease
	gone      bool // it went with its connection
	renewing  bool // it is a renewal
	call      uint8
	sent      int
	timeoutAt time.Duration
	until     time.Duration // the end of a pause

	acquisition acquisition
	waiting     waiting
	schedule    schedule
	freeing     freeing
	goesOn      bool // after freeing with the same acquisition
	releases    bool // a tenure frees: its requests are tied to its connection

	token    hlc.Token
	silenced bool // the tenure did not say "held" any more at some moment
	strayed  bool // a request of this attempt left the order of its connection
	watching bool
	hint     hint
	writing  bool
	write    uint8 // the latest
}

func (h *holder) now() time.Duration { return time.Duration(h.clock) * tick }

func (h *holder) value() value { return value{h.id, h.attempt} }

var errTimeout = fmt.Errorf("%w: %w", transport.ErrOutcomeUnknown, context.DeadlineExceeded)

// zero is the random part of all delays.
func zero() float64 { return 0 }

// acquire begins a new acquisition.
func (w *world) acquire(h *holder) {
	h.waiting = waiting{options: &explored, backoff: explored.retryBackoff(explored.Jitter)}
	h.watching, h.hint = false, hint{}
	w.newAttempt(h)
}

func (w *world) newAttempt(h *holder) {
	h.attempt++
	h.strayed, h.writing = false, false
	h.willed, h.lost = w.willed, false // SetWill replaces the connection
	h.acquisition = explored.newAcquisition(w.willed, false)
	h.waiting.dueAt = 0
	w.await(h, waitEvent{})
	if w.willed && h.watching {
		w.watch(h)
	}
}

// await does what waiter.untilTry does.
func (w *world) await(h *holder, e waitEvent) {
	h.phase = waits
	watched := h.waiting.watches
	var do waitDo
	e.random = zero
	if h.waiting, do = h.waiting.next(h.now(), e); do == tryNow {
		h.acquisition = explored.newAcquisition(w.willed, h.acquisition.mayHold)
		w.ask(h)
	}
	if h.waiting.watches && !watched {
		w.watch(h)
	}
}

// watch makes the key watched: what it holds is offered first.
func (w *world) watch(h *holder) {
	h.watching = true
	if w.deaf {
		return
	}
	h.hint = hint{pending: true, missed: true, value: w.store.holder(), version: w.store.lease.Version}
}

// ask sends a request of attempt.try.
func (w *world) ask(h *holder) {
	h.phase, h.bound, h.replaced = asking, h.knows, false
	w.send(h, claims, h.now()+explored.RequestTimeout)
}

func (w *world) send(h *holder, k kind, timeoutAt time.Duration) {
	h.underWay, h.gone, h.sent, h.timeoutAt = true, false, h.clock, timeoutAt
	h.call++
	w.requests = append(w.requests, request{kind: k, value: h.value(), store: h.bound, call: h.call})
}

// answered is the result of the request of the lease that was under way.
func (w *world) answered(h *holder, err error, version hlc.Timestamp, held value) error {
	h.underWay = false
	switch h.phase {
	case asking:
		var next requestAction
		h.acquisition, next = h.acquisition.next(h.now(), answer{
			err: err, sent: time.Duration(h.sent) * tick, known: h.bound != 0, other: h.knows != h.bound, replaced: h.bound != 0 && h.replaced, lost: h.lost, random: zero,
		})
		switch next.do {
		case begin:
			return w.begin(h, version)
		case ask:
			w.ask(h)
		case pause:
			h.phase, h.until = pausing, h.now()+next.pause
		case stop:
			w.tried(h, next.err, version)
		}
	case holds:
		if h.renewing {
			return w.drive(h, renewal(time.Duration(h.sent)*tick, err, 0))
		}
		entry := transport.Entry{Exists: held != (value{}), Value: []byte(held.text())}
		return w.drive(h, answered(h.value().text(), entry, err))
	case clearing:
		var next requestAction
		h.freeing, next = h.freeing.next(h.now(), err, h.releases && h.lost, zero)
		if next.do == pause {
			if h.releases && h.lost {
				return fmt.Errorf("invariant 18: the release of h%d goes on after its connection has ended", h.id)
			}
			h.phase, h.until = resting, h.now()+next.pause
			return nil
		}
		return w.freed(h, next.err)
	}
	return nil
}

// tried does what waiter.acquire does after a try, and Lease.acquire after an attempt.
func (w *world) tried(h *holder, err error, version hlc.Timestamp) {
	switch {
	case errors.Is(err, transport.ErrConditionFailed):
		w.await(h, waitEvent{kind: refused, version: version})
	case !again(err):
		w.await(h, waitEvent{kind: delayed})
	case h.acquisition.mayHold:
		h.goesOn = true
		w.free(h, explored.TTL)
	default:
		w.newAttempt(h)
	}
}

func (w *world) begin(h *holder, version hlc.Timestamp) error {
	h.phase, h.token, h.silenced, h.asked = holds, hlc.Token(version), false, -1
	h.schedule = newSchedule(&explored, time.Duration(h.sent)*tick, 0)
	h.watching, h.hint = false, hint{}
	if err := w.tenureBegins(h); err != nil {
		return err
	}
	return w.drive(h, event{})
}

// withSignals does what Tenure.withSignals does.
func (h *holder) withSignals(e event) event {
	return e.unless(h.lost, h.replaced)
}

// drive does what Tenure.drive does.
func (w *world) drive(h *holder, e event) error {
	for {
		s, next := h.schedule.next(h.now(), h.withSignals(e))
		h.schedule = s
		switch next.do {
		case finish:
			if s, next = s.next(h.now(), event{kind: ended, err: errTimeout}); s.cause != h.schedule.cause || next.do != finish {
				return errors.New("invariant 9: a tenure ends twice")
			}
			if !w.justifies(h) {
				return fmt.Errorf("invariant 6: the tenure of h%d ends with %v, and the store has %v", h.id, s.cause, w.store.holder())
			}
			w.over(h)
			return nil
		case wait:
			return nil
		case watch:
			w.watch(h)
		case confirm, renew:
			if next.until > h.schedule.deadline {
				return fmt.Errorf("invariant 7: h%d would wait for an answer beyond its deadline", h.id)
			}
			k := claims
			if h.renewing = next.do == renew; !h.renewing {
				if k = asks; h.asked == h.clock {
					return fmt.Errorf("invariant 26: h%d asks twice in a tick what the store has", h.id)
				}
				h.asked = h.clock
			}
			w.send(h, k, min(h.now()+explored.RequestTimeout, next.until))
		}
		e = event{}
	}
}

// justifies reports whether a tenure may be over for its cause. (What strayed may set the key after the store said that it is lost.)
func (w *world) justifies(h *holder) bool {
	switch cause := h.schedule.cause; {
	case errors.Is(cause, ErrDeadlinePassed):
		return h.now() >= h.schedule.deadline
	case errors.Is(cause, ErrReleased):
		return true
	case errors.Is(cause, ErrConnectionLost):
		return h.lost
	case errors.Is(cause, ErrStoreReplaced):
		return h.replaced
	case errors.Is(cause, ErrFencedOut):
		return w.written.Compare(h.token) > 0
	default:
		return (errors.Is(cause, ErrLost) || errors.Is(cause, ErrDeleted)) && (w.store.holder() != h.value() || h.strayed)
	}
}

// over does what Tenure.Release does: it follows the end of each tenure.
func (w *world) over(h *holder) {
	h.underWay, h.watching, h.hint = false, false, hint{}
	if cause := h.schedule.cause; h.lost || errors.Is(cause, ErrLost) || errors.Is(cause, ErrStoreReplaced) && h.replaced {
		w.acquire(h)
		return
	}
	h.goesOn = false
	w.free(h, h.schedule.deadline+2*explored.Margin+explored.RequestTimeout-h.now())
	h.releases = true
}

func (w *world) free(h *holder, within time.Duration) {
	h.freeing, h.releases = explored.newFreeing(h.now(), within), false
	w.sendFree(h)
}

func (w *world) sendFree(h *holder) {
	h.phase = clearing
	w.send(h, frees, max(min(h.now()+explored.RequestTimeout, h.freeing.end), h.now()))
}

// freed is the end of Lease.free.
func (w *world) freed(h *holder, err error) error {
	h.releases = false
	if held := w.store.holder(); err == nil && !h.strayed && held == h.value() {
		return errors.New("invariant 18: the lease was freed, and the store still has it")
	}
	if h.goesOn {
		w.newAttempt(h)
	} else {
		w.acquire(h)
	}
	return nil
}

// quit does what Lease.acquire does when its context ends. Without an error that says that the outcome is
// unknown, the store must not have the lease, and must not get it.
func (w *world) quit(h *holder) error {
	if h.phase == holds {
		return w.drive(h, event{kind: ended, err: ErrReleased})
	}
	if h.phase == asking { // the request is given up
		h.underWay = false
		h.acquisition, _ = h.acquisition.next(h.now(), answer{err: transport.ErrOutcomeUnknown, random: zero})
	}
	if h.acquisition.mayHold {
		h.goesOn = false
		w.free(h, explored.TTL)
		return nil
	}
	coming := func(r request) bool { return r.kind == claims && r.value == h.value() }
	if w.store.holder() == h.value() || slices.ContainsFunc(w.requests, coming) {
		return errors.New("invariant 19: an acquisition failed with a known outcome, and the store has the lease or may get it")
	}
	w.acquire(h)
	return nil
}

// due reports whether the time has come for something.
func (h *holder) due() bool {
	switch now := h.now(); {
	case h.frozen:
		return false
	case h.ends():
		return true
	case h.underWay && now >= h.timeoutAt:
		return true
	case h.phase == waits:
		return now >= h.waiting.dueAt
	case h.phase == pausing, h.phase == resting:
		return now >= h.until
	case h.phase == holds:
		return now >= h.schedule.due(now)
	}
	return false
}

// checkTenure checks a tenure for which nothing is due.
func (h *holder) checkTenure() error {
	if h.schedule.warned == nil && h.now() >= h.schedule.deadline-explored.GracePeriod {
		return fmt.Errorf("invariant 8: the context of h%d goes on in its grace period", h.id)
	}
	if _, next := h.schedule.next(h.now(), event{}); next.do != wait {
		return fmt.Errorf("invariant 26: h%d has to do something, and nothing is due", h.id)
	}
	return nil
}

// act does what is due.
func (w *world) act(h *holder) error {
	switch {
	case h.ends() && h.phase == holds:
		return w.drive(h, event{})
	case h.ends() && h.phase == waits:
		w.tried(h, errReconnected, hlc.Timestamp{})
	case h.ends():
		return w.answered(h, transport.ErrOutcomeUnknown, hlc.Timestamp{}, value{})
	case h.phase == pausing && h.lost: // the binding keeps the request from the next connection
		h.phase = asking
		return w.answered(h, transport.ErrNotSent, hlc.Timestamp{}, value{})
	case h.phase == resting && h.releases && h.lost && h.now() < h.freeing.end:
		h.phase = clearing
		return w.answered(h, transport.ErrNotSent, hlc.Timestamp{}, value{})
	case h.underWay && h.now() >= h.timeoutAt:
		return w.answered(h, errTimeout, hlc.Timestamp{}, value{})
	case h.phase == waits:
		w.await(h, waitEvent{})
	case h.phase == pausing:
		w.ask(h)
	case h.phase == resting && h.now() >= h.freeing.end:
		return w.freed(h, errTimeout)
	case h.phase == resting:
		w.sendFree(h)
	case h.phase == holds:
		return w.drive(h, event{})
	}
	return nil
}

// heard is the delivery of the hint.
func (w *world) heard(h *holder) error {
	heard := h.hint
	h.hint = hint{}
	exists := heard.value != (value{})
	switch {
	case h.phase == waits:
		w.await(h, waitEvent{kind: changed, exists: exists, version: heard.version, missed: heard.missed})
	case h.phase == holds && heard.value != h.value():
		return w.drive(h, event{kind: doubted})
	}
	return nil
}

// listens reports whether the hint would reach the holder now.
func (h *holder) listens() bool {
	return h.hint.pending && !h.frozen && (h.phase == waits && !h.lost || h.phase == holds)
}

// ends reports whether the holder has to hear that its connection has ended.
func (h *holder) ends() bool {
	return h.lost && (h.phase == waits || h.phase == holds) || h.underWay && h.gone
}

// believes reports whether the holder may say that it has the lease: what Token looks at.
func (h *holder) believes() bool {
	return h.phase == holds && h.schedule.after(h.now(), h.withSignals(event{})).cause == nil
}
