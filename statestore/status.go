package statestore

import (
	"cmp"
	"maps"
	"slices"
	"time"

	"github.com/tenurelock/tenure/internal/protocol"
	"github.com/tenurelock/tenure/internal/shown"
)

const (
	// shownWaiters is how many waiting clients a Lease has, and searchedWatches at how many watches of its
	// key the store looks for them.
	shownWaiters, searchedWatches = 16, 64
	// freeFor is how long a lease is shown that its holder has released, if no client holds it and none watches
	// it, and downFor how long one that ended otherwise.
	freeFor, downFor = time.Hour, 24 * time.Hour
	// handOver is within which time a client acquires a lease after its release if it has waited for it.
	handOver = time.Second
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
	// CauseWill: the connection of the holder was lost, and its Will has released the lease, or the
	// restarted store in its place.
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
	// Ended is when the lease of From ended, and Began when the lease of To began; if To is empty, now stands for
	// Began. GapMillis is the time between, and after an expiry also the time since the last renewal.
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

// isOpen reports whether no client has acquired the lease since.
func (h *HolderChange) isOpen() bool { return h.Began.IsZero() }

// isRelease reports whether the holder has ended the lease itself.
func (h *HolderChange) isRelease() bool { return h.Cause == CauseReleased || h.Cause == CauseDeleted }

// isRoutine reports whether a holder has released its lease, and no other has it since.
func (h *HolderChange) isRoutine() bool {
	return h.Cause == CauseReleased && (h.isOpen() || h.To == h.From)
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
	if h.isOpen() {
		h.GapMillis += max(0, now.wall().Sub(h.Ended).Milliseconds())
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
	// SET, or of the next one, if only that named the store; empty if that was before the store started.
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
	// NoHolderSince is when the lease was released, or renewed for the last time, if Held is false, and
	// NoHolderMillis how long ago.
	NoHolderSince  time.Time `json:"noHolderSince,omitzero"`
	NoHolderMillis int64     `json:"noHolderMillis,omitzero"`
	// Down says that Held is false although clients wait for the lease, or the last holder has not released it.
	Down bool `json:"down,omitzero"`
	// Gone is the last other client that waited for the lease or held it, if now none waits for a lease that is
	// held, and GoneSince when it ceased to; empty: there was none, as far as the store knows.
	Gone      string    `json:"gone,omitempty"`
	GoneSince time.Time `json:"goneSince,omitzero"`
	// Changes counts how often another holder than the one before has acquired the lease, as far as the history
	// goes back, and since the store started. LastChange is its last entry in the history; nil: none.
	Changes    uint64        `json:"changes"`
	LastChange *HolderChange `json:"lastChange,omitempty"`
	// Waiting are the clients that wait for the lease and watch it, and the one that asks the holder to hand over.
	// A client that only watches it does not wait. WaitingHidden is how many more there are.
	Waiting       []Waiter `json:"waiting"`
	WaitingHidden int      `json:"waitingHidden"`
}

// Waiter is a client that waits for a lease: it says so, or has tried to acquire the lease and watches it.
type Waiter struct {
	Client string `json:"client"`
	// Bids says that the client asks the holder to hand over, and Rank is the rank that it names;
	// a lower rank is better.
	Bids bool `json:"bids"`
	Rank *int `json:"rank,omitempty"`
}

// Totals count leases: Held and Free how many there are, the others what happened since the store started.
type Totals struct {
	Held     int    `json:"held"`
	Free     int    `json:"free"`
	Acquired uint64 `json:"acquired"`
	Renewed  uint64 `json:"renewed"`
	// EndsBy counts the ends of leases by cause.
	EndsBy map[Cause]uint64 `json:"endsBy"`
}

// Status is what a store shows of its leases. Texts that clients choose are cut, and may have any bytes.
type Status struct {
	Changes []HolderChange // the latest 500, the latest first
	Totals  Totals
}

// Status returns what the store shows of its leases, and the names of those to show with Lease, up to limit: each
// client in turn has one. It looks at no others: all requests wait meanwhile.
func (s *Store) Status(now Instant, limit int) (Status, []string) {
	l := &s.leases
	status := Status{Totals: l.totals}
	status.Totals.EndsBy = maps.Clone(l.totals.EndsBy)
	free := make(map[*source][]string)
	for _, c := range slices.Backward(l.history) {
		status.Changes = append(status.Changes, c.at(now))
		limit := downFor
		if c.isRelease() {
			limit = freeFor
		}
		isOld := now.wall().Sub(c.Ended) > limit && s.watches.byKey[c.Name] == nil
		if c.isOpen() && l.latest[c.Name] == c && !isOld {
			free[c.by] = append(free[c.by], c.Name)
			status.Totals.Free++
		}
	}
	names := shown.InTurn(len(l.ordered), func(i int) shown.Queue[string] {
		return l.ordered[i].names(free[l.ordered[i]])
	})
	return status, names.Take(limit)
}

// names returns the leases of a client: the free ones, and then those that it holds.
func (s *source) names(free []string) shown.Queue[string] {
	next, held := shown.Of(free), 0
	return func() (string, bool) {
		if name, ok := next(); ok {
			return name, true
		}
		if held == len(s.leases) {
			return "", false
		}
		held++
		return s.leases[held-1].key, true
	}
}

// Lease shows a lease. It reports false if there is nothing to show.
func (s *Store) Lease(now Instant, name string) (row Lease, ok bool) {
	row.Waiting = []Waiter{}
	last := cmp.Or(s.leases.latest[name], s.leases.latest[shown.Cut(name)])
	switch e := s.entries[name]; {
	case e != nil && e.lease != nil:
		s.show(now, e, &row)
	case last != nil && last.isOpen():
		row.Name, row.Holder, row.NoHolderMillis = last.Name, last.From, last.at(now).GapMillis
		row.NoHolderSince = last.Ended.Add(-time.Duration(last.GapMillis) * time.Millisecond)
		if last.Cause != CauseForced {
			row.Client = last.by.client
		}
	default:
		return row, false
	}
	if last != nil {
		latest := last.at(now)
		row.LastChange, row.Changes = &latest, last.holders
	}
	s.showWaiting(now, name, &row)
	switch e, waited := s.entries[name], len(row.Waiting)+row.WaitingHidden > 0; {
	case !row.Held:
		row.Down = waited || e == nil && !last.isRelease()
	case !waited:
		row.showGone(e.lease.gone)
	}
	return row, true
}

// showGone adds the client that has waited, or else the holder before, if another client took over from it.
func (l *Lease) showGone(gone standby) {
	l.Gone, l.GoneSince = gone.client, gone.since
	c := l.LastChange
	if c == nil || c.isOpen() || c.From == "" || c.From == c.To || c.isRelease() && c.GapMillis > handOver.Milliseconds() {
		return
	}
	freed := c.Began.Add(-time.Duration(c.GapMillis) * time.Millisecond)
	if since := cmp.Or(c.Disconnected, freed); since.After(gone.since) {
		l.Gone, l.GoneSince = c.From, since
	}
}

// show adds the holder of a lease to its row.
func (s *Store) show(now Instant, e *entry, row *Lease) {
	l, left := e.lease, max(e.deadline-now.Elapsed, 0)
	row.Name, row.Held, row.Client = shown.Cut(e.key), true, l.holder.client
	row.Holder, row.Value = holderOf(e.value, row.Client), shown.Cut(e.value)
	row.Since, row.Renewals, row.TTLMillis = wallOf(l.since), l.renewed, l.ttl.Milliseconds()
	row.LeftMillis, row.Deadline = left.Milliseconds(), now.wall().Add(left)
	row.LastRenewal = row.Deadline.Add(-l.ttl)
	row.Token = l.tokenText()
}

// showWaiting adds the client that asks the holder of a lease to hand over, and those that wait for it.
func (s *Store) showWaiting(now Instant, name string, row *Lease) {
	bidder := ""
	if bid := s.entries[name+protocol.FailBackSuffix]; bid != nil && !bid.due(now) && isBid(bid.key, bid.value) {
		client, _ := protocol.HolderOf(bid.value)
		rank := rankOf(bid.value)
		bidder = shown.Cut(client)
		row.Waiting = append(row.Waiting, Waiter{Client: bidder, Bids: true, Rank: &rank})
	}
	of := s.watches.byKey[name]
	if of == nil {
		return
	}
	row.WaitingHidden = of.waiting
	x := &of.ring
	for range searchedWatches {
		if x = x.next; x == &of.ring || len(row.Waiting) == shownWaiters {
			break
		}
		if !x.waits {
			continue
		}
		client := shown.Cut(x.watcher.client)
		if isHolder := row.Held && client == row.Client; !isHolder && !x.watcher.gone && client != bidder {
			row.Waiting = append(row.Waiting, Waiter{Client: client})
		}
		row.WaitingHidden--
	}
}

// tokenText returns the token of the holder; empty: it is not known.
func (l *lease) tokenText() string {
	if l.token == (stamp{}) {
		return ""
	}
	return l.token.timestamp().String()
}

// News is a change of a holder since the call of Store.News before.
type News struct {
	HolderChange
	Client, User string // that it is counted for
	Token        string // of To, while it holds the lease
}

// News returns the changes since the call before, as far as the history still has them. What was restored is none.
func (s *Store) News() (news []News) {
	for _, c := range s.leases.history {
		if !c.isNews {
			continue
		}
		c.isNews = false
		n := News{HolderChange: c.HolderChange, Client: c.by.client, User: c.by.user}
		if e := s.entries[c.Name]; !c.isOpen() && e != nil && e.lease != nil && s.leases.latest[c.Name] == c {
			n.Token = e.lease.tokenText()
		}
		news = append(news, n)
	}
	return news
}
