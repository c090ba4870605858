package statestore

import (
	"container/heap"
	"time"
)

func (e *entry) due(now Instant) bool { return e.next != nil && now.Elapsed >= e.deadline }

// Expire removes up to limit keys whose time has passed and returns the
// notifications: the earlier ones first, as far as they are a millisecond apart. A
// caller that got more should call again: the limit keeps one call short while many
// keys fall due at once.
func (s *Store) Expire(now Instant, limit int) (notifications []Notification, more bool) {
	for ; limit > 0; limit-- {
		earliest := s.expiries.earliest(now)
		if earliest == nil {
			return notifications, false
		}
		if earliest.filed < tickOf(earliest.deadline) {
			s.expiries.refile(earliest) // due or not: keys with deadlines in between go first
		} else {
			notifications = s.remove(notifications, earliest)
		}
	}
	return notifications, true
}

// expireOne is Expire for one key, down to the nanosecond: it looks at the keys of the
// millisecond that is not over too.
func (s *Store) expireOne(now Instant) (notifications []Notification, found bool) {
	if notifications, found = s.Expire(now, 1); found {
		return notifications, true
	}
	first := s.expiries.lists[tickOf(now.Elapsed)]
	for e := first; e != nil; {
		if e.due(now) {
			return s.remove(nil, e), true
		}
		if e = e.next; e == first {
			break
		}
	}
	return nil, false
}

// NextExpiry returns the time, on Instant.Elapsed, by which Expire should run again,
// and false when no key expires. It may be earlier than the first real expiry, and
// less than a millisecond later.
func (s *Store) NextExpiry() (time.Duration, bool) {
	first, ok := s.expiries.first()
	return first.time(), ok
}

// expiries files the keys that expire by the millisecond after which they do.
//
// A million keys in a heap cost a microsecond each to take out, nearly all of it
// waiting for memory. Here the heap holds milliseconds, each of which has a list of
// its keys: filing a key and taking it out are O(1), and keys that fall due together
// lie in one list.
//
// A lease is renewed many times for each time that it expires, and every renewal
// moves its deadline back. So a later deadline leaves the key where it is filed; it is
// filed anew only when its old time comes.
type expiries struct {
	lists map[tick]*entry // the first entry of each circular list
	ticks tickHeap        // of the lists, and of some that are empty by now
}

// tick is a number of milliseconds on Instant.Elapsed.
type tick int64

// tickOf returns the first tick at which a deadline has passed.
func tickOf(deadline time.Duration) tick {
	t := tick(deadline / time.Millisecond)
	if t.time() < deadline && deadline < latestTick {
		t++
	}
	return t
}

// latestTick is the last time that is a whole number of milliseconds.
const latestTick = time.Duration(1<<63-1) / time.Millisecond * time.Millisecond

func (t tick) time() time.Duration { return time.Duration(t) * time.Millisecond }

func newExpiries() expiries { return expiries{lists: make(map[tick]*entry)} }

func (x *expiries) schedule(e *entry, deadline time.Duration) {
	e.deadline = deadline
	switch {
	case e.next == nil:
		x.file(e)
	case tickOf(deadline) < e.filed:
		x.refile(e)
	}
}

func (x *expiries) refile(e *entry) {
	x.cancel(e)
	x.file(e)
}

// file puts an entry at the end of the list of its tick.
func (x *expiries) file(e *entry) {
	e.filed = tickOf(e.deadline)
	first := x.lists[e.filed]
	if first == nil {
		e.next, e.previous = e, e
		x.lists[e.filed] = e
		heap.Push(&x.ticks, e.filed)
		return
	}
	e.next, e.previous = first, first.previous
	first.previous.next, first.previous = e, e
}

// cancel takes an entry out. Its tick stays in the heap until its time comes, unless
// there are more such ticks than others.
func (x *expiries) cancel(e *entry) {
	if e.next == nil {
		return
	}
	if e.next == e {
		delete(x.lists, e.filed)
		x.compact()
	} else {
		if x.lists[e.filed] == e {
			x.lists[e.filed] = e.next
		}
		e.next.previous, e.previous.next = e.previous, e.next
	}
	e.next, e.previous = nil, nil
}

func (x *expiries) compact() {
	const negligible = 1024
	if len(x.ticks) < 2*len(x.lists)+negligible {
		return
	}
	x.ticks = x.ticks[:0]
	for t := range x.lists {
		x.ticks = append(x.ticks, t)
	}
	heap.Init(&x.ticks)
}

// first returns the earliest tick that has a list.
func (x *expiries) first() (tick, bool) {
	for len(x.ticks) > 0 {
		if x.lists[x.ticks[0]] != nil {
			return x.ticks[0], true
		}
		heap.Pop(&x.ticks)
	}
	return 0, false
}

// earliest returns an entry that was filed under a time that has come, or nil.
func (x *expiries) earliest(now Instant) *entry {
	if first, ok := x.first(); ok && first.time() <= now.Elapsed {
		return x.lists[first]
	}
	return nil
}

// tickHeap implements heap.Interface.
type tickHeap []tick

func (h tickHeap) Len() int           { return len(h) }
func (h tickHeap) Less(i, j int) bool { return h[i] < h[j] }
func (h tickHeap) Swap(i, j int)      { h[i], h[j] = h[j], h[i] }
func (h *tickHeap) Push(t any)        { *h = append(*h, t.(tick)) }

func (h *tickHeap) Pop() any {
	last := len(*h) - 1
	popped := (*h)[last]
	*h = (*h)[:last]
	return popped
}
