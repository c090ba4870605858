package statestore

import (
	"cmp"
	"math"
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
type versions struct {
	clock     stamp // the latest version issued
	bound     stamp // in the groups that were returned
	committed stamp // in the groups that are known to be durable
	moved     stamp // the clock when the bound was last moved
	left      stamp // no version above it has left; not above committed
}

// storeNode is the node id in the versions of a store.
const storeNode = "StateStore"

// stamp is a version of a store, without its node; the zero value means that there is none.
type stamp struct {
	wall    int64
	counter uint64
}

func (s stamp) timestamp() hlc.Timestamp {
	if s == (stamp{}) {
		return hlc.Timestamp{}
	}
	return hlc.Timestamp{Wall: s.wall, Counter: s.counter, Node: storeNode}
}

func stampOf(t hlc.Timestamp) stamp { return stamp{t.Wall, t.Counter} }

func (s stamp) above(other stamp) bool {
	return cmp.Or(cmp.Compare(s.wall, other.wall), cmp.Compare(s.counter, other.counter)) > 0
}

// ample reports whether all counters of a version's millisecond are below a bound, so that renewals do
// not use up what is left of it.
func ample(version, bound stamp) bool { return version.wall < bound.wall }

// move moves the bound ahead of the clock.
func (v *versions) move(now Instant) {
	v.moved = v.clock
	wall := max(now.WallMillis, 0)
	if v.clock.wall > wall+boundLeft.Milliseconds() {
		// The versions are ahead of the wall clock: after a crash, after a request from a
		// client with a clock that is ahead, or after a step back. They must not run away from it,
		// however often the store starts: clients refuse versions that are too far ahead.
		v.bound = stamp{wall: saturatingAdd(v.clock.wall, 1)}
		return
	}
	v.bound = stamp{wall: saturatingAdd(wall, boundAhead.Milliseconds())}
}

// short reports whether little is left of the bound. It needs no move while no version is
// issued, so that a store at rest writes nothing.
func (v *versions) short(now Instant) bool {
	if v.clock == v.moved {
		return false
	}
	return v.bound.wall < saturatingAdd(max(now.WallMillis, 0), boundLeft.Milliseconds()) || !ample(v.clock, v.bound)
}

// next returns the version after last, for a SET with a timestamp, or for none if that is zero. The error
// says that no version is left.
func next(last stamp, timestamp hlc.Timestamp, wall int64) (stamp, error) {
	merged, err := hlc.Merge(last.timestamp(), timestamp, wall)
	version, taken := stampOf(merged), merged.Counter == timestamp.Counter+1
	if err == nil && (version.counter > maxCounter || taken && version.counter > maxTaken) &&
		version.wall < math.MaxInt64 {
		version = stamp{wall: version.wall + 1}
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
func (s *Store) issue(now Instant, command *Command, renewed *entry) (stamp, error) {
	v := &s.versions
	version, err := next(v.clock, command.timestamp, now.WallMillis)
	if err != nil || renewed == nil || !s.options.Journaled || ample(version, v.committed) {
		return version, err
	}
	last := v.clock
	if !ample(last, v.committed) {
		last = v.left
		if renewed.version.above(last) {
			last = renewed.version
		}
	}
	if version, err = next(last, hlc.Timestamp{}, now.WallMillis); err != nil || ample(version, v.committed) {
		return version, err
	}
	return next(last, hlc.Timestamp{}, 0)
}

// use notes a version that issue returned.
func (v *versions) use(version stamp) {
	if version.above(v.clock) {
		v.clock = version
	}
	if version.above(v.left) && !version.above(v.committed) {
		v.left = version
	}
}

func (v *versions) record() Record {
	return Item{Kind: KindBound, Version: hlc.Timestamp{Wall: v.bound.wall, Counter: v.bound.counter}}.Record()
}

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
	bound stamp // in the latest of them
	clock stamp // the latest version issued
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
	if bound.clock.above(v.left) {
		v.left = bound.clock
	}
}

// Seal returns the last group of a store that stops: the exact clock as the bound, so that the
// versions of the next store start where these end. It is empty if the bound is exact already.
func (s *Store) Seal() Group {
	v := &s.versions
	if !s.options.Journaled || v.bound == v.clock {
		return nil
	}
	v.bound, v.committed = v.clock, v.clock
	return Group{v.record()}
}
