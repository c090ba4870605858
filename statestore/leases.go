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

// maxChanges is how many changes of leases the store keeps.
const maxChanges = 500

// leases is what the store knows of leases beside their keys, and their history. A key is a lease if it was
// set with a lifetime and on a condition (PX with NX or NEX), as package lease does. What clients choose is
// cut (see [shown.Cut]) and bounded, and each client has an equal share of the history.
type leases struct {
	sources  map[sourceID]*source
	ordered  []*source          // the same
	history  []*change          // the oldest first
	latest   map[string]*change // in the history, by the name of the lease
	sequence uint64             // of the latest change
	changed  []*change          // by the command or the expiry that is applied
	totals   Totals
}

// lease is what the store knows of a key that a client holds as a lease.
type lease struct {
	holder  *source // the client that has set the key
	place   int     // in holder.leases
	since   int64   // when the holder acquired it, on the wall clock
	token   stamp   // the version of that, or of the next request if only that named the store; zero: not known
	bound   bool    // the request with the token named the store
	ttl     time.Duration
	renewed uint64
	gone    standby
}

// standby is the last client that waited for a lease and does so no more, and since when.
type standby struct {
	client string
	since  time.Time
}

type sourceID struct{ client, user string }

// source is a client that holds leases, or has changes in the history.
type source struct {
	sourceID
	place   int      // in leases.ordered
	leases  []*entry // that it holds
	changes int
	lost    int64 // when its connection ended, on the wall clock; 0: not known
}

// change is an entry of the history.
type change struct {
	HolderChange
	by       *source // in whose share it is
	holders  uint64  // how often another holder than the one before has acquired the lease until then
	slot     uint64
	sequence uint64
	gone     standby // of the lease that has ended
	isNews   bool    // see Store.News
}

// source returns a client of a user. What uses it counts in it, and calls drop in the end.
func (l *leases) source(client, user string) *source {
	id := sourceID{shown.Cut(client), shown.Cut(user)}
	if known := l.sources[id]; known != nil {
		return known
	}
	id = sourceID{strings.Clone(id.client), strings.Clone(id.user)} // they may be parts of a large request
	s := &source{sourceID: id, place: len(l.ordered)}
	l.ordered, l.sources[id] = append(l.ordered, s), s
	return s
}

// drop forgets a client that nothing uses.
func (l *leases) drop(s *source) {
	if len(s.leases)+s.changes == 0 {
		delete(l.sources, s.sourceID)
		leave(&l.ordered, s.place, func(last *source) { last.place = s.place })
	}
}

// leave removes a member from a list. The last one takes its place.
func leave[T any](list *[]*T, place int, move func(last *T)) {
	end := len(*list) - 1
	(*list)[place] = (*list)[end]
	move((*list)[place])
	(*list)[end] = nil
	if *list = (*list)[:end]; 8*end < cap(*list) {
		*list = slices.Clone(*list) // which gives memory back
	}
}

// hold makes a client the holder of a lease, the key of which it has set.
func (l *leases) hold(e *entry, by *source) {
	by.lost = 0
	e.lease.holder, e.lease.place = by, len(by.leases)
	by.leases = append(by.leases, e)
	l.totals.Held++
}

// letGo ends what hold began.
func (l *leases) letGo(e *entry) {
	by, place := e.lease.holder, e.lease.place
	leave(&by.leases, place, func(last *entry) { last.lease.place = place })
	l.totals.Held--
	l.drop(by)
}

// isBid reports whether a key with a value is a preferred node's request for a lease, which is none itself.
func isBid[T string | []byte](key string, value T) bool {
	return strings.HasSuffix(key, protocol.FailBackSuffix) && rankOf(value) >= 0
}

// rankOf returns the rank that ends the value of a request for a lease; -1 if there is none.
func rankOf[T string | []byte](value T) int {
	client, _ := protocol.HolderOf(value)
	rank, err := strconv.Atoi(string(value[min(len(client)+1, len(value)):]))
	if err != nil || len(value)-len(client) > 10 {
		return -1
	}
	return rank
}

