package transport

import (
	"fmt"
	"time"

	"github.com/eclipse/paho.golang/packets"
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
		c.probe(l, max(within, minProbe))
		c.mu.Lock()
		defer c.mu.Unlock()
		l.probing = false
	})
}

// probe sends a PINGREQ and closes the connection if nothing arrives in time. paho takes the
// PINGRESP for the answer to a PINGREQ of its own, which does no harm: it shows as well that
// the other end is there.
func (c *mqttConn) probe(l *link, within time.Duration) {
	before := l.net.arrivals.Load()
	deadline := time.NewTimer(within)
	defer deadline.Stop()
	select {
	case l.net.lock <- struct{}{}:
		l.net.ping(within)
		select {
		case <-deadline.C:
		case <-l.down:
			return
		}
	case <-deadline.C: // a packet is being written for all this time
	case <-l.down:
		return
	}
	if l.net.arrivals.Load() != before {
		return
	}
	why := fmt.Errorf("a request went unanswered, and so did a PINGREQ for %v", within)
	l.net.cause.CompareAndSwap(nil, &why)
	l.net.abort()
}

// ping sends a PINGREQ, and closes the connection if that takes longer than within. The
// caller has the lock, which ping gives back.
func (c *netConn) ping(within time.Duration) {
	_ = c.Conn.SetWriteDeadline(time.Now().Add(within)) // on a closed connection, the write fails
	_, _ = c.writer.Write([]byte{packets.PINGREQ << 4, 0})
	c.Unlock()
}
