package statestore

import (
	"cmp"
	"math"
	"strings"
	"time"

	"github.com/tenurelock/tenure/hlc"
)

const (
	// boundAhead is how far the bound of the versions is moved ahead in time, when fewer than
	// boundLeft are left. So a store with leases that renew keeps one record in 20 seconds.
	boundAhead = 30 * time.Second
	boundLeft  = 10 * time.Second
	// maxCounter is the largest counter of a version, and maxTaken the largest that a version
	// gets from a client's timestamp: after it comes the next millisecond. Deployed clients
	// keep counters in 32 bits with a sign, and count on from a version.
	maxCounter = 1 << 30
	maxTaken   = 1 << 20
)

// versions is the clock of a store, and the bound that a journal has of it. After a crash the
// clock starts at the bound, so no version is issued twice, whatever the wall clock does.
//
// A bound has no node: it covers the timestamps of all nodes with its wall clock and counter.
type versions struct {
	clock     hlc.Timestamp // the latest version issued
	bound     hlc.Timestamp // in the groups that were returned
	committed hlc.Timestamp // in the groups that are known to be durable
	moved     hlc.Timestamp // the clock when the bound was last moved
	left      hlc.Timestamp // no version above it has left; not above committed
}

// above reports whether a version is above a bound.
func above(version, bound hlc.Timestamp) bool {
	return cmp.Or(cmp.Compare(version.Wall, bound.Wall), cmp.Compare(version.Counter, bound.Counter)) > 0
}

// ample reports whether all counters of a version's millisecond are below a bound, so that renewals do
// not use up what is left of it.
func ample(version, bound hlc.Timestamp) bool { return version.Wall < bound.Wall }

// move moves the bound ahead of the clock.
func (v *versions) move(now Instant) {
	v.moved = v.clock
	wall := max(now.WallMillis, 0)
	if v.clock.Wall > wall+boundLeft.Milliseconds() {
		// The versions are ahead of the wall clock: after a crash, after a request from a
		// client with a clock that is ahead, or after a step back. They must not run away from it,
		// however often the store starts: clients refuse versions that are too far ahead.
		v.bound = hlc.Timestamp{Wall: saturatingAdd(v.clock.Wall, 1)}
		return
	}
	v.bound = hlc.Timestamp{Wall: saturatingAdd(wall, boundAhead.Milliseconds())}
}

// short reports whether little is left of the bound. It needs no move while no version is
// issued, so that a store at rest writes nothing.
func (v *versions) short(now Instant) bool {
	if v.clock == v.moved {
		return false
	}
	return v.bound.Wall < saturatingAdd(max(now.WallMillis, 0), boundLeft.Milliseconds()) || !ample(v.clock, v.bound)
}

// next returns the version after last, for a SET with a timestamp, or for none if that is zero. The error
// says that no version is left.
func next(last, timestamp hlc.Timestamp, wall int64) (hlc.Timestamp, error) {
	version, err := hlc.Merge(last, timestamp, wall)
	taken := version.Counter == timestamp.Counter+1
	if err == nil && (version.Counter > maxCounter || taken && version.Counter > maxTaken) && version.Wall < math.MaxInt64 {
		version.Wall, version.Counter = version.Wall+1, 0
	}
	return version, err
}

// issue returns the version of a SET. renewed is its key if the SET needs no record, nil otherwise. It
// changes nothing.
//
// A renewal must not wait for the journal because a client with a clock that is ahead moved the versions
// above the durable bound, or because the journal stands still (invariant 59). So it disregards its own
// timestamp then, and the versions of changes that are not durable, which no client has seen: its version
// is above those that have left, and above its key's.
func (s *Store) issue(now Instant, command *Command, renewed *entry) (hlc.Timestamp, error) {
	v := &s.versions
	version, err := next(v.clock, command.timestamp.value, now.WallMillis)
	if err != nil || renewed == nil || !s.options.Journaled || ample(version, v.committed) {
		return version, err
	}
	last := v.clock
	if !ample(last, v.committed) {
		last = v.left
		if own := renewed.version.timestamp(); above(own, last) {
			last = own
		}
	}
	if version, err = next(last, hlc.Timestamp{}, now.WallMillis); err != nil || ample(version, v.committed) {
		return version, err
	}
	return next(last, hlc.Timestamp{}, 0)
}

