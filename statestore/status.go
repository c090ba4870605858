package statestore

import (
	"slices"
	"time"

	"github.com/tenurelock/tenure/internal/protocol"
	"github.com/tenurelock/tenure/internal/shown"
)

const (
	// shownWaiters is how many waiting clients a Lease has, and searchedWatches at how many watches of its
	// key the store looks for them.
	shownWaiters, searchedWatches = 16, 64
	// askedFor and askedTTLs: a client that does not watch a lease counts as waiting until this long, or
	// this many lifetimes, after it has asked for it.
	askedFor, askedTTLs = time.Minute, 3
	// freeFor is how long a lease is shown that no client holds and for which none waits.
	freeFor = time.Hour
)

// Cause is why a lease changed.
type Cause string

// The causes.
const (
	// CauseAcquired: a client acquired a lease that had no holder before, as far as the store knows.
	CauseAcquired Cause = "acquired"
	// CauseReleased: the holder has released the lease.
	CauseReleased Cause = "released"
	// CauseExpired: the holder has not renewed the lease in time.
	CauseExpired Cause = "expired"
	// CauseDeleted: the holder's client has deleted the key, whatever its value was.
	CauseDeleted Cause = "deleted"
	// CauseWill: the connection of the holder was lost, and its Will has released the lease.
	CauseWill Cause = "will"
	// CauseForced: another client has deleted or overwritten the lease.
	CauseForced Cause = "forced"
	// CauseOverwritten: the holder's client has replaced the value by another one.
	CauseOverwritten Cause = "overwritten"
)

// Causes are all causes. Those after the first one end a lease.
var Causes = []Cause{CauseAcquired, CauseReleased, CauseExpired, CauseDeleted, CauseWill, CauseForced, CauseOverwritten}

// HolderChange is the end of one holder's lease and, if there was one, the beginning of the next: a
// hand-over if the first was released, and a failover if not. The JSON is the one of the status page.
type HolderChange struct {
	Name string `json:"name"`
	// Cause is why the lease of From ended.
	Cause Cause `json:"cause"`
	// From and To are the names of the holders. From is empty at the first acquisition, and To while
	// no client has acquired the lease since.
	From string `json:"from"`
	To   string `json:"to"`
	// By is the client that caused the end, and ByUser its user; empty for an expiry.
	By     string `json:"by,omitempty"`
	ByUser string `json:"byUser,omitempty"`
	// Forced is why it was forced, as that client told.
	Forced string `json:"forced,omitempty"`
	// Ended is when the lease of From ended, and Began when the lease of To began. GapMillis is the time
	// between: until now, if To is empty.
	Ended     time.Time `json:"ended,omitzero"`
	Began     time.Time `json:"began,omitzero"`
	GapMillis int64     `json:"gapMillis"`
	// HeldMillis is how long From had the lease.
	HeldMillis int64 `json:"heldMillis"`
	// Disconnected is when the connection of the holder had ended, if the lease expired after that; zero: it
	// had not, or the store does not know its clients' connections.
	Disconnected time.Time `json:"disconnected,omitzero"`
	// Repeated is how many earlier releases by the same holder this one stands for, which no other
	// client has followed.
	Repeated uint64 `json:"repeated"`
}

// isRoutine reports whether a holder has released its lease, and no other has it since.
func (h *HolderChange) isRoutine() bool {
	return h.Cause == CauseReleased && (h.Began.IsZero() || h.To == h.From)
}

// Latest returns when the change began, or ended.
func (h *HolderChange) Latest() time.Time {
	if h.Began.After(h.Ended) {
		return h.Began
	}
	return h.Ended
}

// at returns the change as it is now.
func (h HolderChange) at(now Instant) HolderChange {
	if h.Began.IsZero() {
		h.GapMillis = max(0, now.wall().Sub(h.Ended).Milliseconds())
	}
	return h
}

