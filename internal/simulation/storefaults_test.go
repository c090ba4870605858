package simulation

import (
	"context"
	"slices"
	"time"

	"github.com/tenurelock/tenure/hlc"
	"github.com/tenurelock/tenure/internal/await"
	"github.com/tenurelock/tenure/internal/engine"
	"github.com/tenurelock/tenure/statestore"
)

// stepWall makes the wall clock of the store's machine differ from true time.
func (s *simulation) stepWall(by time.Duration) {
	s.store.SetWall(func() time.Time { return time.Now().Add(by) })
}

// restart puts an empty store in the place of the present one. Each process connects again
// after a time of its own.
func (s *simulation) restart() {
	defer s.takeStore()()
	s.crashes++ // it need not start again
	options := s.nextStore()
	s.tracef("the store is restarted, with a hold-off of %v", s.holdOff)
	restart := s.store.Restart
	if !s.anonymous && s.random.IntN(2) == 0 {
		restart = s.store.Replace // as with a store that is attached to a broker: connections stay
	}
	if err := restart(options); err != nil {
		panic(err)
	}
	for _, n := range s.nodes {
		time.AfterFunc(time.Duration(s.random.Int64N(int64(5*time.Second))), n.current().reconnect)
	}
}

// isDurable reports whether the store has a journal.
func (s *simulation) isDurable() bool { return s.journal != nil }

// crashStore ends a durable store after a while, within a commit, if one is under way: some of
// its groups are kept. The store starts again when it was down for a while; if it moves, on a
// machine with another clock. Commits are slow in the second before, so nearly every crash meets one.
// It reports false, and does nothing, if it would not be calm in time.
func (h hit) crashStore(after, down time.Duration, moves bool) bool {
	after = max(after, 0)
	if h.elapsed()+after+down+3*time.Second > calmAt {
		return false
	}
	time.AfterFunc(after, func() { h.journal.SetLatency(2 * time.Second) })
	kept := h.random.IntN(4)
	wall := h.amount * 100
	wait := time.Duration(h.random.Int64N(int64(time.Second)))
	delays := make([]time.Duration, len(h.nodes))
	for i := range delays {
		delays[i] = time.Duration(h.random.Int64N(int64(time.Second)))
	}
	time.AfterFunc(after+wait, func() {
		defer h.takeStore()()
		h.crashes++
		crash := h.crashes
		h.tracef("the store crashes, %d groups are kept", kept)
		h.store.Crash(kept)
		h.journal.SetLatency(commitTime)
		time.AfterFunc(down, func() {
			defer h.takeStore()()
			if crash == h.crashes { // else it started meanwhile
				if moves {
					h.stepWall(wall)
				}
				h.recoverStore(delays)
			}
		})
	})
	return true
}

// takeStore waits until no other goroutine ends or starts the store. The function that it
// returns ends the turn of the caller. A mutex would stop the virtual time, which a commit needs.
func (s *simulation) takeStore() (leave func()) {
	s.storeTurn <- struct{}{}
	return func() { await.Receive(s.storeTurn) }
}

// recoverStore starts a store with the data of the one that crashed. Each process connects
// again after its delay.
func (s *simulation) recoverStore(delays []time.Duration) {
	s.tracef("the store starts again")
	s.checker.recovered(slices.Collect(s.journal.Records()))
	if err := s.store.Recover(); err != nil {
		panic(err)
	}
	for i, n := range s.nodes {
		time.AfterFunc(delays[i], n.current().reconnect)
	}
}

// restoreBackup puts a store with earlier records, which it changes as tenure restore does, in the place of the
// present one, whose disk is lost. The hold-off covers what was granted since the backup. If free is true, the backup
// is of a time at which the lease was free.
func (h hit) restoreBackup(backup []statestore.Record, free bool) {
	if h.elapsed()+3*ttl > calmAt {
		return // the hold-off would not be over in time
	}
	defer h.takeStore()()
	h.crashes++ // it need not start again
	h.stores++
	h.tracef("a backup is restored")
	h.store.Crash(0)
	h.journal.Erase()
	bound := hlc.Timestamp{Wall: time.Now().Add(statestore.MaxSkew).UnixMilli()}
	records := statestore.Group{statestore.Item{Kind: statestore.KindIdentity, Identity: engine.NewIdentity(), HoldOff: true}.Record()}
	for _, record := range backup {
		item, err := record.Decode()
		if err != nil {
			panic(err)
		}
		if item.Version.Compare(bound) > 0 {
			bound = hlc.Timestamp{Wall: item.Version.Wall, Counter: item.Version.Counter}
		}
		if item.Kind != statestore.KindIdentity && item.Kind != statestore.KindBound && (item.Key != lockKey || !free) {
			records = append(records, record)
		}
	}
	records = append(records, statestore.Item{Kind: statestore.KindBound, Version: bound}.Record())
	if err := h.journal.Open().Commit(context.Background(), []statestore.Group{records}); err != nil {
		panic(err)
	}
	h.journal.SetLatency(commitTime)
	h.recoverStore(make([]time.Duration, len(h.nodes)))
}

// authorized is the access rule of the store: a node that is denied may do nothing.
func (s *simulation) authorized(client string, _ statestore.Verb, _ string) bool {
	for _, n := range s.nodes {
		if client == n.id {
			return n.denied.Load() == 0
		}
	}
	return true
}
