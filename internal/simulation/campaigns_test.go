package simulation

import (
	"errors"
	"time"

	"github.com/tenurelock/tenure/election"
	"github.com/tenurelock/tenure/transport"
)

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
	if inTerm != (leads || status.Phase == election.Draining || status.Phase == election.Released) || leads && status.Cause != nil {
		c.violation("%s: the status contradicts itself: %v", p.name, status)
	}
	// A request that is under way keeps its caller until a suspended machine wakes.
	if status.Phase == election.Active && !p.leads.Load() && time.Since(status.Since) > ttl && !p.node.isSuspended() {
		c.violation("%s holds the lease and does not call its function: %v", p.name, status)
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
