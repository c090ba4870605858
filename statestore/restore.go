package statestore

import (
	"fmt"
	"iter"
	"slices"

	"github.com/tenurelock/tenure/hlc"
)

// restoring is what a store knows of the records of an earlier one.
type restoring struct {
	identity, bound bool // there was a record of that kind
	used            bool // there was a record that a command caused
	replies         map[string][]restoredReply
}

// Restore takes one record of an earlier store. Call it for each record that a journal loads,
// in any order, before any other method, and then call Restored. Limits do not apply: a store
// with lower ones than the earlier store keeps what is there.
//
// The error matches ErrDamaged or ErrNewerFormat, or says that the data needs Options.Strict.
// The store must not be used after an error. Restore does not keep the bytes of the record.
func (s *Store) Restore(record Record) error {
	item, err := record.Decode()
	if err != nil {
		return err
	}
	from := &s.restoring
	from.used = from.used || item.Kind != KindIdentity && item.Kind != KindBound
	switch item.Kind {
	case KindKey:
		s.restoreKey(&item)
	case KindFence:
		if !s.options.Strict {
			return fmt.Errorf("statestore: record %.64q: it is the fence of the deleted key %.64q, which a strict store keeps "+
				"and others would forget: start the store with Options.Strict (the flag --strict)", record.ID, item.Key)
		}
		s.keepFence(item.Key, item.Token)
	case KindReply:
		from.replies[item.Client] = append(from.replies[item.Client], restoredReply{item.Sequence, item.Session, dedupEntry{
			fingerprint: item.request, verb: item.Verb, outcome: item.Outcome, slot: item.slot, version: stampOf(item.Version),
		}})
	case KindChange:
		c := &change{HolderChange: item.Change, slot: item.slot, sequence: item.Sequence}
		c.by = s.leases.source(item.Client, item.User)
		c.by.changes++
		s.leases.history = append(s.leases.history, c)
	case KindIdentity:
		from.identity = true
		s.options.Identity, s.holding = item.Identity, item.HoldOff
	case KindBound:
		from.bound = true
		s.versions.clock = stampOf(item.Version)
	}
	return nil
}

func (s *Store) restoreKey(item *Item) {
	e := &entry{key: item.Key, value: item.Value, version: stampOf(item.Version), willed: item.Willed}
	e.lifetime = item.Lifetime
	e.setToken(item.Token)
	s.entries[e.key] = e
	s.bytes += e.size()
	if item.Since != 0 {
		e.lease = &lease{since: item.Since, ttl: item.Lifetime}
		s.leases.hold(e, s.leases.source(item.Client, item.User))
	}
}

// Restored ends the loading, also of a journal without records. It returns the first group to
// keep: the identity and the bound of the versions. Until it is durable, no reply may leave.
//
// former is what Load returned, at now. Keys with a lifetime get a new version, above every version that was issued,
// because they may have been renewed without a record. Their whole lifetimes begin when the store before could have
// answered last: no client believes in a later renewal. Keys that ended with their connections (see Command.Willed)
// expire now, or later if former is Silent. If there were records, the identity of the data replaces
// Options.Identity. If a command caused any of them, there is a hold-off only if the hold-off of the earlier store
// was not over.
//
// The error matches ErrDamaged; the store must not be used then.
func (s *Store) Restored(now Instant, former Former) (Group, error) {
	from := s.restoring
	s.restoring = restoring{}
	bound := s.versions.clock
	switch {
	case !from.identity && !from.bound && !from.used:
		s.holding = true
	case !from.identity:
		return nil, fmt.Errorf("statestore: %w", damaged("it has no identity"))
	case !from.bound:
		return nil, fmt.Errorf("statestore: %w", damaged("it has no bound of the versions"))
	case !from.used:
		s.holding = true // perhaps it began without Options.HoldOff by mistake, and granted nothing
	case !s.holding:
		s.options.HoldOff = 0
	}
	s.continues = from.used && !s.holding
	s.holding = s.holding && s.options.HoldOff > 0
	idle := max(former.Idle, 0)
	for _, e := range s.entries {
		if e.version.above(bound) {
			return nil, fmt.Errorf("statestore: %w",
				damaged("the version %v of key %.64q is above the bound %v", e.version, e.key, bound))
		}
		if e.lifetime == 0 && !e.willed {
			continue
		}
		version, err := next(s.versions.clock, hlc.Timestamp{}, now.WallMillis)
		if err != nil {
			return nil, fmt.Errorf("statestore: %w", damaged("no version is left above the bound %v", bound))
		}
		s.versions.clock, e.version = version, version
		left := e.lifetime
		switch {
		case e.willed && former.Silent:
			left /= 2
		case e.willed:
			left = idle
		}
		if e.willed && e.lease != nil { // its connection has ended with the process
			e.lease.holder.lost = Instant{WallMillis: now.WallMillis - idle.Milliseconds()}.recorded()
		}
		s.expiries.schedule(e, saturatingAdd(now.Elapsed-idle, left))
	}
	s.earlier = s.versions.clock
	s.restoredChanges()
	for client, replies := range from.replies {
		s.sessions.restore(client, replies)
	}
	s.versions.move(now)
	if !s.options.Journaled {
		return nil, nil
	}
	return Group{s.identityRecord(), s.versions.record()}, nil
}

// Continues reports whether the store goes on with the data of an earlier one, without a hold-off:
// whether Restored found keys, fences or replies, neither from a backup nor of a store that
// had not ended its hold-off.
func (s *Store) Continues() bool { return s.continues }

// RestoredUntil returns the wall clock of the versions that Restored gave, in Unix milliseconds; 0: it gave none.
// After a crash it is ahead, and clients send it back until their own clocks have reached it.
func (s *Store) RestoredUntil() int64 { return s.earlier.wall }

// RestoredClients returns the clients that have remembered replies from before Restored, in
// order. A client that does not come back needs EndSession, or a journal has its replies for
// ever.
func (s *Store) RestoredClients() []string {
	var clients []string
	for client, session := range s.sessions.byClient {
		if session.restored {
			clients = append(clients, client)
		}
	}
	slices.Sort(clients)
	return clients
}

// Snapshot returns records of which a store is restored that has the same identity, keys and fences, and issues higher
// versions.
func (s *Store) Snapshot() iter.Seq[Record] {
	records := []Record{s.identityRecord(), s.versions.record()}
	for key := range s.entries {
		records = append(records, s.keyRecord(key))
	}
	for key := range s.fences {
		records = append(records, s.keyRecord(key))
	}
	return slices.Values(records)
}

func (s *Store) identityRecord() Record {
	return Item{Kind: KindIdentity, Identity: s.options.Identity, HoldOff: s.holding}.Record()
}

// keyRecord returns what a journal must have about a key: its value, its fence if the store
// keeps one, or that it is gone.
func (s *Store) keyRecord(key string) Record {
	e := s.entries[key]
	if fence, fenced := s.fences[key]; fenced {
		return Item{Kind: KindFence, Key: key, Token: fence}.Record()
	}
	if e == nil {
		return Item{Kind: KindKey, Key: key}.gone()
	}
	item := Item{
		Kind: KindKey, Key: key, Value: e.value, Version: e.version.timestamp(), Token: e.token(),
		Lifetime: e.lifetime, Willed: e.willed,
	}
	if l := e.lease; l != nil {
		item.Client, item.User, item.Since = l.holder.client, l.holder.user, l.since
	}
	return item.Record()
}
