package statestore

import (
	"iter"

	"github.com/tenurelock/tenure/hlc"
)

// Restore takes one record of an earlier store. Call it for each record that the journal
// loads, in any order, before any other method, and then Restored.
func (s *Store) Restore(record Record) error { return nil }

// Restored ends the loading: also of a journal without records. It returns the first group to
// keep: the identity and the bound of the versions. Until it is durable, no reply may leave.
func (s *Store) Restored(now Instant) Group { return nil }

// RestoredClients returns the clients whose remembered replies were restored, in order. Their
// sessions have not ended; a client that does not come back needs EndSession, or its replies
// stay for ever.
func (s *Store) RestoredClients() []string { return nil }

// Reserve moves the bound of the versions ahead when little is left of it, and returns the
// group to keep. It returns nil if enough is left, which takes a few nanoseconds: call it after
// each Apply. No reply and no notification waits for the group.
func (s *Store) Reserve(now Instant) Group { return nil }

// Bound returns the bound of the versions as the groups have it that the store returned so far.
func (s *Store) Bound() hlc.Timestamp { return hlc.Timestamp{} }

// Committed says that the groups are durable that the store had returned when Bound returned
// bound. Until then each SET whose version is above the bound that is durable has a record of
// its own, a renewal too.
func (s *Store) Committed(bound hlc.Timestamp) {}

// Seal returns the last group of a store that stops: the exact clock as the bound, so that the
// next store does not start ahead. Empty if the bound is exact already.
func (s *Store) Seal() Group { return nil }

// Snapshot returns all records of the store, in any order: what a journal has that kept every
// group. The store must not change meanwhile.
func (s *Store) Snapshot() iter.Seq[Record] { return func(func(Record) bool) {} }
