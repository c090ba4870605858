package statestore

// Usage is what a store holds.
type Usage struct {
	// Keys is the number of keys that have a value, including expired keys that Expire
	// has not removed yet.
	Keys int
	// Fences is the number of deleted keys whose fence a strict store keeps.
	// Options.MaxKeys limits Keys and Fences together.
	Fences int
	// Bytes is the sum of the lengths of keys, values and fencing tokens, and of the names of
	// kept fences, as Options.MaxBytes counts them.
	Bytes int64
	// Watches is the number of watches of all clients, and WatchBytes the memory they
	// use, as Options.MaxAllWatchBytes counts it.
	Watches    int
	WatchBytes int64
	// DedupEntries is the number of requests of all clients that a redelivery would be
	// recognized for, see Options.DedupWindow. DedupBytes is about the memory they use.
	DedupEntries int
	DedupBytes   int64
	// ObsoleteRecords is how many records the journal has of sessions that have ended, see
	// Store.RemoveObsolete. Each takes eight bytes of memory.
	ObsoleteRecords int
}

// Usage returns what the store holds now. The call takes constant time.
func (s *Store) Usage() Usage {
	return Usage{
		Keys:            len(s.entries),
		Fences:          len(s.fences),
		Bytes:           s.bytes,
		Watches:         s.watches.count,
		WatchBytes:      s.watches.bytes,
		DedupEntries:    s.sessions.count,
		DedupBytes:      int64(s.sessions.count) * dedupEntryBytes,
		ObsoleteRecords: len(s.sessions.obsolete),
	}
}

// SetFull says whether the journal is full, see Bounded: then each SET that needs more space exceeds
// a limit.
func (s *Store) SetFull(full bool) { s.full = full }

// overQuota reports whether a SET would exceed a limit of the store. A SET of the value that
// the key already has, such as a renewal, does so only with a longer token.
func (s *Store) overQuota(current *entry, command *Command) bool {
	token := tokenGrows(s.protection(current, command), command)
	grows := token + int64(len(command.Value))
	_, fenced := s.fences[command.Key]
	switch {
	case current != nil && current.value == string(command.Value):
		grows = token
	case exceeds(int64(len(command.Value)), int64(s.options.MaxValue)):
		return true
	case current != nil:
		grows -= int64(len(current.value))
	case !fenced && exceeds(int64(len(s.entries)+len(s.fences)+1), int64(s.options.MaxKeys)):
		return true
	case !fenced:
		grows += int64(len(command.Key))
	}
	return s.overBytes(grows)
}

// overBytes reports whether the store would exceed Options.MaxBytes, or its journal is full, if it grew
// by some bytes.
func (s *Store) overBytes(grows int64) bool {
	return grows > 0 && (s.full || exceeds(s.bytes+grows, s.options.MaxBytes))
}
