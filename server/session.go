package server

import (
	"context"
	"hash/maphash"
	"time"

	"github.com/tenurelock/tenure/internal/mqtt"
	"github.com/tenurelock/tenure/server/access"
	"github.com/tenurelock/tenure/server/internal/fairqueue"
	"github.com/tenurelock/tenure/server/internal/logs"
	"github.com/tenurelock/tenure/server/internal/pubsub"
)

// client is what the server keeps for a client id from its CONNECT until its session has ended [MQTT-4.1],
// besides what the store and package pubsub have. Server.mu guards it.
type client struct {
	identity access.Identity
	conn     *connection   // nil: it is away
	lost     time.Time     // since when
	expiry   time.Duration // how long its session is kept then
	kept     bool          // its session counts in Server.kept
	will     *ordinaryWill // waits for its delay; nil: none

	// Hashes of the response topics that are reserved for it: of its requests, and of its latest Will.
	answered     []uint64
	answeredWill uint64
}

// enter makes a connection the present one of its client, which is no longer away. It reports whether the
// client goes on with a session that it had [MQTT-3.2.2-2, MQTT-3.2.2-3].
func (s *Server) enter(conn *connection, cleanStart bool) (present bool) {
	id := conn.identity.Client
	if cleanStart {
		s.endSession(id, conn.readTurn) // [MQTT-3.1.2-4]
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	c := s.clients[id]
	if c == nil || cleanStart {
		s.forgetLocked(id)
		c = &client{identity: conn.identity}
		s.clients[id] = c
	} else {
		present = true
		s.uncountLocked(c)
		c.will = nil // [MQTT-3.1.3-9]
	}
	c.conn, conn.client = conn, c
	conn.seen = s.seen.Come(id, conn.identity.User, conn.remote, true)
	s.connected++
	if conn.will != nil && needsReservation(conn.will.responseTopic) {
		c.answeredWill = maphash.String(s.seed, conn.will.responseTopic)
	}
	return present
}

// startSession lets a client publish, subscribe and receive, now that its CONNACK is sent.
func (s *Server) startSession(conn *connection, receiveMaximum uint16) {
	conn.session = s.messages.Session(conn.identity.Client)
	conn.outbox.begin(func() { s.writeWaiting(conn) })
	conn.session.Attach(pubsub.Receiver{
		Link:              conn.outbox,
		MQTT5:             conn.gate.Version >= mqtt.Version5,
		ReceiveMaximum:    receiveMaximum,
		MaximumPacketSize: conn.gate.Maximum,
		MayRead:           func(topic string) bool { return s.mayReceive(conn, topic) },
	})
}

// sessionExpiry returns how long the session outlives the connection, as CONNECT and DISCONNECT say.
func (c *connection) sessionExpiry() time.Duration {
	return time.Duration(min(c.gate.SessionExpiry, maxSessionExpiry)) * time.Second
}

// endConnection ends what the server keeps for a connection, and its session if that is not
// kept. No other connection of the client is established before it returns.
func (s *Server) endConnection(conn *connection) {
	id, slow, expiry := conn.identity.Client, conn.slow.Load(), conn.sessionExpiry()
	// If the client is back, its session does not count as one of a client that is away.
	kept := expiry > 0 && (conn.replaced.Load() || s.keepSession(conn))
	if !kept {
		s.endSession(id, conn.readTurn)
	} else {
		s.engine.Disconnect(id)
		if conn.session != nil {
			conn.session.Detach(conn.outbox)
		}
	}
	s.noteEnd(conn)
	s.mu.Lock()
	conn.client.conn, conn.client.lost, conn.client.expiry = nil, time.Now(), expiry
	s.connected--
	if !kept {
		s.forgetLocked(id)
	}
	if slow {
		s.stats.SlowReaders++
	}
	s.mu.Unlock()
	if slow {
		s.slow.Log("client", logs.Name(id), "remote", conn.remote)
	}
}

// keepSession counts the session of a connection as one of a client that is away. It reports
// false if the client's user has as many of these as Limits.SessionsPerUser allows.
func (s *Server) keepSession(conn *connection) bool {
	user, limit := conn.identity.User, s.options.Limits.SessionsPerUser
	s.mu.Lock()
	if conn.client.kept = s.kept[user] < limit; conn.client.kept {
		s.kept[user]++
		s.mu.Unlock()
		return true
	}
	s.mu.Unlock()
	s.notKept.Log("client", logs.Name(conn.identity.Client), "user", logs.Name(user), "limit", limit,
		"hint", "raise Options.Limits.SessionsPerUser, --max-sessions-per-user, or let clients ask for no Session Expiry Interval")
	return false
}

// endSession deletes what the server keeps for a session, except for its client in Server.clients: until it
// returns, no client is admitted that would own the same topics. turn is the place of the goroutine that calls
// it, which is not in a turn.
func (s *Server) endSession(id string, turn *fairqueue.Place) {
	s.engine.EndSession(id)
	if session, ok := s.messages.Find(id); ok {
		session.End()
	}
	if will := s.takeDelayedWill(id); will != nil {
		s.publishOrdinaryWill(will, turn) // its delay ends with the session at the latest [MQTT-3.1.2-8]
	}
}

// forgetLocked removes a client, if there is one.
func (s *Server) forgetLocked(id string) {
	if c := s.clients[id]; c != nil {
		s.uncountLocked(c)
		delete(s.clients, id)
	}
}

// uncountLocked ends what keepSession has begun.
func (s *Server) uncountLocked(c *client) {
	if user := c.identity.User; c.kept {
		c.kept = false
		if s.kept[user]--; s.kept[user] == 0 {
			delete(s.kept, user)
		}
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

// userOf returns the user of a client that is connected or has a session.
func (s *Server) userOf(id string) (user string, known bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if c := s.clients[id]; c != nil {
		return c.identity.User, true
	}
	return "", false
}

// hasSession reports whether a client is connected or has a session.
func (s *Server) hasSession(id string) bool {
	_, known := s.userOf(id)
	return known
}

// isFull reports whether as many clients as may be are connected or have a session.
func (s *Server) isFull() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.clients) >= s.options.MaxClients
}

// eachSecond calls do about once a second, until ctx ends.
func eachSecond(ctx context.Context, do func(now time.Time)) {
	ticker := time.NewTicker(time.Second)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case now := <-ticker.C:
			do(now)
		}
	}
}

