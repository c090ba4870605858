package lease

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"fmt"
	"slices"
	"time"

	"github.com/tenurelock/tenure/hlc"
	"github.com/tenurelock/tenure/resp3"
	"github.com/tenurelock/tenure/statestore"
	"github.com/tenurelock/tenure/transport"
)

// tick is the unit of time of the model. All that the options say are whole ticks.
const tick = time.Second

// explored are the options of all holders: the shortest in which one lost reply loses no lease.
var explored = Options{
	TTL: 6 * tick, Margin: tick, GracePeriod: tick, RenewEvery: tick, RequestTimeout: tick, retryAfter: tick, Jitter: tick,
}

// started is what the wall clocks show when the walk begins.
const started = 1_700_000_000_000

// kind is what a request asks for.
type kind uint8

const (
	claims kind = iota // SET NEX PX of the lease's key: an attempt, or a renewal
	asks               // GET of it
	frees              // VDEL of it
	wills              // the same, by the server
	writes             // SET of the protected key, with the token
)

var kindNames = [...]string{"SET of the lease", "GET of the lease", "VDEL of the lease", "the Will", "protected SET"}

// value is what an attempt sets the lease's key to: no two attempts have the same. Zero: no holder.
type value struct{ holder, attempt uint8 }

func (v value) text() string { return string([]byte{'h', '0' + v.holder, ':', v.attempt}) }

func valueOf(text string) (v value) {
	if text != "" {
		v = value{text[1] - '0', text[3]}
	}
	return v
}

// String is for people.
func (v value) String() string { return fmt.Sprintf("h%d:%d", v.holder, v.attempt) }

// request is one that is under way to the store.
type request struct {
	kind  kind
	value value
	token hlc.Token // writes
	store uint8     // the only one that may apply it; 0: any
	call  uint8     // of its holder
	late  bool      // it left the order of its connection: it comes at any time, or never
	ended bool      // its connection has ended, and was one with a Will: nothing hears the answer
	again bool      // it comes once more after this
	same  uint8     // not 0: its correlation data

	// What comes once more has the bytes of what came first, and the store remembers the reply.
	stamp int
	first reply // zero: the store does not remember it
}

// reply is one that is under way to a holder.
type reply struct {
	holder  uint8
	kind    kind
	call    uint8
	store   uint8 // that answered
	err     error
	version hlc.Timestamp
	value   value // asks: what the key holds
}

// hint is a notification, or what a watch has read.
type hint struct {
	pending bool
	missed  bool
	value   value
	version hlc.Timestamp
}

// store is the state of the real store, as what made it: it is made anew for each change.
type store struct {
	identity uint8
	holdsOff bool
	willed   bool                // see world
	base     []statestore.Record // it was restored from them
	began    int                 // when, in ticks
	applied  []application
	wall     int // how far its wall clock is off, in ticks

	deadline int           // when the lease's key expires
	clock    hlc.Timestamp // the latest version issued
	made     *statestore.Store

	lease, protected statestore.Item // what it has of its keys
}

// application is a command that the store has applied; nil: keys expired.
type application struct {
	now     statestore.Instant
	command *statestore.Command
}

func (s *store) instant(at, wall int) statestore.Instant {
	return statestore.Instant{WallMillis: started + int64(at+wall)*1000, Elapsed: time.Duration(at-s.began) * tick}
}

const (
	leaseKey     = "lease"
	protectedKey = "protected"
)

// make makes the real store.
func (s *store) make() *statestore.Store {
	options := statestore.Options{Identity: fmt.Sprint("store-", s.identity)}
	if s.holdsOff {
		options.HoldOff = explored.TTL
	}
	made, err := statestore.New(options)
	if err != nil {
		panic(err)
	}
	for _, record := range s.base {
		if err := made.Restore(record); err != nil {
			panic(err)
		}
	}
	if s.base != nil {
		if _, err := made.Restored(s.instant(s.began, s.wall), statestore.Former{}); err != nil {
			panic(err)
		}
	}
	for _, a := range s.applied {
		a.to(made)
	}
	return made
}

func (a application) to(made *statestore.Store) (reply statestore.Reply) {
	if a.command == nil {
		made.Expire(a.now, 10)
	} else {
		reply, _ = made.Apply(a.now, *a.command)
	}
	return reply
}

