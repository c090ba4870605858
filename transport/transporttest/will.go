package transporttest

import (
	"bytes"
	"context"
	"time"

	"github.com/tenurelock/tenure/transport"
)

var _ transport.WillConn = (*Conn)(nil)

// SetWill implements transport.WillConn. The store applies the will when the
// connection is cut or taken over, before Cut returns; it does not when the connection
// is closed or replaced. A silent connection is never taken for lost.
func (c *Conn) SetWill(ctx context.Context, will transport.Request) (lost <-chan struct{}, silence time.Duration, err error) {
	will.Payload = bytes.Clone(will.Payload)
	for {
		line, _, err := c.awaitLine(ctx)
		if err != nil {
			return nil, 0, err
		}
		if !c.leave(line, true) {
			continue // it was cut at the same moment, and is not for us to restore
		}
		if line := c.connect(&will); line != nil {
			return line, 0, nil
		}
	}
}

// IgnoreWills makes the broker drop wills while on is true, as one does that does not
// know what to do with them.
func (c *Conn) IgnoreWills(on bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.ignoreWills = on
}

// execute applies a will.
func (c *Conn) execute(will *transport.Request) {
	c.apply(&exchange{request: *will, correlation: c.correlation()}, false)
}
