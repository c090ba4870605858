package transporttest

import (
	"bytes"
	"context"
	"time"

	"github.com/tenurelock/tenure/transport"
)

var _ transport.WillConn = (*Conn)(nil)

// SetWill implements transport.WillConn. The store applies the Will when the connection is
// cut or taken over, before Cut returns, and not when the connection is closed or replaced.
// A silent connection never counts as lost.
func (c *Conn) SetWill(ctx context.Context, will transport.Request) (lost <-chan struct{}, silence time.Duration, err error) {
	will.Payload = bytes.Clone(will.Payload)
	for {
		line, _, err := c.awaitLine(ctx)
		if err != nil {
			return nil, 0, err
		}
		if !c.leave(line, true) {
			continue // it was cut at the same moment, and the test restores it
		}
		if line := c.connect(&will); line != nil {
			return line, 0, nil
		}
	}
}

// IgnoreWills makes the broker accept Wills and never publish them while on is true, as some
// brokers do.
func (c *Conn) IgnoreWills(on bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.ignoreWills = on
}
