package lease

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"slices"
	"time"

	"github.com/tenurelock/tenure/hlc"
)

// keyed builds the key of a state: what decides its future, and nothing else. Times are relative to the
// clock by which they are read, and those that have passed are all the same. Versions are compared and never
// counted with, so their order is enough: each becomes its rank. Whether the store's clock is ahead of its
// wall clock, and how far, decides the next version too. Of the values of a holder, how many attempts ago they were made
// tells them apart.
//
// Holders are alike, so their order means nothing: of the keys for all orders the least counts. Only requests of
// one holder have an order, and replies to one holder.
type keyed struct {
	key      []byte
	w        *world
	versions []hlc.Timestamp
	order    []uint8 // the holders in the order of this key
}

func (w *world) key(key []byte) []byte {
	k := &keyed{w: w}
	k.collect()
	var least []byte
	for _, k.order = range orders[len(w.holders)] {
		k.key = k.key[:0]
		k.build()
		if least == nil || bytes.Compare(k.key, least) < 0 {
			least = append(least[:0], k.key...)
		}
	}
	return append(key, least...)
}

var orders = [][][]uint8{
	2: {{0, 1}, {1, 0}},
	3: {{0, 1, 2}, {0, 2, 1}, {1, 0, 2}, {1, 2, 0}, {2, 0, 1}, {2, 1, 0}},
}

func (k *keyed) build() {
	w := k.w
	k.bytes(w.faults, uint8(min(w.idle, patience+1)), flags(w.lostData, w.forced, w.lagged))
	k.version(hlc.Timestamp(w.latest))
	k.version(hlc.Timestamp(w.written))
	k.store()
	for _, id := range k.order {
		h := &w.holders[id]
		k.holder(h)
		var late [][]byte
		for _, r := range w.requests {
			if r.value.holder != id {
				continue
			}
			from := len(k.key)
			k.bytes(uint8(r.kind), r.store, flags(r.late, r.again, k.awaited(h, r.kind, r.call)), r.same)
			k.value(r.value)
			k.version(hlc.Timestamp(r.token))
			if r.late {
				late = append(late, slices.Clone(k.key[from:]))
				k.key = k.key[:from]
			}
		}
		slices.SortFunc(late, bytes.Compare)
		for _, r := range late {
			k.bytes(r...)
		}
		k.bytes(0xfe)
		for _, r := range w.replies {
			if r.holder != id {
				continue
			}
			k.bytes(uint8(r.kind), r.store, flags(k.awaited(h, r.kind, r.call)))
			k.text(classOf(r.err))
			k.version(r.version)
			k.value(r.value)
		}
		k.bytes(0xfd)
	}
}

// awaited reports whether a holder waits for the answer to a call.
func (k *keyed) awaited(h *holder, of kind, call uint8) bool {
	if of == writes {
		return h.writing && call == h.write
	}
	return h.underWay && call == h.call
}

// collect collects the versions of the state.
func (k *keyed) collect() {
	w := k.w
	lease, protected := &w.store.lease, &w.store.protected
	k.versions = append(k.versions, hlc.Timestamp{}, hlc.Timestamp(w.latest), hlc.Timestamp(w.written), lease.Version, hlc.Timestamp(protected.Token), w.store.clock)
	for _, h := range w.holders {
		k.versions = append(k.versions, hlc.Timestamp(h.token), h.hint.version, h.waiting.seen)
	}
	for _, r := range w.requests {
		k.versions = append(k.versions, hlc.Timestamp(r.token))
	}
	for _, r := range w.replies {
		k.versions = append(k.versions, r.version)
	}
	slices.SortFunc(k.versions, hlc.Timestamp.Compare)
	k.versions = slices.Compact(k.versions)
}

func (k *keyed) bytes(b ...uint8) { k.key = append(k.key, b...) }

func (k *keyed) text(s string) { k.key = append(append(k.key, uint8(len(s))), s...) }

func (k *keyed) version(v hlc.Timestamp) {
	rank, _ := slices.BinarySearchFunc(k.versions, v, hlc.Timestamp.Compare)
	k.bytes(uint8(rank))
}

func (k *keyed) value(v value) {
	if v == (value{}) {
		k.bytes(0xff)
		return
	}
	k.bytes(uint8(slices.Index(k.order, v.holder)), k.w.holders[v.holder].attempt-v.attempt)
}

// until adds how long it is from now to a time.
func (k *keyed) until(at, now time.Duration) {
	if at != never {
		at -= now
	}
	k.key = binary.AppendUvarint(k.key, uint64(max(at, 0)))
}

func flags(set ...bool) (b uint8) {
	for i, s := range set {
		if s {
			b |= 1 << i
		}
	}
	return b
}

func (k *keyed) store() {
	s := &k.w.store
	lease, protected := &s.lease, &s.protected
	k.value(valueOf(lease.Value))
	k.version(lease.Version)
	k.version(hlc.Timestamp(protected.Token))
	k.version(s.clock)
	wall := started + int64(k.w.now+s.wall)*1000
	ahead := cmp.Compare(s.clock.Wall, wall)
	held := s.deadline
	if lease.Value == "" {
		held = 0
	}
	holdOff := 0
	if s.holdsOff {
		holdOff = s.began + int(explored.TTL/tick)
	}
	k.bytes(s.identity, flags(s.holdsOff, s.base != nil), uint8(ahead+1), uint8(max(held-k.w.now, 0)), uint8(max(holdOff-k.w.now, 0)), uint8(s.wall))
	if ahead > 0 {
		k.key = binary.AppendUvarint(k.key, uint64(s.clock.Wall-wall))
	}
}

func (k *keyed) holder(h *holder) {
	now := h.now()
	k.bytes(uint8(h.phase), h.knows, h.bound, flags(h.frozen, h.replaced, h.underWay, h.renewing, h.goesOn, h.strayed, h.watching, h.hint.pending),
		flags(h.hint.missed, h.writing))
	if h.hint.pending {
		k.value(h.hint.value)
		k.version(h.hint.version)
	}
	if h.underWay {
		k.bytes(uint8(min(h.clock-h.sent, 20)))
		k.until(h.timeoutAt, now)
	}
	switch h.phase {
	case asking, pausing, waits:
		c, w := &h.claim, &h.waiting
		k.bytes(flags(c.mayHold, c.granted, c.late, c.moved, w.delaying, w.watches, w.hinted, w.polling), flags(w.backingOff))
		k.until(c.backoff.interval, 0)
		k.until(w.backoff.interval, 0)
		k.until(w.dueAt, now)
		k.until(w.hurryAt, now)
		k.until(h.until, now)
		k.version(w.seen)
	case holds:
		s := &h.schedule
		k.version(hlc.Timestamp(h.token))
		k.bytes(flags(s.doubted, s.pending, s.stopped, s.warned != nil, s.cause != nil))
		k.until(s.deadline, now)
		k.until(s.renewAt, now)
		k.until(s.watchAt, now)
		k.until(s.askAfter, now)
		k.until(s.backoff.interval, 0)
		k.bytes(uint8(min(h.clock-h.sent, 20)))
	case clearing, resting:
		w := &h.waiting
		k.until(h.freeing.end, now)
		k.until(h.freeing.backoff.interval, 0)
		k.until(h.until, now)
		if h.goesOn {
			k.bytes(flags(w.watches, w.hinted, w.polling, w.backingOff))
			k.until(w.hurryAt, now)
			k.version(w.seen)
		}
	}
}
