package activity

import (
	"cmp"
	"slices"
	"time"

	"github.com/tenurelock/tenure/hlc"
	"github.com/tenurelock/tenure/statestore"
)

const (
	// waitersOf bounds the waiting clients that the model remembers of one name, and namesOf the names
	// for which it remembers that one client waits.
	waitersOf, namesOf = 64, 64
	// waitersFor is how many waiting clients the model remembers in all, for each client that it may
	// remember.
	waitersFor = 4
	// attemptLasts and attemptTTLs: a client that does not watch a name counts as waiting until this
	// long, or this many lifetimes, after its last attempt.
	attemptLasts, attemptTTLs = time.Minute, 3
	// overdue is how long after its deadline a lease shows as free though its expiry was not reported:
	// the event may be lost.
	overdue = 10 * time.Second
)

// name is what the model knows about a key.
type name struct {
	key     string
	isLease bool   // false: only watched, so far
	number  uint64 // in the order in which names became known
	turn    int    // see Lease.Turn; of the latest State
	// user and creator are the user and the client that have the name in their share: its first holder, and
	// until there is one, the client that was the first to ask for it.
	user, creator string
	holderKnown   bool // that there was a holder that the model has seen

	held             bool
	holder, client   string // the client is empty if the model has not seen the holder
	value            string
	version          hlc.Timestamp // of the latest change
	token            hlc.Timestamp // of the acquisition; zero: not known
	bound            bool          // that was a bound request
	since            time.Time
	ttl              time.Duration
	renewals, missed uint64
	lastRenewal      time.Time
	rhythm           rhythm

	freeSince time.Time
	changes   uint64
	last      *Change          // the latest; nil: none
	entry     *member[*Change] // of the timeline, for the latest one

	waiters  []*waiter
	hidden   hidden    // of those that waiters has no room for, since the holder has the lease
	bidder   string    // the client of the fail-back request; empty: none
	bidUntil time.Time // when that expires
	rank     int       // of the bidder
}

// hidden is what the model knows about the clients that wait for a name and that it does not remember. Each
// part ends as the waiting of a client that is remembered does, or it would be an alarm that never ends.
type hidden struct {
	triedUntil time.Time // when the last attempt of one counts no longer
	watching   uint64    // the value of Model.hiddenSpan when one watched the name; 0: none did
	bids       bool      // the bidder is one
}

// waiter is a client that waits for a name.
type waiter struct {
	name        *member[*name]
	client      *member[*client]
	since       time.Time
	watching    bool
	attempts    uint64
	lastAttempt time.Time
	in          *member[*waiter] // of the waiters of all names
}

// note notes that a client tries to acquire the name, or that it watches it.
func (w *waiter) note(at time.Time, tries bool) {
	if !tries {
		w.watching = true
		return
	}
	w.attempts++
	w.lastAttempt = at
}

// onlyWatches reports whether a waiter has not asked for the lease.
func (w *waiter) onlyWatches() bool {
	return w.attempts == 0 && w.name.value.bidder != w.client.value.id
}

func (n *name) deadline() time.Time { return n.lastRenewal.Add(n.ttl) }

// holderName returns the name of the holder: its client id if the value has none.
func (n *name) holderName() string { return cmp.Or(n.holder, n.client) }

// continues reports whether a SET, which was applied, goes on with the time of the holder.
func (n *name) continues(e *Event) bool {
	switch {
	case !n.held || n.client == "" || n.holder != e.Holder || e.Created: // its expiry was not reported
		return false
	case e.Condition == statestore.Always:
		return n.client == e.Client
	}
	return e.Condition == statestore.IfMissingOrEqual && !e.Swap // it has the same value, so it may come from another client
}

