package statestore

import (
	"cmp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/tenurelock/tenure/internal/protocol"
	"github.com/tenurelock/tenure/internal/shown"
)

const (
	// maxChanges is how many changes of leases the store keeps.
	maxChanges = 500
	// maxAsking is how many clients the store remembers that have asked for one lease and not got it.
	maxAsking = 16
	// maxStale is how many clients it remembers whose writes it refused for their fencing tokens.
	maxStale = 100
)

// leases is what the store knows of leases beside their keys, and their history. A key is a lease if it was
// set with a lifetime and on a condition (PX with NX or NEX), as package lease does. What clients choose is
// cut (see [shown.Cut]) and bounded, and each user has an equal share of the history, and in it each client.
type leases struct {
	sources   map[sourceID]*source
	users     []*user
	userNamed map[string]*user
	free      map[string]*lease // those without a holder, by name: each has its latest change in the history
	history   []*change         // the oldest first
	sequence  uint64            // of the latest change
	changed   []*change         // by the command or the expiry that is applied
	stale     []StaleWrite      // one of each client, the oldest first
	totals    Totals
}

// lease is a key that a client holds as a lease, or has held lately.
type lease struct {
	entry   *entry  // nil: no client holds it
	holder  *source // the client that has set the key; nil without an entry
	owner   *source // the first client that held it
	place   int     // in owner.leases
	since   int64   // when the holder acquired it, on the wall clock
	token   stamp   // the version of that, or of the next request if only that named the store; zero: not known
	bound   bool    // the request with the token named the store
	ttl     time.Duration
	renewed uint64   // by this holder
	changes uint64   // of the holder
	last    *change  // nil: none in the history
	asking  []Waiter // clients that have asked for it and not got it
}

type sourceID struct{ client, user string }

// source is a client that holds leases, or has changes in the history.
type source struct {
	sourceID
	of      *user
	place   int // in of.sources
	leases  []*lease
	changes int
	holds   int
	lost    int64 // when its connection ended, on the wall clock; 0: not known
}

// user has clients: those that have authenticated with one name.
type user struct {
	name    string
	place   int // in leases.users
	sources []*source
	changes int
}

// change is an entry of the history.
type change struct {
	HolderChange
	by       *source // in whose share it is
	of       *lease  // whose latest change it is; nil: of none
	slot     uint32
	sequence uint64
}

func newLeases() leases {
	return leases{
		sources: make(map[sourceID]*source), userNamed: make(map[string]*user),
		free: make(map[string]*lease), totals: Totals{EndsBy: make(map[Cause]uint64)},
	}
}

// source returns the client of a user, which the caller uses: drop frees what is not used.
func (l *leases) source(client, name string) *source {
	id := sourceID{shown.Cut(client), shown.Cut(name)}
	if known := l.sources[id]; known != nil {
		return known
	}
	id = sourceID{strings.Clone(id.client), strings.Clone(id.user)} // they may be parts of a large request
	of := l.userNamed[id.user]
	if of == nil {
		of = &user{name: id.user, place: len(l.users)}
		l.users, l.userNamed[of.name] = append(l.users, of), of
	}
	s := &source{sourceID: id, of: of, place: len(of.sources)}
	of.sources, l.sources[id] = append(of.sources, s), s
	return s
}

// drop forgets a client that holds no lease and has no part in what is shown.
func (l *leases) drop(s *source) {
	if len(s.leases)+s.changes+s.holds > 0 {
		return
	}
	delete(l.sources, s.sourceID)
	leave(&s.of.sources, s.place, func(last *source) { last.place = s.place })
	if len(s.of.sources) == 0 {
		delete(l.userNamed, s.of.name)
		leave(&l.users, s.of.place, func(last *user) { last.place = s.of.place })
	}
}

// leave removes a member from a list. The last one takes its place.
func leave[T any](list *[]*T, place int, move func(last *T)) {
	end := len(*list) - 1
	(*list)[place] = (*list)[end]
	move((*list)[place])
	(*list)[end] = nil
	*list = (*list)[:end]
}

