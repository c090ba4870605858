package mqttnet

import (
	"errors"
	"os"
	"sync/atomic"
	"time"
)

// lending lets callers that wait for a reply read from the connection themselves. That saves a switch
// from one goroutine to another for each reply, which takes a client longer than all else that it does
// for a request.
//
// One goroutine at a time reads. The one that calls Read or Next (the reader) lends the connection
// while that is allowed, and goes on reading when a tick passes without a packet, when it is recalled,
// when a packet arrives that Intercept does not take, and when the connection ends.
type lending struct {
	tick    time.Duration
	allowed func() bool
	free    chan struct{} // has an item while the connection is lent and no caller reads
	lent    atomic.Bool   // the reader has lent the connection
	back    chan struct{} // has an item when the reader is to go on reading
	recall  atomic.Bool   // the caller that reads is to stop
}

// Lend lets callers use [Conn.ReadUntil] whenever allowed reports true, where [Conn.CanTrySend] does:
// over plain TCP, but not with TLS or WebSocket, nor on systems without a write that does not wait. allowed
// is called in the goroutine that reads, and must not block. Code that makes allowed report false has to
// call [Conn.Recall] afterwards.
//
// Every tick the reader looks whether callers still read: a packet that no caller waits for stays unread
// for two ticks at most, and a caller returns from ReadUntil at most that much late.
//
// Call Lend before the first packet for Intercept arrives.
func (c *Conn) Lend(tick time.Duration, allowed func() bool) {
	if c.CanTrySend() {
		c.lending.Store(&lending{tick: tick, allowed: allowed, free: make(chan struct{}, 1), back: make(chan struct{}, 1)})
	}
}

// lend lends the connection, if that is allowed, and returns when the reader may go on. It reports
// false if it was not lent. Only the reader may call it.
func (c *Conn) lend() bool {
	l := c.lending.Load()
	if l == nil || !l.allowed() {
		return false
	}
	select {
	case <-l.back: // from last time
	default:
	}
	l.lent.Store(true)
	if !l.allowed() { // a request that began before lent was set did not recall the reader
		l.lent.Store(false)
		return false
	}
	l.free <- struct{}{}
	c.awaitRecall(l)
	l.lent.Store(false)
	select {
	case <-l.free:
	default: // a caller reads: end its wait
		l.recall.Store(true)
		_ = c.Conn.SetReadDeadline(time.Unix(1, 0)) // on a connection that is closed its wait ends anyway
		<-l.free
		_ = c.Conn.SetReadDeadline(time.Time{})
		l.recall.Store(false)
	}
	return true
}

// awaitRecall returns when the reader is recalled, or when a tick passes without a packet.
func (c *Conn) awaitRecall(l *lending) {
	tick := time.NewTicker(l.tick)
	defer tick.Stop()
	for seen := c.arrivals.Load(); ; {
		select {
		case <-l.back:
			return
		case <-tick.C:
		}
		now := c.arrivals.Load()
		if now == seen {
			return
		}
		seen = now
	}
}

// ReadUntil reads and handles packets in the goroutine of a caller, until done reports true or the
// reader is to go on, which may be long before. It does nothing unless the connection is lent; if another
// caller reads, it recalls the reader. done is called between two packets, and must not block.
func (c *Conn) ReadUntil(done func() bool) {
	l := c.lending.Load()
	if l == nil || !l.lent.Load() {
		return
	}
	select {
	case <-l.free:
	default:
		c.Recall() // the caller that reads stops when it has what it waits for
		return
	}
	idle := false
	defer func() { // also if the handler of a packet panics
		l.free <- struct{}{}
		if !idle {
			c.Recall()
		}
	}()
	idle = c.reader.Pump(func() bool { return done() || l.recall.Load() })
}

// Recall makes the reader go on reading, if it has lent the connection. It does not wait.
func (c *Conn) Recall() {
	if l := c.lending.Load(); l != nil && l.lent.Load() {
		select {
		case l.back <- struct{}{}:
		default:
		}
	}
}

// isRecall reports whether err only says that the caller that reads is to stop.
func (c *Conn) isRecall(err error) bool {
	l := c.lending.Load()
	return l != nil && l.recall.Load() && errors.Is(err, os.ErrDeadlineExceeded)
}