// Lease is a name that one client at a time holds.
type Lease struct {
	Name string `json:"name"`
	// Turn is the place of the lease in the order of Store.Status. What can show some leases only should show
	// those with the lowest turns: they belong to many clients, and they stay the same.
	Turn int `json:"-"`
	// Held says that a client holds the lease.
	Held bool `json:"held"`
	// Holder is the holder's name, and Client its client id. If Held is false they are of the last holder, as
	// far as the store knows it.
	Holder string `json:"holder"`
	Client string `json:"client"`
	// Since is when the holder acquired the lease, and Token its fencing token: the version of that
	// SET, or of the next one, if only that named the store. Token is empty if the lease was acquired before
	// the store started, by a request that did not name it.
	Since time.Time `json:"since"`
	Token string    `json:"token,omitempty"`
	// TTLMillis is the lifetime, LeftMillis what is left of it, and Deadline its end. JSON leaves out a
	// LeftMillis of 0, and so do the events of the page.
	TTLMillis  int64     `json:"ttlMillis"`
	LeftMillis int64     `json:"leftMillis,omitzero"`
	Deadline   time.Time `json:"deadline"`
	// Renewals counts the renewals of this holder since the store started. LastRenewal is when the last one
	// came, or the acquisition.
	Renewals    uint64    `json:"renewals"`
	LastRenewal time.Time `json:"lastRenewal"`
	// Value is the value, which may be secret: with it each client that may write the key can release it.
	Value string `json:"value,omitempty"`
	// NoHolderSince is when the lease became free, if Held is false, and NoHolderMillis how long ago.
	NoHolderSince  time.Time `json:"noHolderSince,omitzero"`
	NoHolderMillis int64     `json:"noHolderMillis,omitzero"`
	// Changes counts how often another holder than the one before has acquired the lease, since the store
	// started. LastChange is the last entry of the lease in the history; nil: none.
	Changes    uint64        `json:"changes"`
	LastChange *HolderChange `json:"lastChange,omitempty"`
	// Waiting are the clients that wait for the lease or watch it: those that have asked for it first.
	// WaitingHidden is how many more there are.
	Waiting       []Waiter `json:"waiting"`
	WaitingHidden int      `json:"waitingHidden"`
}

// Waiter is a client that wants a lease, or watches it.
type Waiter struct {
	Client string `json:"client"`
	// Since is when it has asked first; zero: it has not.
	Since time.Time `json:"since,omitzero"`
	// Watching says that the client is notified of changes. Attempts counts how often it has tried
	// to acquire the lease since it had it last; LastAttempt is the last time.
	Watching    bool      `json:"watching"`
	Attempts    uint64    `json:"attempts"`
	LastAttempt time.Time `json:"lastAttempt,omitzero"`
	// Bids says that the client asks the holder to hand over, and Rank is the rank that it names;
	// a lower rank is better.
	Bids bool `json:"bids"`
	Rank *int `json:"rank,omitempty"`
}

// StaleWrite is a write that the store refused for its fencing token: most likely of a client that
// held a lease once and does not know that it has lost it.
type StaleWrite struct {
	At      time.Time `json:"at"`
	Key     string    `json:"key"`
	Client  string    `json:"client"`
	User    string    `json:"user,omitempty"`
	Verb    string    `json:"verb"`
	Refusal string    `json:"refusal"`
}

// Totals count leases: Held and Free how many there are, the others what happened since the store started.
type Totals struct {
	Held     int    `json:"held"`
	Free     int    `json:"free"`
	Acquired uint64 `json:"acquired"`
	Renewed  uint64 `json:"renewed"`
	// EndsBy counts the ends of leases by cause.
	EndsBy map[Cause]uint64 `json:"endsBy"`
	// StaleWrites counts writes that were refused for their fencing token.
	StaleWrites uint64 `json:"staleWrites"`
}

// Status is what a store shows of its leases. Texts that clients choose are cut, and may have any bytes.
type Status struct {
	Changes     []HolderChange // the latest 500, the latest first
	StaleWrites []StaleWrite   // the latest one of each of 100 clients, the latest first
	Totals      Totals
}

// LeaseRef stands for a lease that Store.Lease shows.
type LeaseRef struct{ *lease }

// Status returns what the store shows of its leases, and which ones Lease can show, up to limit: each user in
// turn has one, and of each user each client, those first that have it for longest.
func (s *Store) Status(now Instant, limit int) (Status, []LeaseRef) {
	l := &s.leases
	status := Status{StaleWrites: slices.Clone(l.stale), Totals: l.totals}
	status.Totals.EndsBy = make(map[Cause]uint64, len(Causes))
	for cause, count := range l.totals.EndsBy {
		status.Totals.EndsBy[cause] = count
	}
	slices.Reverse(status.StaleWrites)
	for _, c := range slices.Backward(l.history) {
		status.Changes = append(status.Changes, c.at(now))
	}
	for name, free := range l.free {
		if now.wall().Sub(free.last.Ended) > freeFor && s.watches.byKey[name] == nil {
			l.forget(free)
		}
	}
	status.Totals.Free = len(l.free)
	var turns [][]LeaseRef
	for _, u := range l.users[:min(len(l.users), limit)] {
		var own [][]LeaseRef
		for _, by := range u.sources {
			refs := make([]LeaseRef, 0, min(len(by.leases), limit))
			for _, of := range by.leases[:cap(refs)] {
				refs = append(refs, LeaseRef{of})
			}
			own = append(own, refs)
		}
		turns = append(turns, shown.InTurn(own, limit))
	}
	return status, shown.InTurn(turns, limit)
}