// do makes the store anew with one application more. (Other states share the present one.)
func (s *store) do(a application) statestore.Reply {
	s.made = s.make()
	s.applied = append(slices.Clip(s.applied), a)
	reply := a.to(s.made)
	s.look()
	return reply
}

// command is the request as the store gets it. The clocks of holders are right.
func (r request) command(at int) statestore.Request {
	if r.same != 0 && !r.again {
		at = r.stamp
	}
	timestamp := hlc.Timestamp{Wall: started + int64(at)*1000, Node: fmt.Sprint("h", r.value.holder)}.String()
	c := statestore.Request{Client: fmt.Sprint("h", r.value.holder), Timestamp: &timestamp}
	if r.same != 0 {
		c.Correlation = []byte{r.same}
	}
	if r.same != 0 && !r.again {
		c.Delivery = statestore.Redelivery
	}
	if r.store != 0 {
		identity := fmt.Sprint("store-", r.store)
		c.Store = &identity
	}
	switch r.kind {
	case claims:
		c.Payload = resp3.AppendCommand(nil, "SET", leaseKey, r.value.text(), "NEX", r.value.text(), "PX", fmt.Sprint(explored.TTL.Milliseconds()))
	case asks:
		c.Payload = resp3.AppendCommand(nil, "GET", leaseKey)
	case frees, wills:
		c.Payload = resp3.AppendCommand(nil, "VDEL", leaseKey, r.value.text())
	case writes:
		token := r.token.String()
		c.FencingToken = &token
		c.Payload = resp3.AppendCommand(nil, "SET", protectedKey, r.value.text())
	}
	return c
}

// apply applies a request at a time, and returns the reply. It reports whether a SET was applied now.
func (s *store) apply(at int, r request) (reply statestore.Reply, set bool) {
	command := statestore.Parse(r.command(at))
	if s.willed && r.kind == claims { // the connection has the Will, or the binding had kept it from leaving
		will := statestore.Parse(request{kind: wills, value: r.value}.command(at))
		command.Willed = command.ReleasedBy(&will)
	}
	reply = s.do(application{s.instant(at, s.wall), &command})
	if set = reply.Outcome == statestore.OK && reply.Version.Compare(s.clock) > 0; set { // else it came again
		s.clock = reply.Version
		if r.kind == claims {
			s.deadline = at + int(explored.TTL/tick)
		}
	}
	return reply, set
}

// expire removes the lease's key if its time has come, and reports whether it has.
func (s *store) expire(at int) bool {
	if s.holder() == (value{}) || at < s.deadline {
		return false
	}
	s.do(application{now: s.instant(at, s.wall)})
	return true
}

// restart makes another process of the store, with the data or without.
func (s *store) restart(at int, data bool) {
	before, held := s.made, s.holder() != (value{})
	s.base, s.applied, s.began = nil, nil, at
	if data {
		for record := range before.Snapshot() {
			if item, err := record.Decode(); err == nil && item.Kind == statestore.KindBound {
				record = statestore.Item{Kind: statestore.KindBound, Version: hlc.Timestamp{Wall: s.clock.Wall, Counter: s.clock.Counter}}.Record()
			}
			s.base = append(s.base, record)
		}
	} else {
		s.identity++
		s.holdsOff, s.clock = true, hlc.Timestamp{}
	}
	s.made = s.make()
	s.look()
	if data && held {
		s.deadline, s.clock = at+int(explored.TTL/tick), s.lease.Version // a new one
	}
	if s.willed {
		s.do(application{now: s.instant(at, s.wall)}) // what ended with a connection has expired
	}
}

// look reads what the store has of its keys.
func (s *store) look() {
	s.lease, s.protected = statestore.Item{}, statestore.Item{}
	for record := range s.made.Snapshot() {
		switch item, err := record.Decode(); {
		case err != nil:
			panic(err)
		case item.Kind != statestore.KindKey:
		case item.Key == leaseKey:
			s.lease = item
		default:
			s.protected = item
		}
	}
}

// holder returns who has the lease.
func (s *store) holder() value { return valueOf(s.lease.Value) }

