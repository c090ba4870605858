package lease

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/tenurelock/tenure/transport"
)

// schedule decides what a tenure does, and when it is over. It is a value without clock,
// goroutine, channel or lock: next is a pure function of the time, the schedule and an event.
// All times are by the lease's clock.
type schedule struct {
	options *Options

	deadline time.Duration // the tenure is over from then on
	renewAt  time.Duration // when the next renewal is due
	watchAt  time.Duration // when to begin to watch the key
	askAfter time.Duration // the store is not asked before then what the key holds
	doubted  bool          // a notification says that the key does not hold this tenure's value
	pending  bool          // a renewal or a question is under way
	stopped  bool          // no further renewal is to be sent
	backoff  retryBackoff  // between renewals that fail
	failure  error         // of the latest renewal; nil if it succeeded
	warned   error         // why the owner's context ended ahead of the deadline; nil before
	cause    error         // why the tenure is over; nil before
}

// never is later than any time on a lease's clock.
const never = time.Duration(math.MaxInt64)

// event is what happened to a tenure. The zero event is the passing of time.
type event struct {
	kind   eventKind
	sent   time.Duration // renewed: when the request left
	err    error         // failed: why; ended: the cause
	random float64       // renewed, failed: at least 0 and less than 1
}

type eventKind int

const (
	elapsed   eventKind = iota // time passed
	renewed                    // the store accepted a renewal
	failed                     // a renewal has no effect or an unknown outcome, and may be repeated
	doubted                    // a notification says that the key does not hold this tenure's value
	confirmed                  // the store was asked what the key holds, and nothing ended
	stopped                    // renewals are to stop
	ended                      // the tenure is over
)

// action is what a tenure has to do next.
type action struct {
	do    actionKind
	until time.Duration // renew, confirm: when to give up the request
}

type actionKind int

const (
	wait    actionKind = iota // wait for an event, or until something is due
	watch                     // watch the key
	confirm                   // ask the store what the key holds, which may end the tenure, and report confirmed
	renew                     // send a renewal, and report renewed, failed or ended
	finish                    // nothing: the tenure is over
)

// newSchedule returns the schedule of a tenure that was acquired by a request which left at
// sent. random, from 0 to below 1, spreads the first renewals of leases acquired together.
func newSchedule(options *Options, sent time.Duration, random float64) schedule {
	return schedule{
		options:  options,
		deadline: options.deadline(sent),
		renewAt:  options.together(sent + options.RenewEvery/2 + share(options.RenewEvery/2, random)),
		// A tenure that is released soon costs no watch. A watch that begins late still
		// finds a deletion before it, because the first renewal comes later.
		watchAt:  sent + min(options.GracePeriod/2, options.RenewEvery/4),
		askAfter: sent,
		backoff:  options.retryBackoff(0),
	}
}

// next returns the schedule after e, and what to do then. Once an action other than wait
// was returned, it is not returned again before its result is reported.
func (s schedule) next(now time.Duration, e event) (schedule, action) {
	s = s.after(now, e)
	if s.cause != nil {
		return s, action{do: finish}
	}
	until := s.until(now)
	switch {
	case now >= s.watchAt:
		s.watchAt = never
		return s, action{do: watch}
	case s.pending:
	case s.doubted && now >= s.askAfter:
		s.doubted, s.pending = false, true
		return s, action{confirm, until}
	case !s.stopped && now >= s.renewAt:
		s.pending = true
		return s, action{renew, until}
	}
	return s, action{do: wait}
}

// until is when a request that leaves now is given up: when the owner's context ends, or else when
// the tenure is over.
func (s *schedule) until(now time.Duration) time.Duration {
	if at := s.graceAt(); now < at {
		return at
	}
	return s.deadline
}

// due is when there is something to do next, after an action wait.
func (s *schedule) due(now time.Duration) time.Duration {
	at := min(s.until(now), s.watchAt)
	if s.doubted && !s.pending {
		at = min(at, s.askAfter)
	}
	if !s.stopped && !s.pending {
		at = min(at, s.renewAt)
	}
	return at
}

// lookAt returns when the clock has to be looked at, if nothing is due before. Go's timers stand still while the
// machine is suspended, and the lease's clock does not. So the clock is looked at twice in a grace period: after
// a suspend, the context ends within half a grace period of running time. (Token and Remaining
// notice at once.) The tenures of a process look at the same moments: to wake it costs more than a look.
func (o *Options) lookAt(now time.Duration) time.Duration {
	every := max(o.GracePeriod/2, time.Millisecond)
	return (now + every).Truncate(every / 16)
}

