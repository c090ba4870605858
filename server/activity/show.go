package activity

import (
	"cmp"
	"maps"
	"slices"
	"time"

	"github.com/tenurelock/tenure/statestore"
)

// shownWaiters bounds the waiters that a State has of one lease.
const shownWaiters = 16

// steadyPart is which part of the leases that a State has are those with the lowest turns, whatever happens
// to them.
const steadyPart = 10

// State returns what the model knows at a time, which should not be before its last event. It takes
// milliseconds for ten thousand names, and events wait for most of that.
func (m *Model) State(now time.Time) State {
	state := m.copy(now)
	state.finish()
	return state
}

// copy returns a state with all rows that may be shown, and texts as clients chose them.
func (m *Model) copy(now time.Time) State {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.forgetOld(now)
	state := State{
		At:                now,
		LeasesForgotten:   m.forgotten,
		ClientsForgotten:  m.forgotClients,
		TimelineForgotten: m.timeline.lost,
		Leases:            []Lease{},
		Clients:           []Client{},
		Timeline:          []Change{},
		StaleWrites:       []StaleWrite{},
		Totals:            m.totals,
	}
	m.showLeases(&state, now)
	m.showClients(&state, now)
	for _, h := range m.timeline.shares.inTurn(func(a, b *Change) int { return cmp.Compare(b.number, a.number) }) {
		state.Timeline = append(state.Timeline, h.show(now))
	}
	for _, w := range m.stale.shares.inTurn(func(a, b *StaleWrite) int { return cmp.Compare(b.number, a.number) }) {
		state.StaleWrites = append(state.StaleWrites, *w)
	}
	state.Totals.Flapping = m.takeOvers.flapping(now)
	state.Totals.EndsBy = maps.Clone(m.ends)
	state.Totals.RequestsBy = []RequestCount{}
	for verb := range m.requests {
		for outcome, count := range m.requests[verb] {
			if count > 0 {
				state.Totals.RequestsBy = append(state.Totals.RequestsBy, RequestCount{statestore.Verb(verb).String(), statestore.Outcome(outcome).String(), count})
			}
		}
	}
	return state
}

// forgetOld forgets names that have been free for long and for which no client waits, and held ones if the
// expiry should have been reported long ago.
func (m *Model) forgetOld(now time.Time) {
	for _, n := range m.names {
		switch l := n.value; {
		case l.held:
			if now.Sub(l.deadline()) > overdue+m.options.FreeFor {
				m.forgetName(n)
			}
		case l.isLease && now.Sub(l.freeSince) > m.options.FreeFor:
			if m.dropStale(&l.waiters, now); len(l.waiters) == 0 {
				m.dropName(n)
			}
		}
	}
}

// isHeld reports whether a name shows as held at a time. An expiry that was not reported shows after a
// while.
func (n *name) isHeld(now time.Time) bool {
	return n.held && (n.ttl == 0 || now.Sub(n.deadline()) <= overdue)
}

func (m *Model) showLeases(state *State, now time.Time) {
	all := m.nameShares.inTurn(func(a, b *name) int { return cmp.Compare(a.number, b.number) })
	all = slices.DeleteFunc(all, func(l *name) bool { return !l.isLease })
	for i, l := range all {
		l.turn = i
		if l.isHeld(now) {
			state.Totals.Held++
		} else {
			state.Totals.Free++
		}
	}
	// Leases that were released and that no client wants give way to others. The first turns do not: a
	// series that is missing while a lease has no holder would be no alarm.
	rest := all[min(len(all), m.options.Shown/steadyPart):]
	slices.SortStableFunc(rest, func(a, b *name) int { return compareBool(m.isDone(a, now), m.isDone(b, now)) })
	if len(all) > m.options.Shown {
		state.LeasesHidden = len(all) - m.options.Shown
		all = all[:m.options.Shown]
	}
	for _, l := range all {
		state.Leases = append(state.Leases, m.showLease(l, now))
	}
}

// isDone reports whether a name was released, and no client waits for it.
func (m *Model) isDone(n *name, now time.Time) bool {
	if m.hides(n, now) || n.held || n.last == nil || n.last.Cause != CauseReleased && n.last.Cause != CauseDeleted {
		return false
	}
	return !slices.ContainsFunc(n.waiters, func(w *waiter) bool { return w.isWaiting(now) })
}

// compareBool compares two conditions; false is less.
func compareBool(a, b bool) int {
	switch {
	case a == b:
		return 0
	case b:
		return -1
	}
	return 1
}

