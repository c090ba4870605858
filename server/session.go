package server

import (
	"context"
	"errors"
	"hash/maphash"
	"time"

	"github.com/tenurelock/tenure/internal/sleep"
	"github.com/tenurelock/tenure/server/access"
	"github.com/tenurelock/tenure/server/internal/envelope"
	"github.com/tenurelock/tenure/server/internal/logs"
	"github.com/tenurelock/tenure/server/internal/pubsub"
)

// client is what the server keeps for a client id from its CONNECT until its session has ended [MQTT-4.1],
// besides what the store has. Server.mu guards it.
type client struct {
	identity access.Identity // constant
	session  *pubsub.Session // constant
	conn     *connection     // nil: it is away
	lost     time.Time       // since when
	expiry   time.Duration   // how long its session is kept then

	// Hashes of the response topics that are reserved for it: of its requests, and of its latest Will.
	answered     []uint64
	answeredWill uint64
}

// enter makes a connection the present one of its client, which is no longer away. It reports whether the
// client goes on with a session that it had [MQTT-3.2.2-2, MQTT-3.2.2-3].
func (s *Server) enter(conn *connection, cleanStart bool) (present bool) {
	id := conn.identity.Client
	if cleanStart {
		s.endSession(id) // [MQTT-3.1.2-4]
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	c := s.clients[id]
	if present = c != nil && !cleanStart; !present {
		identity := conn.identity
		mayRead := func(topic string) bool { return s.mayRead(identity, topic) }
		c = &client{identity: identity, session: s.messages.NewSession(id, mayRead)}
		s.clients[id] = c
	}
	c.conn, conn.client = conn, c
	conn.seen = s.seen.Come(id, conn.identity.User, conn.remote, true)
	s.stats.Connected++
	if conn.will != nil && needsReservation(conn.will.responseTopic) {
		c.answeredWill = maphash.String(s.seed, conn.will.responseTopic)
	}
	return present
}

// sessionExpiry returns how long the session outlives the connection, as CONNECT and DISCONNECT say.
func (c *connection) sessionExpiry() time.Duration {
	return time.Duration(min(c.gate.SessionExpiry, maxSessionExpiry)) * time.Second
}

// endConnection ends what the server keeps for a connection, and its session if that is not
// kept. No other connection of the client is established before it returns.
func (s *Server) endConnection(conn *connection) {
	id, expiry, why := conn.identity.Client, conn.sessionExpiry(), conn.why.Load()
	if expiry == 0 {
		s.endSession(id)
	} else {
		s.engine.Disconnect(id)
		conn.client.session.Detach()
	}
	s.engine.Lost(id, conn.identity.User)
	conn.seen.Go(why.shown)
	if why == endSlow {
		s.count(func(stats *Stats) { stats.SlowReaders++ })
		s.log(lineSlow, "client", logs.Name(id), "remote", conn.remote)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	conn.client.conn, conn.client.lost, conn.client.expiry = nil, time.Now(), expiry
	s.stats.Connected--
	if expiry == 0 {
		delete(s.clients, id)
	}
}

// endSession deletes what the server keeps for a session, except for its client in Server.clients: until it
// returns, no client is admitted that would own the same topics.
func (s *Server) endSession(id string) {
	s.engine.EndSession(id)
	s.mu.Lock()
	c := s.clients[id]
	s.mu.Unlock()
	if c != nil {
		c.session.End()
	}
}

// connectionOf returns the connection of a client, or nil.
func (s *Server) connectionOf(id string) *connection {
	s.mu.Lock()
	defer s.mu.Unlock()
	if c := s.clients[id]; c != nil {
		return c.conn
	}
	return nil
}

// sweepSessions calls sweep once a second, until ctx ends.
func (s *Server) sweepSessions(ctx context.Context) {
	for sleep.For(ctx, time.Second) {
		s.sweep(time.Now())
	}
}

// isOverLocked reports whether by now the session of a client has expired.
func (c *client) isOverLocked(now time.Time) bool { return c.conn == nil && now.Sub(c.lost) > c.expiry }

// sweep ends the sessions, and frees the messages, whose time is over [MQTT-3.1.2-23].
func (s *Server) sweep(now time.Time) {
	var over []string
	var sessions []*pubsub.Session
	s.mu.Lock()
	for id, c := range s.clients {
		sessions = append(sessions, c.session)
		if c.isOverLocked(now) {
			over = append(over, id)
		}
	}
	if now.Sub(s.began) >= restoredKept {
		over = append(over, s.restored...)
		s.restored = nil
	}
	s.mu.Unlock()
	for _, id := range over {
		s.sweepClient(id, now)
	}
	for _, session := range sessions {
		session.Sweep(now)
	}
}

// restoredKept is how long after its start a server keeps what its journal has about sessions of
// clients that have not come back: the replies to requests that they may deliver again.
const restoredKept = 10 * time.Minute

// sweepClient is sweep for one client, or for one that has a session in the store only. It does nothing while a
// connection of the client is being established: that goes on with the session, or a later round finds it again.
func (s *Server) sweepClient(id string, now time.Time) {
	unlock, ok := s.tryLockID(id)
	s.mu.Lock()
	c := s.clients[id]
	switch {
	case !ok:
		s.restored = append(s.restored, id)
		s.mu.Unlock()
		return
	case c == nil || c.isOverLocked(now): // it may have come back, and left again since
		s.mu.Unlock()
		s.endSession(id)
		s.mu.Lock()
		delete(s.clients, id)
	}
	s.mu.Unlock()
	unlock()
}

// What follows locks client ids, so that connections of one client are established one after the other. A
// connection locks its client id, for which it may wait, and then reserves it. Both last until the
// client has entered Server.clients, or the connection has ended.
//
// A lock excludes no other client id, even one that would own the same topics: otherwise a client
// that connects again and again could make another one wait.

// clientIDTimeout bounds how long a connection waits for an earlier one of its client.
const clientIDTimeout = 5 * time.Second

var (
	errNewerWaits = errors.New("a newer connection of this client waits in place of this one")
	errIDTimedOut = errors.New("an earlier connection of this client was not established, or not ended, in time")
)

// idLock is the lock of a client id that a connection, or sweep, has locked or waits for. Server.mu guards it.
type idLock struct {
	held     chan struct{} // has an item while the lock is held
	users    int           // that hold it or wait for it
	newest   context.CancelCauseFunc
	reserved bool // by the connection that has the lock
}

// lockID waits until no other connection has the client id, and returns the function that unlocks
// it. It returns an error if ctx ends before, and for all but the latest of the connections that
// wait: when a link fails and comes back, only the latest connection has a client at its other
// end, and any other would be taken over at once. So at most one connection of a client waits,
// however many it opens.
func (s *Server) lockID(ctx context.Context, client string) (unlock func(), err error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	s.mu.Lock()
	id := s.ids[client]
	if id == nil {
		id = &idLock{held: make(chan struct{}, 1), newest: func(error) {}}
		s.ids[client] = id
	}
	id.users++
	id.newest(errNewerWaits)
	id.newest = cancel
	s.mu.Unlock()
	select {
	case id.held <- struct{}{}:
		return func() { s.unlockID(client, id, true) }, nil
	case <-ctx.Done():
		s.unlockID(client, id, false)
		return nil, context.Cause(ctx)
	}
}

// tryLockID is lockID for the server itself, which must not wait. It reports false if the client id is locked.
func (s *Server) tryLockID(client string) (unlock func(), ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ids[client] != nil {
		return nil, false
	}
	id := &idLock{held: make(chan struct{}, 1), users: 1, newest: func(error) {}}
	id.held <- struct{}{}
	s.ids[client] = id
	return func() { s.unlockID(client, id, true) }, true
}

func (s *Server) unlockID(client string, id *idLock, held bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if id.users--; id.users == 0 {
		delete(s.ids, client)
	}
	if held {
		id.reserved = false
		<-id.held
	}
}

// collidesLocked reports whether another client, which is connecting or has a session, owns a level
// below clients/ that this client would own too: its id is the upper-case hex of this one, or the reverse.
func (s *Server) collidesLocked(client string) bool {
	taken := func(id string) bool { return s.clients[id] != nil || s.ids[id] != nil && s.ids[id].reserved }
	name, isHex := envelope.FromHexLevel(client)
	return taken(envelope.HexLevel(client)) || isHex && taken(name)
}
