package transport

import "sync"

// ConnectionState says whether requests can travel.
type ConnectionState int

const (
	// Connecting: there is no connection, and it is being tried, for the first time
	// or again.
	Connecting ConnectionState = iota
	// Connected: requests travel.
	Connected
	// Ended: there is no connection, and there will be none.
	Ended
)

// String returns the state's name.
func (s ConnectionState) String() string {
	switch s {
	case Connecting:
		return "connecting"
	case Connected:
		return "connected"
	case Ended:
		return "ended"
	}
	return "unknown"
}

// ConnectionStatus is a client's connection at one moment. It may have changed by the
// time it is looked at.
type ConnectionStatus struct {
	State ConnectionState
	// Broker is the address of the present connection or of the latest attempt;
	// empty before the first, and where there is no broker.
	Broker string
	// Connections is how many there have been. Where it rises by more than one from
	// one status to the next, losses between them were not shown.
	Connections int
	// Err says why there is no connection: how it was lost, why the latest attempt
	// failed, or what ended it for good. Nil while Connected.
	Err error
}

// Connection returns the present status of the connection. It may be called at any
// time, from any goroutine, and does not block.
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

// announcer tells a function of each new status, in a goroutine of its own: what tells
// the announcer never waits for the function. What it has no time for is replaced by
// what came later.
type announcer struct {
	tell func(ConnectionStatus)
	done chan struct{} // closed when the last was told

	mu      sync.Mutex
	changed sync.Cond
	latest  ConnectionStatus
	news    bool
}

// newAnnouncer starts the goroutine, which ends after the first status that is Ended.
func newAnnouncer(tell func(ConnectionStatus)) *announcer {
	a := &announcer{tell: tell, done: make(chan struct{})}
	a.changed.L = &a.mu
	go a.run()
	return a
}

func (a *announcer) run() {
	defer close(a.done)
	for {
		status := a.next()
		a.tell(status)
		if status.State == Ended {
			return
		}
	}
}

func (a *announcer) next() ConnectionStatus {
	a.mu.Lock()
	defer a.mu.Unlock()
	for !a.news {
		a.changed.Wait()
	}
	a.news = false
	return a.latest
}

func (a *announcer) announce(status ConnectionStatus) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.latest, a.news = status, true
	a.changed.Signal()
}

// status is what Client.Connection returns.
func (c *mqttConn) status() ConnectionStatus {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.present
}

// changedLocked replaces the status, unless it was the last. Nobody may wait in it.
func (c *mqttConn) changedLocked(state ConnectionState, err error) {
	if c.present.State == Ended {
		return
	}
	if state == Connected {
		c.present.Connections++
	}
	c.present.State, c.present.Err = state, err
	if c.announcer != nil {
		c.announcer.announce(c.present)
	}
}