// hold makes a client the holder of a lease whose key was set.
func (l *leases) hold(of *lease, e *entry, by *source) {
	if of.owner == nil {
		of.owner, of.place = by, len(by.leases)
		by.leases = append(by.leases, of)
	}
	of.entry, of.holder, e.lease = e, by, of
	by.holds++
	l.totals.Held++
}

// letGo ends what hold began.
func (l *leases) letGo(of *lease) {
	by := of.holder
	of.entry.lease, of.entry, of.holder = nil, nil, nil
	by.holds--
	l.totals.Held--
	l.drop(by)
}

// forget drops a lease that no client holds.
func (l *leases) forget(of *lease) {
	delete(l.free, of.last.Name)
	of.last.of = nil
	leave(&of.owner.leases, of.place, func(last *lease) { last.place = of.place })
	l.drop(of.owner)
}

// isBid reports whether a key with a value is a preferred node's request for a lease, which is none itself.
func isBid[T string | []byte](key string, value T) bool {
	return strings.HasSuffix(key, protocol.FailBackSuffix) && rankOf(value) >= 0
}

// rankOf returns the rank that ends the value of a request for a lease; -1 if there is none.
func rankOf[T string | []byte](value T) int {
	holder, _ := protocol.HolderOf(value)
	if len(holder) == len(value) || len(value)-len(holder) > 10 {
		return -1
	}
	rank, err := strconv.Atoi(string(value[len(holder)+1:]))
	if err != nil {
		return -1
	}
	return rank
}

// holderOf returns the name of a holder: what is before the nonce of package lease in the value, or the client
// id. No part of another value may be shown.
func holderOf[T string | []byte](value T, client string) string {
	if holder, hasNonce := protocol.HolderOf(value); hasNonce {
		return strings.Clone(shown.Cut(string(holder)))
	}
	return client
}

// isClaim reports whether a SET makes its key a lease.
func (c *Command) isClaim() bool {
	return c.Condition != Always && c.Lifetime > 0 && !isBid(c.Key, c.Value)
}

// continues reports whether a SET that applies to a lease goes on with the time of its holder.
func (l *lease) continues(c *Command) bool {
	client, value := l.holder.client, l.entry.value()
	return value == string(c.Value) ||
		c.Condition == Always && shown.Cut(c.Client) == client && holderOf(c.Value, client) == holderOf(value, client)
}

// noteSet notes a SET that was applied to a key, which had a value before. goesOn says that it goes on with
// the time of the holder, or that it changed nothing of a key that is no lease: then that stays none, so that it
// needs no record.
func (s *Store) noteSet(now Instant, c *Command, reply *Reply, e *entry, before string, goesOn bool) {
	l := e.lease
	switch {
	case l == nil && (goesOn || !c.isClaim()):
	case goesOn && c.Lifetime > 0:
		s.renew(c, e)
	default:
		if l != nil {
			cause := CauseForced
			if shown.Cut(c.Client) == l.holder.client {
				cause = CauseOverwritten
			}
			s.end(now, l, before, cause, c, reply)
		}
		if c.isClaim() || l != nil && c.Lifetime > 0 {
			s.acquire(now, c, e)
		} else {
			s.leases.forget(l) // the key is no lease any more
		}
	}
}

// renew notes that the holder of a lease has set its key again.
func (s *Store) renew(c *Command, e *entry) {
	l := e.lease
	if c.store != nil && !l.bound && l.renewed == 0 && l.token.node != nil {
		l.token, l.bound = e.version, true // the tenure begins with this request
	} else {
		l.renewed++
	}
	if c.Client != l.holder.client || c.User != l.holder.user {
		former, by := l.holder, s.leases.source(c.Client, c.User)
		former.holds--
		by.holds++
		l.holder = by
		s.leases.drop(former)
	}
	l.holder.lost, l.ttl = 0, c.Lifetime
	s.leases.totals.Renewed++
}