// holderOf returns the name of a holder: what is before the nonce of package lease in the value, or the client
// id. No part of another value may be shown.
func holderOf[T string | []byte](value T, client string) string {
	if holder, hasNonce := protocol.HolderOf(value); hasNonce && string(holder) != client {
		return strings.Clone(shown.Cut(string(holder)))
	}
	return client
}

// isClaim reports whether a SET makes its key a lease.
func (c *Command) isClaim() bool {
	return c.Condition != Always && c.Lifetime > 0 && !isBid(c.Key, c.Value)
}

// goesOn reports whether a SET of the key of a lease goes on with the time of its holder.
func (c *Command) goesOn(e *entry) bool {
	client := e.lease.holder.client
	return e.value == string(c.Value) ||
		c.Condition == Always && shown.Cut(c.Client) == client && holderOf(c.Value, client) == holderOf(e.value, client)
}

// noteSet notes a SET that was applied to a key, which had a value before. goesOn says that it goes on with
// the time of the holder, or that it changed nothing of a key that is no lease: then that stays none, so that it
// needs no record.
func (s *Store) noteSet(now Instant, c *Command, reply *Reply, e *entry, before string, goesOn bool) {
	isLease := c.isClaim() || e.lease != nil && c.Lifetime > 0
	if e.lease != nil && !(goesOn && isLease) {
		cause := CauseForced
		if shown.Cut(c.Client) == e.lease.holder.client {
			cause = CauseOverwritten
		}
		s.end(now, e, before, cause, c, reply)
		goesOn = false
	}
	switch {
	case e.lease != nil:
		s.renew(c, e)
	case isLease && !goesOn:
		s.acquire(now, c, e)
	}
}

// renew notes that a lease was set again.
func (s *Store) renew(c *Command, e *entry) {
	l := e.lease
	if c.Store != nil && !l.bound && l.renewed == 0 && l.token != (stamp{}) {
		l.token, l.bound = e.version, true // the tenure begins with this request
	} else {
		l.renewed++
	}
	if by := s.leases.source(c.Client, c.User); by != l.holder {
		s.leases.letGo(e)
		s.leases.hold(e, by)
	}
	l.holder.lost, l.ttl = 0, c.Lifetime
	s.leases.totals.Renewed++
}

// acquire notes that a client has a lease from now on.
func (s *Store) acquire(now Instant, c *Command, e *entry) {
	by := s.leases.source(c.Client, c.User)
	e.lease = &lease{since: now.recorded(), token: e.version, bound: c.Store != nil, ttl: c.Lifetime}
	s.leases.hold(e, by)
	s.leases.totals.Acquired++
	s.watches.find(c.Client, c.Key).wait(false)
	name, to := shown.Cut(e.key), holderOf(e.value, by.client)
	last := s.leases.latest[name]
	if last == nil || !last.isOpen() {
		s.note(by, HolderChange{Name: name, Cause: CauseAcquired, To: to, Began: now.wall()})
		return
	}
	last.HolderChange = last.at(now)
	last.To, last.Began = to, now.wall()
	if last.gone.client != by.client {
		e.lease.gone = last.gone
	}
	if last.To != last.From {
		last.holders++
	}
	s.leases.changed = append(s.leases.changed, last)
}

