package crashtest

import (
	"errors"
	"net"
	"os"
	"sync"
	"time"
)

// A partition is a network that fails in one way or both, for some clients.
type partition struct {
	toStore, toClients bool
	hit                func(clientID string) bool
	healed             chan struct{}

	mu     sync.Mutex
	cables []*cable // over which something waits; nil once it is healed
	over   bool
}

// keep reports whether the partition lasts, and then has the cable flushed at its end.
func (p *partition) keep(c *cable) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.over {
		p.cables = append(p.cables, c)
	}
	return !p.over
}

// heal ends the partition, and lets what waits pass.
func (p *partition) heal() {
	p.mu.Lock()
	cables := p.cables
	p.over, p.cables = true, nil
	p.mu.Unlock()
	close(p.healed)
	for _, c := range cables {
		c.flush()
	}
}

// cable is a connection to a store over a network that can fail: see Target.Partition.
type cable struct {
	net.Conn
	target   *Target
	clientID string

	mu      sync.Mutex
	waiting []byte // what was written and did not pass yet; what follows waits behind it
	closed  bool
	done    chan struct{} // closed by Close
}

// mostWaiting is how many bytes a network keeps for one connection.
const mostWaiting = 1 << 20

var errFullNetwork = errors.New("crashtest: the network keeps no more")

// Write keeps what does not pass, and reports success, as a network does.
func (c *cable) Write(data []byte) (int, error) {
	c.mu.Lock()
	failing := c.target.failing(c.clientID)
	switch {
	case c.closed:
		c.mu.Unlock()
		return 0, net.ErrClosed
	case len(c.waiting) > mostWaiting:
		c.mu.Unlock()
		return 0, errFullNetwork
	case len(c.waiting) > 0:
		c.waiting = append(c.waiting, data...)
		c.mu.Unlock()
		return len(data), nil
	case failing != nil && failing.toStore && failing.keep(c):
		c.waiting = append(c.waiting, data...)
		c.mu.Unlock()
		return len(data), nil
	}
	c.mu.Unlock()
	return c.Conn.Write(data)
}

// flush writes what waits, also after the client has closed its end.
func (c *cable) flush() {
	for {
		c.mu.Lock()
		data, closed := c.waiting, c.closed
		c.mu.Unlock()
		if len(data) == 0 {
			if closed {
				_ = c.Conn.Close()
			}
			return
		}
		_ = c.Conn.SetWriteDeadline(time.Now().Add(time.Second)) // the store may no longer read
		if _, err := c.Conn.Write(data); err != nil {
			_ = c.Conn.Close() // the store has ended the connection
		}
		_ = c.Conn.SetWriteDeadline(time.Time{})
		c.mu.Lock()
		c.waiting = c.waiting[len(data):]
		c.mu.Unlock()
	}
}

// Read returns what has arrived, once the network lets it pass.
func (c *cable) Read(data []byte) (int, error) {
	n, err := c.Conn.Read(data)
	if failing := c.target.failing(c.clientID); failing != nil && failing.toClients {
		select {
		case <-failing.healed:
		case <-c.done:
			return 0, os.ErrClosed
		}
	}
	return n, err
}

// Close ends the connection for its client. What it wrote may still arrive.
func (c *cable) Close() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return nil
	}
	c.closed = true
	close(c.done)
	if len(c.waiting) > 0 {
		return c.Conn.SetReadDeadline(time.Unix(1, 0)) // ends Read; flush closes the connection
	}
	return c.Conn.Close()
}
