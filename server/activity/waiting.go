package activity

import (
	"time"

	"github.com/tenurelock/tenure/statestore"
)

// attempted notes that a client has tried to acquire a name that another one holds.
func (m *Model) attempted(n *member[*name], by *member[*client], e *Event) {
	l := n.value
	if !l.isLease { // it has a holder that the model has not seen
		l.isLease, l.held, l.since, l.lastRenewal, l.version = true, true, e.At, e.At, e.Version
		m.file(n)
	}
	if w := m.waiterOf(n, by, e.At, true); w != nil {
		w.note(e.At, true)
	}
}

// watched notes a KEYNOTIFY.
func (m *Model) watched(by *member[*client], e *Event) {
	if e.Stop {
		m.unwatched(by, e)
		return
	}
	if e.Outcome != statestore.OK {
		return
	}
	if w := m.waiterOf(m.nameOf(e.Key, e, true), by, e.At, false); w != nil {
		w.note(e.At, false)
	}
}

// unwatched notes the end of a watch.
func (m *Model) unwatched(by *member[*client], e *Event) {
	n := m.names[e.Key]
	if n == nil || by == nil {
		return
	}
	if w := find(n.value, by); w != nil {
		w.watching = false
		if !w.isWaiting(e.At) {
			m.dropWaiter(w)
		}
	}
}

func find(l *name, by *member[*client]) *waiter {
	for _, w := range l.waiters {
		if w.client == by {
			return w
		}
	}
	return nil
}

// waiterOf returns a client as a waiter of a name; nil if there are too many. tries says that it asks for
// the lease, and does not only watch it.
func (m *Model) waiterOf(n *member[*name], by *member[*client], at time.Time, tries bool) *waiter {
	w := find(n.value, by)
	if w == nil {
		if !m.hasRoomFor(n, by, at, tries) {
			w = &waiter{name: n, client: by}
			w.note(at, tries)
			m.hide(w)
			return nil
		}
		w = &waiter{name: n, client: by, since: at}
		w.in = newMember(w)
		n.value.waiters = append(n.value.waiters, w)
		by.value.waits = append(by.value.waits, w)
	}
	m.waits.use(w.in, by.value.user, by.value.id, 0)
	for m.waits.count > waitersFor*m.options.Clients {
		surplus := m.waits.surplus(w.in).value
		if surplus == w {
			w.note(at, tries) // the caller cannot
		}
		m.hideWaiter(surplus)
		if surplus == w {
			return nil
		}
	}
	return w
}

// hasRoomFor makes room for one more waiter of a name, and reports whether it could.
func (m *Model) hasRoomFor(n *member[*name], by *member[*client], at time.Time, tries bool) bool {
	if len(by.value.waits) >= namesOf {
		m.dropStale(&by.value.waits, at)
	}
	if len(n.value.waiters) >= waitersOf {
		m.dropStale(&n.value.waiters, at)
	}
	if len(by.value.waits) >= namesOf {
		return false
	}
	if len(n.value.waiters) < waitersOf {
		return true
	}
	surplus := n.value.surplusWaiter(by.value.user, tries)
	if surplus != nil {
		m.hideWaiter(surplus)
	}
	return surplus != nil
}

// hideWaiter forgets that a client waits for a name, though it still does.
func (m *Model) hideWaiter(w *waiter) {
	m.dropWaiter(w)
	m.hide(w)
}

// hide notes that a client waits for a name and is not remembered.
func (m *Model) hide(w *waiter) {
	n, c := w.name.value, w.client.value
	if w.watching {
		if !c.watchesHidden {
			c.watchesHidden = true
			m.hiddenWatches++
		}
		n.hidden.watching = m.hiddenSpan
	}
	if until := n.attemptUntil(w.lastAttempt); w.attempts > 0 && until.After(n.hidden.triedUntil) {
		n.hidden.triedUntil = until
	}
	if n.bidder == c.id {
		n.hidden.bids = true
	}
}

// endHiddenWatches notes that the watches of a client have ended. With the last such client, no name has a
// hidden watch any more. The model does not know which names one client watches, so until then they count.
func (m *Model) endHiddenWatches(c *client) {
	if !c.watchesHidden {
		return
	}
	c.watchesHidden = false
	if m.hiddenWatches--; m.hiddenWatches == 0 {
		m.hiddenSpan++
	}
}

// hides reports whether a client that is not remembered still counts as waiting for a name.
func (m *Model) hides(n *name, now time.Time) bool {
	h := n.hidden
	return h.watching == m.hiddenSpan || now.Before(h.triedUntil) || h.bids && now.Before(n.bidUntil)
}

// dropWaiter forgets that a client waits for a name.
func (m *Model) dropWaiter(w *waiter) {
	m.waits.leave(w.in)
	n, c := w.name.value, w.client.value
	n.waiters, c.waits = remove(n.waiters, w), remove(c.waits, w)
}

// dropStale removes those that no longer wait.
func (m *Model) dropStale(waiters *[]*waiter, now time.Time) {
	for i := len(*waiters) - 1; i >= 0; i-- {
		if w := (*waiters)[i]; !w.isWaiting(now) {
			m.dropWaiter(w)
		}
	}
}

// leaveWaiting notes that a client has what it waited for. It may go on to watch it.
func (m *Model) leaveWaiting(n *member[*name], by *member[*client]) {
	if w := find(n.value, by); w != nil {
		if w.attempts = 0; !w.watching {
			m.dropWaiter(w)
		}
	}
}

// isBid reports whether a request that names no rank ends a bid.
func (m *Model) isBid(base string, e *Event) bool {
	n := m.names[base]
	return n != nil && n.value.bidder != "" && (e.Verb == statestore.VerbDel || e.Verb == statestore.VerbVDel)
}

// bid notes a request about the key of a fail-back request: the client asks for the lease of a name.
func (m *Model) bid(base string, by *member[*client], e *Event) {
	switch {
	case e.Verb == statestore.VerbSet && e.Outcome == statestore.OK && e.Lifetime > 0:
		n := m.nameOf(base, e, true)
		l := n.value
		if l.bidder != by.value.id || l.rank != e.Rank {
			m.endBid(n, e.At)
		}
		l.bidder, l.rank, l.bidUntil = by.value.id, e.Rank, e.At.Add(e.Lifetime)
		m.waiterOf(n, by, e.At, true)
	case e.Outcome == statestore.Deleted:
		m.endBid(m.names[base], e.At)
	}
}

// endBid notes that the fail-back request for a name is gone.
func (m *Model) endBid(n *member[*name], at time.Time) {
	if n == nil || n.value.bidder == "" {
		return
	}
	l := n.value
	bidder := l.bidder
	l.bidder, l.rank, l.hidden.bids = "", -1, false
	if c := m.clients[bidder]; c != nil {
		if w := find(l, c); w != nil && !w.isWaiting(at) {
			m.dropWaiter(w)
		}
	}
}
