package transport

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/tenurelock/tenure/internal/loglimit"
	"github.com/tenurelock/tenure/internal/mqtt"
	"github.com/tenurelock/tenure/internal/operror"
)

// ConnectionState says whether a client has a connection.
type ConnectionState string

const (
	// Connecting: there is no connection. The client tries to connect, for the first time
	// or again.
	Connecting ConnectionState = "connecting"
	// Connected: there is a connection.
	Connected ConnectionState = "connected"
	// Ended: there is no connection, and there will be none.
	Ended ConnectionState = "ended"
)

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

// MarshalJSON returns the fields under their names, with the error as text. It implements [json.Marshaler].
func (s ConnectionStatus) MarshalJSON() ([]byte, error) {
	type fields ConnectionStatus
	return json.Marshal(struct {
		fields
		Err string
	}{fields(s), operror.Text(s.Err)})
}

// Connection returns the present status of the connection. It does not block.
func (c *Client) Connection() ConnectionStatus {
	if conn, ok := c.conn.(*mqttConn); ok {
		return conn.status()
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	status := ConnectionStatus{State: Connecting, Connections: int(c.connected)}
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

// alreadyLost is the channel while there is no connection. It is closed.
var alreadyLost = make(chan struct{})

func init() { close(alreadyLost) }

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
}

// failures are attempts to connect in a row that failed.
type failures struct {
	count  int
	limit  loglimit.Limiter
	logger *slog.Logger // got the latest one that was logged
}

// logFailure logs why there is no connection, unless that was logged a moment ago. Dial's attempts are logged
// to slog.Default where there is no Logger: a program that waits in Dial would otherwise be silent, and look as
// if it hung.
func (c *mqttConn) logFailure(err error) {
	c.failures.count++
	if !c.failures.limit.Due(kindOf(err), time.Now()) {
		return
	}
	level := slog.LevelWarn
	if errors.Is(err, ErrUseAnotherServer) {
		level = slog.LevelInfo // the other servers may accept the client
	}
	c.failures.logger = c.logger
	if c.options.Logger == nil && c.status().Connections == 0 {
		standard := handler{slog.Default().Handler(), c.options.program}
		c.failures.logger = slog.New(standard).With("client", c.options.ClientID)
	}
	c.failures.logger.Log(context.Background(), level, "cannot connect", "broker", c.server().Host, "attempt", c.failures.count, "error", err)
}

// kindOf returns the same text for failures that differ in a number only, such as a local port.
func kindOf(err error) string {
	var refused *ConnectionError
	var dial *mqtt.DialError
	switch {
	case errors.As(err, &refused):
		return fmt.Sprint("refused ", refused.Code)
	case errors.As(err, &dial):
		return dial.Error()
	}
	return "other"
}

// logConnected logs a connection. One that follows failures is of interest where those were logged.
func (c *mqttConn) logConnected() {
	logger, level := c.logger, slog.LevelDebug
	if c.failures.logger != nil {
		logger, level = c.failures.logger, slog.LevelInfo
	}
	logger.Log(context.Background(), level, "connected", "broker", c.server().Host, "failed_attempts", c.failures.count)
	c.failures.count, c.failures.logger = 0, nil
	c.failures.limit.Reset()
}
