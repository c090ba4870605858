package member

import (
	"context"
	"slices"
	"time"

	"github.com/tenurelock/tenure/cluster"
	"github.com/tenurelock/tenure/internal/sleep"
)

// Leadership of etcd decides which process becomes the active store: see cluster.Options.Member. So
// a member hands it to another one while its own process cannot serve, as a witness never can.

var _ cluster.Leadership = (*Member)(nil)

const (
	// grace is how long a member keeps leadership while its process cannot serve: one that stands by
	// again can soon.
	grace = 2 * time.Second
	// yieldPause is the shortest time between two hand-overs of one member: members that cannot serve would
	// hand leadership to each other without end. A longer one would be a time without a store where the
	// other gateway can serve again meanwhile.
	yieldPause = time.Second
	// lookPause is the longest pause until a member that leads notices that its process cannot serve.
	lookPause = 100 * time.Millisecond
)

// SetEligible implements cluster.Leadership.
func (m *Member) SetEligible(can bool) {
	if now := time.Now(); can {
		m.unable.Store(nil)
	} else {
		m.unable.CompareAndSwap(nil, &now)
	}
}

// yields reports whether this member should hand leadership on.
func (m *Member) yields() bool {
	since := m.unable.Load()
	return since != nil && time.Since(*since) >= grace
}

// Leads implements cluster.Leadership.
func (m *Member) Leads() (leads bool, changed <-chan struct{}) {
	select {
	case <-m.ready:
	default:
		return false, m.ready
	}
	server := m.etcd.Server
	changed = server.LeaderChangedNotify()
	return server.Lead() == uint64(server.MemberID()), changed
}

// lead hands leadership on while the process of this member cannot serve, until ctx ends.
func (m *Member) lead(ctx context.Context) {
	own, former := uint64(m.etcd.Server.MemberID()), uint64(0)
	look := time.NewTicker(lookPause)
	defer look.Stop()
	for {
		leads, changed := m.Leads()
		if leader := m.etcd.Server.Lead(); leader != own && leader != 0 {
			former = leader
		}
		if leads && m.yields() && m.yield(ctx, former) {
			sleep.For(ctx, yieldPause)
		}
		select {
		case <-ctx.Done():
			return
		case <-changed:
		case <-look.C:
		}
	}
}

// election is how long the other members wait for a leader.
func (m *Member) election() time.Duration {
	return time.Duration(m.config.ElectionMs) * time.Millisecond
}

// yield hands leadership to another member, and reports whether it could. The one that led before
// comes last, because it may be gone. etcd gives up after an election timeout.
func (m *Member) yield(ctx context.Context, former uint64) bool {
	server := m.etcd.Server
	own := uint64(server.MemberID())
	var others []uint64
	for _, other := range server.Cluster().Members() {
		if uint64(other.ID) != own && !other.IsLearner {
			others = append(others, uint64(other.ID))
		}
	}
	if i := slices.Index(others, former); i >= 0 {
		others = append(slices.Delete(others, i, i+1), former)
	}
	for _, other := range others {
		attempt, cancel := context.WithTimeout(ctx, m.election()*5/4)
		err := server.MoveLeader(attempt, own, other)
		cancel()
		if err == nil || server.Lead() != own {
			return true
		}
	}
	return false
}