// use notes a version that issue returned.
func (v *versions) use(version hlc.Timestamp) {
	if above(version, v.clock) {
		v.clock = version
	}
	if above(version, v.left) && !above(version, v.committed) {
		v.left = version
	}
}

func (v *versions) record() Record { return Item{Kind: KindBound, Version: v.bound}.Record() }

// Reserve moves the bound of the versions ahead when little is left of it, and returns the
// group to keep. It returns nil if enough is left, which takes some nanoseconds: call it after
// each Apply. No reply and no notification has to wait for the group.
//
// It also returns the group which says that Options.HoldOff is over.
func (s *Store) Reserve(now Instant) Group {
	if !s.options.Journaled {
		return nil
	}
	var group Group
	if s.versions.short(now) {
		s.versions.move(now)
		group = append(group, s.versions.record())
	}
	if s.holding && now.Elapsed-s.began >= s.options.HoldOff {
		s.holding = false
		group = append(group, s.identityRecord())
	}
	return group
}

// A Bound is what the groups that a store has returned say of its versions.
type Bound struct {
	bound hlc.Timestamp // in the latest of them
	clock hlc.Timestamp // the latest version issued
}

// Bound returns what the latest groups have of the versions. It is to be passed to Committed later.
func (s *Store) Bound() Bound { return Bound{bound: s.versions.bound, clock: s.versions.clock} }

// Committed says that all groups are durable that the store had returned when Bound returned
// bound. Call it after each commit. A version that leaves must not be above the bound that is
// durable: until Committed says that it is not, each SET that changes something has the bound in its
// group.
func (s *Store) Committed(bound Bound) {
	v := &s.versions
	v.committed = bound.bound
	if above(bound.clock, v.left) {
		v.left = bound.clock
	}
}

// Seal returns the last group of a store that stops: the exact clock as the bound, so that the
// versions of the next store start where these end. It is empty if the bound is exact already.
func (s *Store) Seal() Group {
	exact := hlc.Timestamp{Wall: s.versions.clock.Wall, Counter: s.versions.clock.Counter}
	if !s.options.Journaled || s.versions.bound == exact {
		return nil
	}
	s.versions.bound, s.versions.committed = exact, exact
	return Group{s.versions.record()}
}

// stamp is a version in the memory of a store. It has a pointer to its node, because nearly
// all versions have the store's own: a string would take eight bytes more in each key and each
// remembered reply. The zero value means that there is none.
type stamp struct {
	wall    int64
	counter uint64
	node    *string
}

func (s stamp) timestamp() hlc.Timestamp {
	if s.node == nil {
		return hlc.Timestamp{}
	}
	return hlc.Timestamp{Wall: s.wall, Counter: s.counter, Node: *s.node}
}

// nodes are the nodes of versions, each once in memory. A store has versions of other nodes if
// its data comes from an earlier store with another Options.Node.
type nodes struct {
	own    *string
	others map[string]*string
}

func (n *nodes) intern(node string) *string {
	if node == *n.own {
		return n.own
	}
	known := n.others[node]
	if known == nil {
		known = new(string)
		*known = strings.Clone(node)
		if n.others == nil {
			n.others = make(map[string]*string)
		}
		n.others[*known] = known
	}
	return known
}

// stamp returns the version of a timestamp.
func (n *nodes) stamp(t hlc.Timestamp) stamp {
	if t.IsZero() {
		return stamp{}
	}
	return stamp{wall: t.Wall, counter: t.Counter, node: n.intern(t.Node)}
}

// token returns a token that shares its node with the versions in memory, if one of them has it. It adds
// no node that is new: clients choose the nodes of tokens, and the nodes here stay until the store ends.
func (n *nodes) token(t hlc.Token) hlc.Token {
	if t.Node == *n.own {
		t.Node = *n.own
	} else if known := n.others[t.Node]; known != nil {
		t.Node = *known
	}
	return t
}
