package statestore

import (
	"container/heap"
	"time"
)

func (e *entry) due(now Instant) bool { return e.place != 0 && now.Elapsed >= e.deadline }

// Expire removes up to limit expired keys and returns their notifications, in the order of
// the deadlines, and the records to keep. more says that there may be
// further expired keys: call Expire again. The limit keeps each call short when many keys
// expire at once.
func (s *Store) Expire(now Instant, limit int) (effects Effects, more bool) {
	for range limit {
		if !s.expireOne(now, &effects) {
			return effects, false
		}
	}
	return effects, true
}

// expireOne takes a step towards the removal of one expired key, and reports false if there is none.
func (s *Store) expireOne(now Instant, effects *Effects) (found bool) {
	if len(s.expiries) == 0 || s.expiries[0].filed > now.Elapsed {
		return false
	}
	if first := s.expiries[0]; first.filed < first.deadline {
		s.expiries.file(first) // even if it is due: keys with earlier deadlines go first
	} else {
		s.expired(now, first, effects)
	}
	return true
}

// expirySteps is how many expired keys one SET removes or files anew at most. All other requests wait
// meanwhile: without a bound, one SET took half a second in a store with a million keys.
const expirySteps = 256

// removeExpired removes expired keys until a SET exceeds no limit, and reports whether it does: expired keys do not
// count, whether or not Expire has removed them. Where more than expirySteps of them would have to go, the SET
// exceeds the limit until Expire has removed them.
func (s *Store) removeExpired(now Instant, current *entry, command *Command, effects *Effects) bool {
	for range expirySteps {
		if !s.overQuota(current, command) {
			return true
		}
		if !s.expireOne(now, effects) {
			return false
		}
	}
	return !s.overQuota(current, command)
}

// NextExpiry returns the time, on Instant.Elapsed, at which to call Expire again, and false
// if no key expires. It may be earlier than the first deadline, and up to a millisecond
// later, so that keys which expire close together go together.
func (s *Store) NextExpiry() (time.Duration, bool) {
	if len(s.expiries) == 0 {
		return 0, false
	}
	return saturatingAdd(s.expiries[0].filed, time.Millisecond-1).Truncate(time.Millisecond), true
}

// expiries is a heap of the keys that expire, by entry.filed. Most leases are renewed many times before they expire.
// So a key with a later deadline keeps its place until the time of that comes.
type expiries []*entry

func (x *expiries) schedule(e *entry, deadline time.Duration) {
	e.deadline = deadline
	switch {
	case e.place == 0:
		e.filed = deadline
		heap.Push(x, e)
	case deadline < e.filed:
		x.file(e)
	}
}

// file gives an entry its place by its present deadline.
func (x *expiries) file(e *entry) {
	e.filed = e.deadline
	heap.Fix(x, e.place-1)
}

func (x *expiries) cancel(e *entry) {
	if e.place != 0 {
		heap.Remove(x, e.place-1)
	}
}

func (x expiries) Len() int           { return len(x) }
func (x expiries) Less(i, j int) bool { return x[i].filed < x[j].filed }

func (x expiries) Swap(i, j int) {
	x[i], x[j] = x[j], x[i]
	x[i].place, x[j].place = i+1, j+1
}

// Push implements [heap.Interface].
func (x *expiries) Push(e any) {
	*x = append(*x, e.(*entry))
	e.(*entry).place = len(*x)
}

// Pop implements [heap.Interface].
func (x *expiries) Pop() any {
	last := len(*x) - 1
	e := (*x)[last]
	(*x)[last] = nil
	*x, e.place = (*x)[:last], 0
	return e
}