// end notes that a lease has ended, the key of which had some value. c is the command that has ended it; nil:
// its time was over.
func (s *Store) end(now Instant, e *entry, value string, cause Cause, c *Command, reply *Reply) {
	by := e.lease.holder
	ended := HolderChange{
		Name: shown.Cut(e.key), Cause: cause, From: holderOf(value, by.client),
		Ended: now.wall(), HeldMillis: max(0, now.recorded()-e.lease.since),
	}
	if cause == CauseExpired {
		ended.GapMillis = max(0, now.Elapsed-e.deadline+e.lease.ttl).Milliseconds()
	}
	if c == nil {
		ended.Disconnected = wallOf(by.lost)
	} else {
		by = s.leases.source(c.Client, c.User)
		ended.By, ended.ByUser, ended.Forced = by.client, by.user, c.Forced
	}
	if cause == CauseForced && by != e.lease.holder {
		forced := ended
		reply.Forced = &forced
	}
	s.leases.totals.EndsBy[cause]++
	s.note(by, ended).gone = e.lease.gone
	s.leases.letGo(e)
	e.lease = nil
}

// deletes returns why a command that deletes the key of a lease ends it.
func (c *Command) deletes(l *lease) Cause {
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

// note adds a change to the history, in the share of a client.
func (s *Store) note(by *source, noted HolderChange) *change {
	h := &s.leases
	h.sequence++
	by.changes++ // before remove, which must not forget the client
	c := &change{HolderChange: noted, by: by, slot: uint64(len(h.history)), sequence: h.sequence}
	latest := h.latest[noted.Name]
	if latest != nil {
		c.holders = latest.holders
	}
	switch {
	case latest != nil && latest.isRoutine() && noted.isRoutine() && latest.From == noted.From:
		// The same client had it, released it, had it again and has released it again: a job that runs
		// now and then must not push failovers out of the history.
		c.Repeated = latest.Repeated + 1
		c.slot = h.remove(latest)
	case len(h.history) == maxChanges:
		c.slot = h.remove(h.surplus())
	}
	h.history, h.latest[c.Name] = append(h.history, c), c
	h.changed = append(h.changed, c)
	return c
}

// remove takes a change out of the history, and returns its slot.
func (l *leases) remove(c *change) (slot uint64) {
	i := slices.Index(l.history, c)
	l.history = slices.Delete(l.history, i, i+1)
	if l.latest[c.Name] == c {
		delete(l.latest, c.Name)
	}
	c.by.changes--
	l.drop(c.by)
	return c.slot
}

// surplus returns the change that gives way to another: the oldest one of the client that has most.
func (l *leases) surplus() *change {
	return slices.MaxFunc(l.history, func(a, b *change) int { return cmp.Compare(a.by.changes, b.by.changes) })
}

// takeChanged returns the records of the history that the command or the expiry that was applied has changed.
func (s *Store) takeChanged() (records []Record) {
	for _, c := range s.leases.changed {
		c.isNews = true
		if s.options.Journaled {
			records = append(records, Item{
				Kind: KindChange, Change: c.HolderChange, Client: c.by.client, User: c.by.user, Sequence: c.sequence, slot: c.slot,
			}.Record())
		}
	}
	s.leases.changed = s.leases.changed[:0]
	return records
}

// gone notes that a client that may wait for a lease watches its key no more.
func (s *Store) gone(now Instant, x *watch) {
	if e := s.entries[x.watched.key]; x.waits && e != nil && e.lease != nil {
		e.lease.gone = standby{strings.Clone(shown.Cut(x.watcher.client)), now.wall()}
	}
}

// Lost says that the connection of a client of a user has ended.
func (s *Store) Lost(now Instant, client, user string) {
	if by := s.leases.sources[sourceID{shown.Cut(client), shown.Cut(user)}]; by != nil && by.lost == 0 {
		by.lost = now.recorded()
	}
}

// restoredChanges puts the changes that were restored in their order.
func (s *Store) restoredChanges() {
	l := &s.leases
	slices.SortFunc(l.history, func(a, b *change) int { return cmp.Compare(a.sequence, b.sequence) })
	for _, c := range l.history {
		if earlier := l.latest[c.Name]; earlier != nil {
			c.holders = earlier.holders
		}
		if c.From != "" && !c.isOpen() && c.From != c.To {
			c.holders++
		}
		l.latest[c.Name], l.sequence = c, c.sequence
	}
}