// eachClient calls do with each client, and with mu locked.
func (s *Server) eachClient(do func(*client)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, c := range s.clients {
		do(c)
	}
}

// endSessions ends the sessions, and frees the messages, that have expired by now [MQTT-3.1.2-23].
func (s *Server) endSessions(now time.Time) {
	var expired []*client
	s.eachClient(func(c *client) {
		if c.conn == nil && now.Sub(c.lost) > c.expiry {
			expired = append(expired, c)
		}
	})
	turn := s.processors.NewPlace()
	for _, c := range expired {
		s.expire(c, now, turn)
	}
	s.messages.Sweep()
	s.endRestoredSessions(now)
}

// expire ends a session. It does not wait while a connection of its client is being established: the
// client resumes the session, or the next round finds it again.
func (s *Server) expire(c *client, now time.Time, turn *fairqueue.Place) {
	id := c.identity.Client
	release, ok := s.clientIDs.tryLock(id)
	if !ok {
		return
	}
	defer release()
	s.mu.Lock()
	due := s.clients[id] == c && c.conn == nil && now.Sub(c.lost) > c.expiry
	s.mu.Unlock()
	if !due {
		return // it came back, and may have left again since
	}
	s.endSession(id, turn)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.forgetLocked(id)
}

// restoredKept is how long after its start a server keeps what its journal has about sessions of
// clients that have not come back: the replies to requests that they may deliver again.
const restoredKept = 10 * time.Minute

// endRestoredSessions ends the sessions, in the store, of clients that have not come back in time
// after the start. Nothing else is left of their sessions. What is left, the next round ends.
func (s *Server) endRestoredSessions(now time.Time) {
	if now.Sub(s.began) < restoredKept {
		return
	}
	s.mu.Lock()
	clients := s.restored
	s.restored = nil
	s.mu.Unlock()
	var left []string
	for _, client := range clients {
		if !s.endRestoredSession(client) {
			left = append(left, client)
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.restored = append(s.restored, left...)
}

// endRestoredSession ends the session of a client in the store, unless the client is back: then it
// has a session, which ends as others do. It reports false while a connection of the client is
// being established.
func (s *Server) endRestoredSession(client string) (done bool) {
	release, ok := s.clientIDs.tryLock(client)
	if !ok {
		return false
	}
	defer release()
	if !s.hasSession(client) {
		s.engine.EndSession(client)
	}
	return true
}
