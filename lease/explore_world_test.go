package lease

import (
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
	TTL: 6 * tick, Margin: tick, GracePeriod: tick, RenewEvery: tick, RequestTimeout: tick, RetryAfter: tick, Jitter: tick,
}

// started is what the wall clocks show when the walk begins.
const started = 1_700_000_000_000

// kind is what a request asks for.
type kind uint8

const (
	claims kind = iota // SET NEX PX of the lease's key: an attempt, or a renewal
	asks               // GET of it
	frees              // VDEL of it
	writes             // SET of the protected key, with the token
)

var kindNames = [...]string{"SET of the lease", "GET of the lease", "VDEL of the lease", "protected SET"}

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
	again bool      // it comes once more after this
	same  uint8     // not 0: its correlation data
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
	case frees:
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