func (m *Model) showLease(n *name, now time.Time) Lease {
	shown := Lease{
		Name:             n.key,
		Turn:             n.turn,
		Held:             n.isHeld(now),
		Holder:           n.holderName(),
		Client:           n.client,
		Since:            n.since,
		Known:            !n.token.IsZero(),
		TTLMillis:        n.ttl.Milliseconds(),
		Renewals:         n.renewals,
		LastRenewal:      n.lastRenewal,
		RenewEveryMillis: n.rhythm.every().Milliseconds(),
		Missed:           n.missed,
		Changes:          n.changes,
		Waiting:          []Waiter{},
	}
	if n.ttl > 0 {
		shown.Deadline = n.deadline()
	}
	if shown.Known {
		shown.Token = n.token.String()
	}
	switch {
	case shown.Held:
		shown.LeftMillis = max(0, shown.Deadline.Sub(now).Milliseconds())
		if n.ttl == 0 {
			shown.LeftMillis = 0
		}
		shown.Late = n.rhythm.isLate(now.Sub(n.lastRenewal))
		shown.Value = n.value
	case n.held: // its expiry was not reported
		shown.NoHolderSince = n.deadline()
	default:
		shown.NoHolderSince = n.freeSince
	}
	if !shown.Held {
		shown.NoHolderMillis = max(0, now.Sub(shown.NoHolderSince).Milliseconds())
	}
	if n.last != nil {
		last := n.last.show(now)
		shown.LastChange = &last
	}
	m.showWaiters(n, &shown, now)
	return shown
}

func (m *Model) showWaiters(n *name, shown *Lease, now time.Time) {
	if m.hides(n, now) {
		shown.WaitingHidden = 1
	}
	waiting := slices.DeleteFunc(slices.Clone(n.waiters), func(w *waiter) bool {
		return !w.isWaiting(now) || n.held && w.client.value.id == n.client
	})
	slices.SortStableFunc(waiting, func(a, b *waiter) int {
		return cmp.Or(compareBool(a.onlyWatches(), b.onlyWatches()), a.since.Compare(b.since))
	})
	if surplus := len(waiting) - shownWaiters; surplus > 0 {
		shown.WaitingHidden += surplus
		waiting = waiting[:shownWaiters]
	}
	for _, w := range waiting {
		row := Waiter{
			Client:      w.client.value.id,
			Since:       w.since,
			Watching:    w.watching,
			Attempts:    w.attempts,
			LastAttempt: w.lastAttempt,
		}
		if n.bidder == w.client.value.id && now.Before(n.bidUntil) {
			rank := n.rank
			row.Bids, row.Rank = true, &rank
		}
		shown.Waiting = append(shown.Waiting, row)
	}
}

func (h *Change) show(now time.Time) Change {
	shown := *h
	if h.Began.IsZero() {
		shown.GapMillis = max(0, now.Sub(h.Ended).Milliseconds())
	}
	return shown
}

func (m *Model) showClients(state *State, now time.Time) {
	// Those that were seen last are shown, and connected ones before others.
	all := m.clientShares.inTurn(func(a, b *client) int {
		return cmp.Or(compareBool(b.connected, a.connected), b.lastEvent.Compare(a.lastEvent), cmp.Compare(a.id, b.id))
	})
	for _, c := range all[:min(len(all), m.options.Shown)] {
		state.Clients = append(state.Clients, c.show(m.takeOvers, now))
	}
	state.ClientsHidden = len(m.clients) - len(state.Clients)
	for _, n := range m.clients {
		switch offset, hasOffset, implausible := n.value.clock(now); {
		case implausible:
			state.Totals.ClocksImplausible++
		case hasOffset && offset.Abs() > clockOff:
			state.Totals.ClocksOff++
		}
	}
}

func (c *client) show(takeOvers *TakeOvers, now time.Time) Client {
	shown := Client{
		Client:      c.id,
		User:        c.user,
		Remote:      c.remote,
		Connected:   c.connected,
		Since:       c.since,
		Reason:      c.reason,
		LastSeen:    c.lastSeen,
		Requests:    c.requests,
		TakeOvers:   c.takeOvers,
		Flapping:    takeOvers.flaps(c.id, now),
		Refused:     c.refused,
		StaleWrites: c.stale,
		Dropped:     c.dropped,
	}
	offset, hasOffset, implausible := c.clock(now)
	shown.ClockImplausible = implausible
	if hasOffset {
		millis := offset.Milliseconds()
		shown.ClockOffsetMillis = &millis
	}
	return shown
}
