package lease

import (
	"time"

	"github.com/tenurelock/tenure/hlc"
)

// waiting decides when one Acquire tries again. Like a schedule it is a value without clock,
// goroutine, channel or lock.
//
// Notifications only wake it: a deletion means "try now", a renewal "not before another TTL". After
// a deletion every waiter tries at once: with two candidates any delay would only be time without a
// holder, and with a thousand each of the refused ones costs the store microseconds. A waiter that
// tried at once less than Jitter ago spreads: where releases or forged deletions follow each other
// closely, most waiters then hear of the next holder before they try.
//
// Beside them it is due at the latest time at which the lease can expire if its holder has
// died. When a try that was due shows a renewal that no notification reported, the
// waiter polls: it tries every Jitter, until a notification comes again. So a loss of all
// notifications costs at most Jitter, and no request is spent on polling while they arrive.
//
// With AcquireDelay, "try" becomes: look with a GET, and if the lease is free, wait that
// long for another waiter to take it, then try. The look comes when a try would have come,
// so AcquireDelay is added to every delay once, never more.
type waiting struct {
	options *Options
	delay   time.Duration // AcquireDelay, as it is now
	backoff retryBackoff  // after refusals

	dueAt      time.Duration // when to try, or to look, if nothing comes before
	delaying   bool          // the lease was free when looked at, and dueAt is the end of AcquireDelay
	watches    bool          // the key is watched, or is to be
	seen       hlc.Timestamp // the holder's latest version known
	hinted     bool          // a notification said that the lease is free
	polling    bool          // notifications are not to be relied on
	backingOff bool          // no notification may hasten what is due
	hurryAt    time.Duration // from then on a deletion may make it try at once
}

// waitEvent is what an Acquire heard. The zero waitEvent is the passing of time.
type waitEvent struct {
	kind    waitEventKind
	exists  bool          // changed, looked: the lease has a holder
	version hlc.Timestamp // of the holder's value; zero: the store does not know it
	missed  bool          // changed: the watch has read the key, and no notification came
	// random returns numbers of at least 0 and less than 1. It is called only where one is needed: the draws of
	// a simulation come from one source, and a needless one would change the course of others.
	random func() float64
}

type waitEventKind int

const (
	passed    waitEventKind = iota // time passed
	refused                        // a try was refused: another holder has the lease, or the store is in its hold-off
	delayed                        // something that may pass keeps the waiter from a try or from its success
	changed                        // the watch offers a state of the key
	unwatched                      // the watch has ended
	looked                         // the store was asked whether the lease is free
)

// waitDo is what an Acquire has to do next.
type waitDo int

const (
	goOn    waitDo = iota // wait for an event until waiting.dueAt
	tryNow                // try to acquire, and report refused or delayed
	lookNow               // ask the store whether the lease is free, and report looked or delayed
)

// next returns the waiting after e, and what to do then.
func (w waiting) next(now time.Duration, e waitEvent) (waiting, waitDo) {
	switch e.kind {
	case refused:
		if e.version.IsZero() { // the store is in its hold-off
			w.polling = true // it does not notify when that ends
		} else {
			w.backoff.reset()
		}
		w.held(now, e)
	case delayed: // no notification says when that is over
		w.begin(e)
		w.delaying, w.backingOff, w.dueAt = false, true, now+w.backoff.next(e.random())
	case looked:
		switch {
		case e.exists:
			w.held(now, e)
		case !w.delaying:
			w.delaying, w.dueAt = true, now+w.delay
		}
	case changed, unwatched:
		if w.heard(now, e) {
			return w, lookNow
		}
	}
	switch {
	case now < w.dueAt:
		return w, goOn
	case w.delaying:
		w.delaying = false
		return w, tryNow
	}
	w.backingOff = false
	if w.delay > 0 {
		return w, lookNow
	}
	return w, tryNow
}

// begin notes the first event that shows that the waiter has to wait.
func (w *waiting) begin(e waitEvent) {
	if !w.watches { // a lease that is free costs no watch
		w.watches, w.seen = true, e.version
	}
}

// held takes note that another holder has the lease.
func (w *waiting) held(now time.Duration, e waitEvent) {
	w.begin(e)
	if !w.hinted && e.version != w.seen {
		w.polling = true
	}
	w.seen, w.hinted, w.delaying = e.version, false, false
	if w.polling {
		half := w.options.Jitter / 2
		w.dueAt = now + half + share(half, e.random())
	} else {
		w.dueAt = now + w.expiry(e)
	}
}

// expiry is the time to wait for a holder that may have renewed just now.
func (w *waiting) expiry(e waitEvent) time.Duration {
	return w.options.TTL + share(w.options.Jitter, e.random())
}

// heard takes note of what the watch says. It reports whether to look again, during AcquireDelay.
func (w *waiting) heard(now time.Duration, e waitEvent) (look bool) {
	in := time.Duration(0)
	switch {
	case e.kind == unwatched:
		w.polling = true
		in = share(w.options.Jitter, e.random())
	case w.delaying && e.exists:
		// Another waiter took it; or the notification is old or forged, and then the
		// delay goes on where it was.
		w.hinted, w.polling = true, false
		return true
	case w.delaying:
	case e.exists && e.missed && w.polling:
		// It was read, so it does not show that notifications arrive, and the renewal
		// that it shows may be old: the next try is not put off.
		w.seen = e.version
		return false
	case e.exists:
		w.seen, w.hinted, w.polling = e.version, false, false
		in = w.expiry(e)
	default:
		w.hinted, w.polling = true, false
		if now < w.hurryAt || w.backingOff {
			in = share(min(w.options.Jitter, releaseJitter), e.random())
			break
		}
		w.hurryAt = now + w.options.Jitter
	}
	if !w.backingOff && !w.delaying {
		w.dueAt = now + in
	}
	return false
}