// acquire begins the time of a holder.
func (n *name) acquire(e *Event, known bool) {
	n.held, n.isLease = true, true
	if !n.holderKnown {
		n.user, n.creator, n.holderKnown = e.User, e.Client, true
	}
	n.holder, n.client, n.value = e.Holder, e.Client, e.Value
	n.since, n.lastRenewal, n.ttl = e.At, e.At, e.Lifetime
	n.renewals, n.missed, n.rhythm = 0, 0, rhythm{}
	n.version, n.token = e.Version, hlc.Timestamp{}
	if known {
		n.token = e.Version
	}
	n.bound = e.Bound
}

// renew notes a renewal, and returns how many were missed before it.
func (n *name) renew(e *Event) (missed uint64) {
	if e.Lifetime != n.ttl {
		n.rhythm = rhythm{}
	}
	missed = n.rhythm.note(e.At.Sub(n.lastRenewal), e.Lifetime)
	n.missed += missed
	if e.Bound && !n.bound && n.renewals == 0 && !n.token.IsZero() {
		n.token, n.bound = e.Version, true // the tenure begins with this request
	} else {
		n.renewals++
	}
	n.lastRenewal, n.ttl, n.version = e.At, e.Lifetime, e.Version
	n.client, n.value = e.Client, e.Value
	return missed
}

// end ends the time of the holder, and returns what is known about that.
func (n *name) end(cause Cause, e *Event) *Change {
	ended := &Change{
		Name:       n.key,
		Cause:      cause,
		From:       n.holderName(),
		By:         e.Client,
		ByUser:     e.User,
		ByRemote:   e.Remote,
		Forced:     e.Forced,
		Ended:      e.At,
		HeldMillis: n.heldMillis(e.At),
	}
	n.held, n.freeSince, n.last = false, e.At, ended
	return ended
}

// heldMillis returns how long the holder has held the name; 0 if its begin is not known.
func (n *name) heldMillis(now time.Time) int64 {
	if n.token.IsZero() {
		return 0
	}
	return max(0, now.Sub(n.since).Milliseconds())
}

// causeOf returns why a DEL or VDEL, which was applied, has ended the lease.
func (n *name) causeOf(e *Event) Cause {
	own := n.client == e.Client
	if n.client == "" { // not known; a lease names its client by default
		own = e.Verb == statestore.VerbVDel && (e.Holder == n.holder && n.holder != "" || e.Holder == e.Client)
	}
	switch {
	case e.Will:
		return CauseWill
	case e.Forced != "" || !own:
		return CauseForced
	case e.Verb == statestore.VerbDel:
		return CauseDeleted
	}
	return CauseReleased
}

// attemptUntil returns until when a client that has tried to acquire the name counts as waiting.
func (n *name) attemptUntil(tried time.Time) time.Time {
	return tried.Add(max(attemptLasts, attemptTTLs*n.ttl))
}

// isWaiting reports whether a client still counts as waiting.
func (w *waiter) isWaiting(now time.Time) bool {
	n := w.name.value
	return w.watching || n.bidder == w.client.value.id && now.Before(n.bidUntil) ||
		w.attempts > 0 && !now.After(n.attemptUntil(w.lastAttempt))
}

// surplusWaiter returns the waiter that gives way to a new one of a user, when a name has too many; nil if
// the new one is the surplus. It is one of the user that has most: first the latest of those that only
// watch, and then the latest. One that only watches gives way to one that tries, of the same user too.
func (n *name) surplusWaiter(user string, tries bool) *waiter {
	counts := make(map[string]int)
	for _, w := range n.waiters {
		counts[w.client.value.user]++
	}
	most := user
	for other, count := range counts {
		if count > counts[most] || count == counts[most] && other < most && most != user {
			most = other
		}
	}
	var surplus *waiter
	for _, w := range n.waiters {
		switch {
		case w.client.value.user != most || most == user && !(tries && w.onlyWatches()):
		case surplus == nil || w.onlyWatches() || !surplus.onlyWatches():
			surplus = w
		}
	}
	return surplus
}

func remove(all []*waiter, w *waiter) []*waiter {
	if i := slices.Index(all, w); i >= 0 {
		all = slices.Delete(all, i, i+1)
	}
	if len(all) == 0 {
		return nil
	}
	return all
}
