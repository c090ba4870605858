package simulation

import (
	"errors"
	"time"

	"github.com/tenurelock/tenure/election"
	"github.com/tenurelock/tenure/transport"
)

// course is where an elector stands.
type course struct {
	began, ended time.Duration // of the latest term
	leads        bool
}

// phase follows the terms of an elector, those included that end before their function
// starts. Whatever ended a short one, a hold-off follows.
func (c *checker) phase(p *process, phase election.Phase) {
	c.mu.Lock()
	defer c.mu.Unlock()
	now, at := c.sim.elapsed(), c.phases[p]
	if at == nil {
		at = &course{ended: -hour}
		c.phases[p] = at
	}
	switch phase {
	case election.Claiming:
		const short, least = ttl - time.Second, holdOff * 8 / 10
		if at.ended-at.began < short && now-at.ended < least {
			c.violationLocked("%s leads again %v after a term of %v", p.name, now-at.ended, at.ended-at.began)
		}
		at.began = now
	case election.Active:
		at.leads = true
	case election.Draining:
		at.leads = false
	case election.Released:
		at.leads, at.ended = false, now
	}
}

// campaignEnded judges why a campaign ended.
func (c *checker) campaignEnded(p *process, err error) {
	if p.ctx.Err() == nil && !errors.Is(err, transport.ErrClosed) && !errors.Is(err, transport.ErrSessionTakenOver) {
		c.violation("%s ended its campaign: %v", p.name, err)
	}
}

// mustNotLead looks whether an elector has stopped leading once its health check has told
// that it is not fit.
func (c *checker) mustNotLead(p *process, lasts time.Duration) {
	const noticed = ttl/3 + ttl/3 + time.Second // HealthEvery and HealthTimeout
	if lasts <= noticed {
		return
	}
	time.AfterFunc(noticed, func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		if at := c.phases[p]; at != nil && at.leads && p.ctx.Err() == nil && p.node.ill.Load() > 0 {
			c.violationLocked("%s leads, and is ill", p.name)
		}
	})
}