// Lease shows a lease. It reports false if there is nothing to show any more.
func (s *Store) Lease(now Instant, ref LeaseRef) (Lease, bool) {
	l := ref.lease
	row := Lease{
		Renewals: l.renewed, TTLMillis: l.ttl.Milliseconds(), Since: wallOf(l.since), Changes: l.changes, Waiting: []Waiter{},
	}
	switch e := l.entry; {
	case e != nil:
		left := max(e.deadline-now.Elapsed, 0)
		row.Name, row.Held, row.Client, row.LeftMillis = shown.Cut(e.key()), true, l.holder.client, left.Milliseconds()
		row.Holder, row.Value = holderOf(e.value(), row.Client), shown.Cut(e.value())
		row.Deadline = now.wall().Add(left)
		row.LastRenewal = row.Deadline.Add(-l.ttl)
		if token := l.token.timestamp(); !token.IsZero() {
			row.Token = token.String()
		}
	case l.last != nil:
		row.Name, row.Holder, row.NoHolderSince = l.last.Name, l.last.From, l.last.Ended
		row.NoHolderMillis = max(0, now.wall().Sub(l.last.Ended).Milliseconds())
		if l.last.Cause != CauseForced {
			row.Client = l.last.by.client
		}
	default:
		return Lease{}, false
	}
	if l.last != nil {
		last := l.last.at(now)
		row.LastChange = &last
	}
	s.showWaiting(now, l, &row)
	return row, true
}

// showWaiting adds the clients that wait for a lease.
func (s *Store) showWaiting(now Instant, l *lease, row *Lease) {
	of := s.watches.byKey[row.Name]
	watching := func(client string) bool {
		by := s.watches.byClient[client]
		return by != nil && by.keys[row.Name] != nil
	}
	if bid := s.entries[row.Name+protocol.FailBackSuffix]; bid != nil && !bid.due(now) && isBid(bid.key(), bid.value()) {
		client, _ := protocol.HolderOf(bid.value())
		rank := rankOf(bid.value())
		row.Waiting = append(row.Waiting, Waiter{Client: shown.Cut(client), Bids: true, Rank: &rank})
	}
	for _, w := range l.asking {
		w.Watching = watching(w.Client)
		if !w.Watching && now.wall().Sub(w.LastAttempt) > max(askedFor, askedTTLs*l.ttl) || l.entry != nil && w.Client == l.holder.client {
			continue
		}
		if i := row.waiter(w.Client); i >= 0 {
			w.Bids, w.Rank = true, row.Waiting[i].Rank
			row.Waiting[i] = w
		} else {
			row.Waiting = append(row.Waiting, w)
		}
	}
	if of == nil {
		return
	}
	hidden := len(of.watchers) - of.gaps
	if l.entry != nil && watching(l.holder.client) {
		hidden--
	}
	for i := range row.Waiting {
		if row.Waiting[i].Watching = watching(row.Waiting[i].Client); row.Waiting[i].Watching {
			hidden--
		}
	}
	for _, r := range of.watchers[:min(len(of.watchers), searchedWatches)] {
		if r.watcher == nil || r.watcher.gone || len(row.Waiting) >= shownWaiters {
			continue
		}
		client := shown.Cut(r.watcher.client)
		if l.entry != nil && client == l.holder.client || row.waiter(client) >= 0 {
			continue
		}
		row.Waiting = append(row.Waiting, Waiter{Client: client, Watching: true})
		hidden--
	}
	row.WaitingHidden = max(0, hidden)
}

// waiter returns the index of a client among those that wait; -1: it does not.
func (l *Lease) waiter(client string) int {
	return slices.IndexFunc(l.Waiting, func(w Waiter) bool { return w.Client == client })
}