// acquire notes that a client has a lease from now on.
func (s *Store) acquire(now Instant, c *Command, e *entry) {
	name := shown.Cut(e.key())
	l := s.leases.free[name]
	if l == nil {
		l = new(lease)
	}
	delete(s.leases.free, name)
	by := s.leases.source(c.Client, c.User)
	s.leases.hold(l, e, by)
	by.lost = 0
	l.since, l.token, l.bound, l.ttl, l.renewed = now.WallMillis, e.version, c.store != nil, c.Lifetime, 0
	l.asking = slices.DeleteFunc(l.asking, func(w Waiter) bool { return w.Client == by.client })
	s.leases.totals.Acquired++
	to := holderOf(e.value(), by.client)
	if l.last == nil || !l.last.Began.IsZero() {
		s.note(l, by, HolderChange{Name: strings.Clone(name), Cause: CauseAcquired, To: to, Began: now.wall()})
		return
	}
	l.last.To, l.last.Began = to, now.wall()
	l.last.GapMillis = max(0, l.last.Began.Sub(l.last.Ended).Milliseconds())
	if l.last.To != l.last.From {
		l.changes++
	}
	s.leases.changed = append(s.leases.changed, l.last)
}

// end notes that a lease has ended, which had some value. c is the command that has ended it; nil: its time
// was over.
func (s *Store) end(now Instant, l *lease, value string, cause Cause, c *Command, reply *Reply) {
	by := l.holder
	ended := HolderChange{
		Name: strings.Clone(shown.Cut(l.entry.key())), Cause: cause, From: holderOf(value, by.client),
		Ended: now.wall(), HeldMillis: max(0, now.WallMillis-l.since),
	}
	if c == nil {
		ended.Disconnected = wallOf(by.lost)
	} else {
		by = s.leases.source(c.Client, c.User)
		ended.By, ended.ByUser, ended.Forced = by.client, by.user, c.Forced
	}
	if cause == CauseForced && by != l.holder {
		reply.Forced = &ended
	}
	s.leases.totals.EndsBy[cause]++
	s.note(l, by, ended)
	s.leases.letGo(l)
	s.leases.free[ended.Name] = l
}

// deletedBy returns why a command that deletes the key of a lease ends it.
func (l *lease) deletedBy(c *Command) Cause {
	switch {
	case c.Will:
		return CauseWill
	case c.Forced != "" || shown.Cut(c.Client) != l.holder.client:
		return CauseForced
	case c.Verb == VerbDel:
		return CauseDeleted
	}
	return CauseReleased
}

// note makes a change the latest one of a lease and of the history.
func (s *Store) note(l *lease, by *source, noted HolderChange) {
	h := &s.leases
	h.sequence++
	by.changes++
	by.of.changes++
	latest := &change{HolderChange: noted, by: by, of: l, slot: uint32(len(h.history)), sequence: h.sequence}
	before := l.last
	switch {
	case before != nil && before.isRoutine() && latest.isRoutine() && before.From == latest.From:
		// The same client had it, released it, had it again and has released it again: a job that runs
		// now and then must not push failovers out of the history.
		latest.Repeated = before.Repeated + 1
		latest.slot = h.remove(before)
	case len(h.history) == maxChanges:
		latest.slot = h.remove(h.surplus())
	}
	if before != nil {
		before.of = nil
	}
	l.last = latest
	h.history = append(h.history, latest)
	h.changed = append(h.changed, latest)
}

// surplus returns the change that gives way to another: the oldest one of the client that has most, of the
// user that has most.
func (l *leases) surplus() *change {
	surplus := l.history[0]
	for _, c := range l.history {
		if a, b := c.by, surplus.by; cmp.Or(cmp.Compare(a.of.changes, b.of.changes), cmp.Compare(a.changes, b.changes)) > 0 {
			surplus = c
		}
	}
	return surplus
}

// remove takes a change out of the history, and returns its slot.
func (l *leases) remove(c *change) (slot uint32) {
	i := slices.Index(l.history, c)
	l.history = slices.Delete(l.history, i, i+1)
	c.by.changes--
	c.by.of.changes--
	l.drop(c.by)
	if of := c.of; of != nil {
		if of.entry == nil {
			l.forget(of)
		}
		of.last = nil
	}
	return c.slot
}

