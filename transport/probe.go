package transport

import (
	"time"
)

// minProbe is how long a broker has to answer at least: with less, a machine that is busy
// for a moment would lose connections that work.
const minProbe = 100 * time.Millisecond

var _ Prober = (*mqttConn)(nil)

// Probe implements Prober.
func (c *mqttConn) Probe(within time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	l := c.link
	if l == nil || l.net == nil || l.probing || isClosed(l.down) {
		return
	}
	l.probing = true
	// The goroutine belongs to the link: connect waits for it once the link is down.
	l.probes.Go(func() {
		l.net.Probe(max(within, minProbe), l.down)
		c.mu.Lock()
		defer c.mu.Unlock()
		l.probing = false
	})
}