// after returns the schedule after e, without deciding what to do then.
func (s schedule) after(now time.Duration, e event) schedule {
	if s.cause != nil {
		return s
	}
	if e.kind == ended {
		s.cause = e.err
		return s
	}
	if now >= s.deadline { // a reply that comes past it extends nothing: another may have held the lease
		s.cause = s.late()
		return s
	}
	switch e.kind {
	case renewed:
		s.pending, s.failure = false, nil
		s.renewAt = s.options.together(e.sent + s.options.RenewEvery - share(s.options.RenewEvery/10, e.random))
		if !s.stopped {
			s.deadline = max(s.deadline, s.options.deadline(e.sent))
			s.backoff.reset()
		}
	case failed:
		s.pending = false
		if !s.stopped {
			s.failure = e.err
		}
		s.renewAt = s.options.retryAt(now, s.graceAt(), &s.backoff, e.random)
	case doubted:
		s.doubted = true
	case confirmed:
		s.pending = false
		s.askAfter = now + s.options.retryAfter // a flood of hints does not become a flood of requests
	case stopped:
		s.stopped = true
	}
	// Too late for a renewal: the rest of the time is for the owner to stop its work.
	if now >= s.graceAt() && s.warned == nil {
		s.warned, s.stopped = s.late(), true
	}
	return s
}

// graceAt is when the owner's context ends if no renewal succeeds.
func (s *schedule) graceAt() time.Duration { return s.deadline - s.options.GracePeriod }

// late is the cause of a tenure that was not renewed in time. Its text has the error of the
// latest renewal, but it does not match that error: it becomes part of the errors of writes
// that were not sent, and their outcome is known.
func (s *schedule) late() error {
	if s.failure == nil {
		return ErrDeadlinePassed
	}
	return fmt.Errorf("%w; the latest renewal: %v", ErrDeadlinePassed, s.failure)
}

// unless returns e, or what ends the tenure before it: a lost connection that it ends with, or another store.
func (e event) unless(lost, replaced bool) event {
	switch {
	case e.kind == ended:
	case lost: // first: the next connection may be the one to another store
		return event{kind: ended, err: ErrConnectionLost}
	case replaced:
		return event{kind: ended, err: ErrStoreReplaced}
	}
	return e
}

// renewal returns the event of a renewal that left at sent and ended with err.
func renewal(sent time.Duration, err error, random float64) event {
	switch {
	case err == nil:
		return event{kind: renewed, sent: sent, random: random}
	case errors.Is(err, transport.ErrConditionFailed):
		return event{kind: ended, err: ErrLost}
	case errors.Is(err, transport.ErrOtherStore):
		return event{kind: ended, err: refusedBy(err)}
	case isTerminal(err):
		return event{kind: ended, err: err}
	}
	return event{kind: failed, err: err, random: random}
}

// answered returns the event of an answer to the question what the key of a tenure with this value holds.
func answered(value string, entry transport.Entry, err error) event {
	switch {
	case errors.Is(err, transport.ErrOtherStore):
		return event{kind: ended, err: refusedBy(err)}
	case err != nil: // the next renewal finds out
	case !entry.Exists:
		return event{kind: ended, err: ErrDeleted}
	case string(entry.Value) != value:
		return event{kind: ended, err: ErrLost}
	}
	return event{kind: confirmed}
}

// share returns a duration below d.
func share(d time.Duration, random float64) time.Duration {
	return time.Duration(random * float64(d))
}

// together returns the time of a renewal, somewhat earlier: at one of about 130 moments in a RenewEvery.
// Renewals that leave at the same moment share system calls at both ends, which cost more than
// the renewals do. With fewer than a few hundred leases it changes nothing.
func (o *Options) together(at time.Duration) time.Duration {
	const moments = 128
	return at.Truncate((o.RenewEvery / moments).Truncate(time.Millisecond))
}

// deadline is when a tenure is over whose last accepted request left at sent.
func (o *Options) deadline(sent time.Duration) time.Duration { return sent + o.TTL - o.Margin }

// retryAt returns when a renewal that failed is repeated. The owner's context ends at end.
func (o *Options) retryAt(now, end time.Duration, backoff *retryBackoff, random float64) time.Duration {
	pause, last := backoff.next(random), end-o.RequestTimeout
	if now < end { // a store that is back before the end finds an attempt, however often the pause grew
		pause = min(pause, max((end-now)/2, o.retryAfter/8, time.Millisecond))
	}
	if now < last {
		pause = min(pause, last-now) // one whole attempt is left
	}
	return now + pause
}

// retryBackoff has the delays between the attempts of one loop. They grow from first to
// longest, by half each time, and each is spread by half.
type retryBackoff struct {
	first, longest, interval time.Duration
}

// retryBackoff returns a backoff that grows to RenewEvery, or to longest if that is more.
func (o *Options) retryBackoff(longest time.Duration) retryBackoff {
	return retryBackoff{first: max(o.retryAfter, time.Millisecond), longest: max(o.RenewEvery, longest, time.Millisecond)}
}

// next returns the delay before the next attempt. random is at least 0 and less than 1.
func (b *retryBackoff) next(random float64) time.Duration {
	interval := cmp.Or(b.interval, b.first)
	b.interval = min(interval*3/2, b.longest)
	return interval/2 + share(interval, random)
}

func (b *retryBackoff) reset() { b.interval = 0 }