// takeChanged returns the records of the history that the command or the expiry that was applied has changed.
func (s *Store) takeChanged() (records []Record) {
	for _, c := range s.leases.changed {
		if s.options.Journaled {
			records = append(records, c.record())
		}
	}
	clear(s.leases.changed)
	s.leases.changed = s.leases.changed[:0]
	return records
}

// ask notes that a client has asked for a lease that another one holds.
func (l *lease) ask(now Instant, c *Command) {
	client := shown.Cut(c.Client)
	i := slices.IndexFunc(l.asking, func(w Waiter) bool { return w.Client == client })
	switch {
	case i >= 0:
	case len(l.asking) < maxAsking:
		i, l.asking = len(l.asking), append(l.asking, Waiter{})
	default: // the one that has not asked for longest gives way
		i = slices.Index(l.asking, slices.MinFunc(l.asking, func(a, b Waiter) int { return a.LastAttempt.Compare(b.LastAttempt) }))
	}
	w := &l.asking[i]
	if w.Client != client {
		*w = Waiter{Client: strings.Clone(client), Since: now.wall()}
	}
	w.LastAttempt = now.wall()
	w.Attempts++
}

// noteStale notes a write that was refused because its fencing token is too low.
func (s *Store) noteStale(now Instant, c *Command) {
	l := &s.leases
	client := strings.Clone(shown.Cut(c.Client))
	l.totals.StaleWrites++
	l.stale = slices.DeleteFunc(l.stale, func(w StaleWrite) bool { return w.Client == client })
	l.stale = append(l.stale, StaleWrite{
		At: now.wall(), Key: strings.Clone(shown.Cut(c.Key)), Client: client, User: strings.Clone(shown.Cut(c.User)),
		Verb: c.Verb.String(), Refusal: string(protocol.FencingTokenLower),
	})
	if surplus := len(l.stale) - maxStale; surplus > 0 {
		l.stale = slices.Delete(l.stale, 0, surplus)
	}
}

// Lost says that the connection of a client of a user has ended.
func (s *Store) Lost(now Instant, client, name string) {
	if by := s.leases.sources[sourceID{shown.Cut(client), shown.Cut(name)}]; by != nil && by.lost == 0 {
		by.lost = now.WallMillis
	}
}

// restoreLease makes a key that was restored a lease again.
func (s *Store) restoreLease(item *Item, e *entry) {
	l := &lease{since: item.Since, bound: item.Bound, ttl: item.Lifetime}
	if item.Bound {
		l.token = e.version
	}
	s.leases.hold(l, e, s.leases.source(item.Client, item.User))
}

// restoreChange takes a change of an earlier store. It reports whether there was one with its slot.
func (s *Store) restoreChange(item *Item) (twice bool) {
	twice = slices.ContainsFunc(s.leases.history, func(c *change) bool { return c.slot == item.slot })
	c := &change{HolderChange: item.Change, by: s.leases.source(item.Client, item.User), slot: item.slot, sequence: item.Sequence}
	c.by.changes++
	c.by.of.changes++
	s.leases.history = append(s.leases.history, c)
	return twice
}

// restoredChanges puts the changes that were restored in their order, and finds their leases. So it shows
// those too that no client holds.
func (s *Store) restoredChanges() {
	l := &s.leases
	slices.SortFunc(l.history, func(a, b *change) int { return cmp.Compare(a.sequence, b.sequence) })
	held := make(map[string]*lease, l.totals.Held)
	for _, e := range s.entries {
		if e.lease != nil {
			held[shown.Cut(e.key())] = e.lease
		}
	}
	for _, c := range slices.Backward(l.history) {
		of := cmp.Or(held[c.Name], l.free[c.Name])
		switch {
		case of != nil && of.last == nil:
			of.last, c.of = c, of
		case of == nil && c.Began.IsZero():
			of = &lease{last: c, owner: c.by, place: len(c.by.leases)}
			c.by.leases, c.of = append(c.by.leases, of), of
			l.free[c.Name] = of
		}
	}
	if last := len(l.history); last > 0 {
		l.sequence = l.history[last-1].sequence
	}
}
