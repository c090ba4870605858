package statestore

import (
	"container/heap"
	"time"
)

func (e *entry) due(now Instant) bool { return e.next != nil && now.Elapsed >= e.deadline }

// Expire removes up to limit expired keys and returns their notifications, in the order of
// the deadlines to the millisecond, and the records to keep. more says that there may be
// further expired keys: call Expire again. The limit keeps each call short when many keys
// expire at once.
func (s *Store) Expire(now Instant, limit int) (effects Effects, more bool) {
	more = s.expire(now, limit, &effects)
	return effects, more
}

func (s *Store) expire(now Instant, limit int, effects *Effects) (more bool) {
	for ; limit > 0; limit-- {
		first, ok := s.expiries.first()
		if !ok || first.time() > now.Elapsed {
			return false
		}
		earliest := s.expiries.lists[first]
		if earliest.filed < tickOf(earliest.deadline) {
			s.expiries.refile(earliest) // even if it is due: keys with earlier deadlines go first
		} else {
			s.expired(now, earliest, effects)
		}
	}
	return true
}

// roomSteps is how many expired keys one SET removes or files anew at most, and at how many keys it looks for
// those that expired within the current millisecond. All other requests wait meanwhile: without a bound, one SET
// took half a second in a store with a million keys.
const roomSteps = 256

// makeRoom removes expired keys until a SET exceeds no limit, and reports whether it does: expired keys do not
// count, whether or not Expire has removed them. Where more than roomSteps of them would have to go, the SET
// exceeds the limit until Expire has removed them.
func (s *Store) makeRoom(now Instant, current *entry, command *Command, effects *Effects) bool {
	for range roomSteps {
		if !s.overQuota(current, command) {
			return true
		}
		if !s.expireOne(now, effects) {
			return false
		}
	}
	return !s.overQuota(current, command)
}

// expireOne takes a step towards the removal of one expired key, and reports false if there is none. Unlike
// Expire it is exact to the nanosecond: it also finds keys that expired within the current millisecond, among
// the first ones of that.
func (s *Store) expireOne(now Instant, effects *Effects) (found bool) {
	if s.expire(now, 1, effects) {
		return true
	}
	e := s.expiries.lists[tickOf(now.Elapsed)]
	for first, looked := e, 0; e != nil && looked < roomSteps; looked++ {
		if e.due(now) {
			s.expired(now, e, effects)
			return true
		}
		if e = e.next; e == first {
			break
		}
	}
	return false
}

// NextExpiry returns the time, on Instant.Elapsed, at which to call Expire again, and false
// if no key expires. It may be earlier than the first deadline, and less than a millisecond
// later.
func (s *Store) NextExpiry() (time.Duration, bool) {
	first, ok := s.expiries.first()
	return first.time(), ok
}

// expiries is an index of the keys that expire, by the millisecond of their deadline.
//
// In a heap of a million keys, taking one out costs a microsecond, nearly all of it waiting
// for memory. Here the heap holds milliseconds, each with a list of its keys: adding and
// removing a key is O(1).
//
// Most leases are renewed many times before they expire. So a key with a later deadline stays
// in its list until the time of that list comes, and then moves to the list of its deadline.
type expiries struct {
	lists map[tick]*entry // the first entry of each circular list
	ticks tickHeap        // of the lists, and of some lists that are gone
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

// latestTick is the largest Duration that is a whole number of milliseconds.
const latestTick = time.Duration(1<<63-1) / time.Millisecond * time.Millisecond

func (t tick) time() time.Duration { return time.Duration(t) * time.Millisecond }

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
		x.ticks.add(e.filed)
		return
	}
	e.next, e.previous = first, first.previous
	first.previous.next, first.previous = e, e
}

// cancel takes an entry out. Its tick stays in the heap until its time comes, or until
// compact removes it.
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

// compact removes the ticks without a list from the heap, if they are more than half of it.
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
		x.ticks.removeFirst()
	}
	return 0, false
}

// tickHeap implements heap.Interface. Its Push and Pop would allocate for each tick, so add and
// removeFirst take their place.
type tickHeap []tick

func (h *tickHeap) add(t tick) {
	*h = append(*h, t)
	heap.Fix(h, len(*h)-1)
}

func (h *tickHeap) removeFirst() {
	last := len(*h) - 1
	(*h)[0] = (*h)[last]
	*h = (*h)[:last]
	if last > 0 {
		heap.Fix(h, 0)
	}
}

func (h *tickHeap) Len() int           { return len(*h) }
func (h *tickHeap) Less(i, j int) bool { return (*h)[i] < (*h)[j] }
func (h *tickHeap) Swap(i, j int)      { (*h)[i], (*h)[j] = (*h)[j], (*h)[i] }
func (h *tickHeap) Push(any)           { panic("statestore: use add") }
func (h *tickHeap) Pop() any           { panic("statestore: use removeFirst") }
