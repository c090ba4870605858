package statestore

// Usage is what a store holds.
type Usage struct {
	// Keys is the number of keys that have a value, those included whose time has passed
	// but which Expire has not yet removed.
	Keys int
	// Fences is the number of keys that are gone and whose fence is kept, in a strict store.
	// Options.MaxKeys limits Keys and Fences together.
	Fences int
	// Bytes are the lengths of keys and values, and of the names of kept fences, as
	// Options.MaxBytes counts them.
	Bytes int64
	// Watches is the number of watches of all clients. WatchBytes is what they take up, as
	// Options.MaxAllWatchBytes counts it.
	Watches    int
	WatchBytes int64
	// Remembered is the number of requests that are remembered, of all clients, and
	// RememberedBytes is about what they take up.
	Remembered      int
	RememberedBytes int64
}

// Usage returns what the store holds now. It takes no longer for a store that holds more.
func (s *Store) Usage() Usage {
	return Usage{
		Keys:            len(s.entries),
		Fences:          len(s.fences),
		Bytes:           s.bytes,
		Watches:         s.watches.count,
		WatchBytes:      s.watches.bytes,
		Remembered:      s.sessions.count,
		RememberedBytes: int64(s.sessions.count) * rememberedCost,
	}
}