// errorOf is the error that a client returns for a reply.
func errorOf(r statestore.Reply) error {
	switch {
	case r.Err != nil:
		return &transport.RefusedError{Text: r.Err.Error()}
	case r.Outcome == statestore.ConditionFailed:
		return transport.ErrConditionFailed
	}
	return nil
}

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
	collects bool    // the versions
	order    []uint8 // the holders in the order of this key
}

func (w *world) key(key []byte) []byte {
	k := &keyed{w: w, order: orders[len(w.holders)][0], versions: []hlc.Timestamp{{}}, collects: true}
	k.build()
	slices.SortFunc(k.versions, hlc.Timestamp.Compare)
	k.versions, k.collects = slices.Compact(k.versions), false
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
	k.bytes(w.faults, uint8(min(w.idle, w.patience()+1)), flags(w.lostData, w.forced, w.lagged, w.slow && w.willed))
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
			k.bytes(uint8(r.kind), r.store, flags(r.late, r.again, k.awaited(h, r.kind, r.call), r.ended), r.same)
			k.value(r.value)
			k.version(hlc.Timestamp(r.token))
			if r.same != 0 && !r.again {
				k.bytes(uint8(min(w.now-r.stamp, 8)), r.first.store)
				k.text(classOf(r.first.err))
				k.version(r.first.version)
				k.value(r.first.value)
			}
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

func (k *keyed) bytes(b ...uint8) { k.key = append(k.key, b...) }

func (k *keyed) text(s string) { k.key = append(append(k.key, uint8(len(s))), s...) }

func (k *keyed) version(v hlc.Timestamp) {
	if k.collects {
		k.versions = append(k.versions, v)
		return
	}
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

// until adds in how many ticks a clock shows a time. Clocks show whole ticks, and such a time is only compared with them.
func (k *keyed) until(at, now time.Duration) {
	if at != never {
		at = (max(at-now, 0) + tick - 1) / tick
	}
	k.duration(at)
}

func (k *keyed) duration(d time.Duration) { k.key = binary.AppendUvarint(k.key, uint64(d)) }

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
	reach := wall
	if k.w.allowed>>steps&1 == 1 { // it may yet be ahead
		reach -= 3000 * int64(k.w.faults)
	}
	if s.clock.Wall > reach {
		k.key = binary.AppendVarint(k.key, s.clock.Wall-wall)
	}
}

func (k *keyed) holder(h *holder) {
	now := h.now()
	k.bytes(uint8(h.phase), h.knows, h.bound, flags(h.frozen, h.replaced, h.underWay, h.renewing, h.goesOn, h.strayed, h.watching, h.hint.pending),
		flags(h.hint.missed, h.writing, h.willed, h.lost, h.gone, h.releases && k.w.willed))
	if h.hint.pending {
		k.value(h.hint.value)
		k.version(h.hint.version)
	}
	if h.underWay {
		k.bytes(uint8(min(h.clock-h.sent, 8)))
		k.until(h.timeoutAt, now)
	}
	switch h.phase {
	case asking, pausing, waits:
		c, w := &h.acquisition, &h.waiting
		k.bytes(flags(c.mayHold, c.granted, c.moved, w.delaying, w.watches, w.hinted, w.polling), flags(w.backingOff))
		k.duration(c.backoff.interval)
		k.duration(w.backoff.interval)
		k.until(w.dueAt, now)
		k.until(w.hurryAt, now)
		k.until(h.until, now)
		k.version(w.seen)
	case holds:
		s := &h.schedule
		k.version(hlc.Timestamp(h.token))
		k.bytes(flags(s.doubted, s.pending, s.stopped, s.warned != nil, s.cause != nil, h.silenced, h.asked == h.clock))
		k.until(s.deadline, now)
		k.until(s.renewAt, now)
		k.until(s.watchAt, now)
		k.until(s.askAfter, now)
		k.duration(s.backoff.interval)
		k.bytes(uint8(min(h.clock-h.sent, 8)))
	case clearing, resting:
		w := &h.waiting
		k.until(h.freeing.end, now)
		k.duration(h.freeing.backoff.interval)
		k.until(h.until, now)
		if h.goesOn {
			k.bytes(flags(w.watches, w.hinted, w.polling, w.backingOff))
			k.until(w.hurryAt, now)
			k.version(w.seen)
		}
	}
}
