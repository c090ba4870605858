package transport

import "log/slog"

// ConnectionState says whether a client has a connection.
type ConnectionState int

const (
	// Connecting: there is no connection. The client tries to connect, for the first time
	// or again.
	Connecting ConnectionState = iota
	// Connected: there is a connection.
	Connected
	// Ended: there is no connection, and there will be none.
	Ended
)

// String returns the state in words, such as "connected".
func (s ConnectionState) String() string {
	return nameOf(int(s), "ConnectionState", "connecting", "connected", "ended")
}

// MarshalText returns what String does, for logs. It never fails.
func (s ConnectionState) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// ConnectionStatus describes a client's connection at one moment.
type ConnectionStatus struct {
	// State says whether there is a connection.
	State ConnectionState
	// Broker is the address of the present connection or of the latest attempt. Empty:
	// there was no attempt, or the Conn has no broker.
	Broker string
	// Connections counts the connections so far. If it rises by more than one from one
	// status to the next, the client lost connections in between.
	Connections int
	// Err says why there is no connection: how it was lost, why the latest attempt
	// failed, or why there will be none. Nil while Connected.
	Err error
}

// LogValue returns the fields as a group, with the error as text.
func (s ConnectionStatus) LogValue() slog.Value {
	fields := []slog.Attr{slog.String("state", s.State.String()), slog.String("broker", s.Broker), slog.Int("connections", s.Connections)}
	if s.Err != nil {
		fields = append(fields, slog.String("error", s.Err.Error()))
	}
	return slog.GroupValue(fields...)
}

// Connection returns the present status of the connection. It does not block.
func (c *Client) Connection() ConnectionStatus {
	if conn, ok := c.conn.(interface{ status() ConnectionStatus }); ok {
		return conn.status()
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	status := ConnectionStatus{Connections: int(c.connected)}
	switch {
	case c.closed:
		status.State, status.Err = Ended, ErrClosed
	case c.connection != 0:
		status.State = Connected
	}
	return status
}

// Lost returns a channel that is closed when the present connection is lost or replaced.
// While there is no connection, the channel is closed already.
func (c *Client) Lost() <-chan struct{} {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.lost
}

// alreadyLost is the channel while there is no connection.
var alreadyLost = func() chan struct{} {
	closed := make(chan struct{})
	close(closed)
	return closed
}()

// status is what Client.Connection returns.
func (c *mqttConn) status() ConnectionStatus {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.latest
}

// changedLocked replaces the status, unless that was the last one. It must not block.
func (c *mqttConn) changedLocked(state ConnectionState, err error) {
	if c.latest.State == Ended {
		return
	}
	if state == Connected {
		c.latest.Connections++
	}
	c.latest.State, c.latest.Err = state, err
	signal(c.changed)
}

// report calls call with each new status until the last one, which is Ended. A status that
// call had no time for is replaced by the next one.
func (c *mqttConn) report(call func(ConnectionStatus)) {
	for range c.changed {
		c.mu.Lock()
		select {
		case <-c.changed: // latest contains that change too
		default:
		}
		status := c.latest
		c.mu.Unlock()
		call(status)
		if status.State == Ended {
			return
		}
	}
}
