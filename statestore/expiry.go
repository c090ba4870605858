package statestore

import (
	"container/heap"
	"time"
)

func (e *entry) due(now Instant) bool { return e.position >= 0 && now.Elapsed >= e.deadline }

// Expire removes up to limit keys whose time has passed, earliest first, and
// returns the notifications. A caller that got work done should call again:
// the limit keeps one call short while many keys fall due at once.
func (s *Store) Expire(now Instant, limit int) (notifications []Notification, more bool) {
	for ; limit > 0; limit-- {
		earliest := s.expiries.earliest()
		if earliest == nil || earliest.filed > now.Elapsed {
			return notifications, false
		}
		if earliest.filed < earliest.deadline {
			s.expiries.refile(earliest) // due or not: keys with deadlines in between go first
		} else {
			notifications = s.remove(notifications, earliest)
		}
	}
	return notifications, true
}

// NextExpiry returns the time, on Instant.Elapsed, by which Expire should run
// again, and false when no key expires. It may be earlier than the first real
// expiry, never later.
func (s *Store) NextExpiry() (time.Duration, bool) {
	earliest := s.expiries.earliest()
	if earliest == nil {
		return 0, false
	}
	return earliest.filed, true
}

// expiries is a heap of the keys that expire, by the deadline under which each
// was filed.
//
// A lease is renewed many times for each time that it expires, and every
// renewal moves its deadline back. So a later deadline leaves the entry where
// it is; the entry is filed again only when its old deadline comes up. That
// makes a renewal O(1) and keeps one heap slot for each key.
type expiries struct{ byDeadline []*entry }

func (x *expiries) schedule(e *entry, deadline time.Duration) {
	e.deadline = deadline
	switch {
	case e.position < 0:
		e.filed = deadline
		heap.Push(x, e)
	case deadline < e.filed:
		x.refile(e)
	}
}

func (x *expiries) refile(e *entry) {
	e.filed = e.deadline
	heap.Fix(x, e.position)
}

func (x *expiries) cancel(e *entry) {
	if e.position >= 0 {
		heap.Remove(x, e.position)
	}
}

func (x *expiries) earliest() *entry {
	if len(x.byDeadline) == 0 {
		return nil
	}
	return x.byDeadline[0]
}

// Len, Less, Swap, Push and Pop implement heap.Interface.

func (x *expiries) Len() int           { return len(x.byDeadline) }
func (x *expiries) Less(i, j int) bool { return x.byDeadline[i].filed < x.byDeadline[j].filed }

func (x *expiries) Swap(i, j int) {
	x.byDeadline[i], x.byDeadline[j] = x.byDeadline[j], x.byDeadline[i]
	x.byDeadline[i].position, x.byDeadline[j].position = i, j
}

func (x *expiries) Push(e any) {
	added := e.(*entry)
	added.position = len(x.byDeadline)
	x.byDeadline = append(x.byDeadline, added)
}

func (x *expiries) Pop() any {
	last := len(x.byDeadline) - 1
	removed := x.byDeadline[last]
	x.byDeadline[last] = nil
	x.byDeadline = x.byDeadline[:last]
	removed.position = -1
	return removed
}
