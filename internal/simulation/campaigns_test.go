package simulation

import (
	"errors"
	"time"

	"github.com/tenurelock/tenure/election"
	"github.com/tenurelock/tenure/hlc"
	"github.com/tenurelock/tenure/transport"
)

// course is when the latest term of an elector began, with the lease, and ended.
type course struct{ began, ended time.Duration }

// phase follows the terms of an elector, also those that end before their function starts.
// A hold-off must follow a short term, whatever ended it.
func (c *checker) phase(p *process, t election.Status) {
	c.mu.Lock()
	defer c.mu.Unlock()
	at, latest := t.Since.Sub(c.sim.began), c.courses[p]
	if latest == nil {
		latest = &course{ended: -hour}
		c.courses[p] = latest
	}
	switch t.Phase {
	case election.Claiming:
		const short, least = ttl - time.Second, holdOff * 8 / 10
		if latest.ended-latest.began < short && at-latest.ended < least {
			c.violationLocked("%s leads again %v after a term of %v", p.name, at-latest.ended, latest.ended-latest.began)
		}
		latest.began = c.given[hlc.Timestamp(t.Token)]
	case election.Released:
		latest.ended = at
	}
}

// campaignEnded checks why a campaign ended.
func (c *checker) campaignEnded(p *process, err error) {
	if p.ctx.Err() == nil && !errors.Is(err, transport.ErrClosed) && !errors.Is(err, transport.ErrSessionTakenOver) {
		c.violation("%s ended its campaign: %v", p.name, err)
	}
}

// mustNotLead checks that an elector has stopped leading when its health check fails.
func (c *checker) mustNotLead(p *process, lasts time.Duration) {
	const noticed = ttl/3 + ttl/3 + time.Second // HealthEvery and HealthTimeout
	if lasts <= noticed {
		return
	}
	time.AfterFunc(noticed, func() {
		status, elects := p.status()
		if elects && status.Phase == election.Active && p.ctx.Err() == nil && p.node.unhealthy.Load() > 0 {
			c.violation("%s leads, and is unhealthy: %v", p.name, status)
		}
	})
}

// checkStatus checks that the parts of a status belong together.
func (c *checker) checkStatus(p *process) {
	status, elects := p.status()
	if !elects {
		return
	}
	inTerm, leads := !status.Token.IsZero(), status.Phase == election.Claiming || status.Phase == election.Active
	if inTerm != (leads || status.Phase == election.Draining || status.Phase == election.Released) ||
		inTerm && status.Term == 0 || leads && status.Cause != nil || leads && !status.HoldOffUntil.IsZero() {
		c.violation("%s: the status contradicts itself: %v", p.name, status)
	}
	// A request that is under way keeps its caller until a suspended machine wakes.
	if status.Phase == election.Active && !p.leads.Load() && time.Since(status.Since) > ttl && !p.node.isSuspended() {
		c.violation("%s holds the lease for its observer only: %v", p.name, status)
	}
}

// statuses checks at the end of the hour that each elector which waits for a leader knows
// its name. A node without notifications may not: a refusal does not say which node leads.
func (c *checker) statuses() {
	if c.sim.noNotifications {
		return
	}
	leader := c.leader()
	for _, n := range c.sim.nodes {
		p := n.current()
		status, elects := p.status()
		if !elects || leader == nil || status.Phase != election.Standby || status.Cause != nil || p.ctx.Err() != nil {
			continue
		}
		if status.Leader != leader.id {
			c.violation("%s: %v, and %s leads", p.name, status, leader.id)
		}
	}
}
