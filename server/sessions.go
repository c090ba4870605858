package server

import (
	"context"
	"net"
	"time"

	mochi "github.com/mochi-mqtt/server/v2"
	"github.com/mochi-mqtt/server/v2/packets"

	"github.com/tenurelock/tenure/internal/mqtt"
	"github.com/tenurelock/tenure/server/access"
	"github.com/tenurelock/tenure/server/internal/logs"
	"github.com/tenurelock/tenure/server/internal/pubsub"
	"github.com/tenurelock/tenure/statestore"
)

// endConnection ends what the server keeps for a connection, and its session if that is not
// kept. No other connection of the client is established before it returns.
func (s *Server) endConnection(clientID string, conn *connection) {
	slow := conn.slow.Load()
	if !conn.disconnected.Load() {
		// mochi v2.7.9: it does not remove a client that it could not send a CONNACK.
		cl, ok := s.mochi.Clients.Get(clientID)
		if ok && cl.Net.Conn == net.Conn(conn) && endsWithConnection(cl) {
			s.mochi.Clients.Delete(clientID)
			conn.sessionEnded.Store(true)
		}
	}
	// If the client is back, its session does not count as one of a client that is away.
	if !conn.sessionEnded.Load() && !conn.replaced.Load() && !s.keepSession(conn) {
		s.mochi.Clients.Delete(clientID)
		conn.sessionEnded.Store(true)
	}
	if conn.sessionEnded.Load() {
		s.endSession(clientID)
	} else {
		s.engine.Disconnect(clientID)
		if conn.session != nil {
			conn.session.Detach(conn.outbox)
		}
	}
	// Last: the next connection of the client waits as long as this one is in the map.
	s.observeEnd(conn)
	s.mu.Lock()
	if s.connections[clientID] == conn {
		delete(s.connections, clientID)
	}
	if slow {
		s.stats.SlowReaders++
	}
	s.mu.Unlock()
	if slow {
		s.slow.Log("client", logs.Name(clientID), "remote", conn.RemoteAddr().String())
	}
}

// endSession deletes what the server keeps for a session.
func (s *Server) endSession(clientID string) {
	s.engine.EndSession(clientID)
	s.responseTopics.release(clientID)
	if session, ok := s.messages.Find(clientID); ok {
		session.End()
	}
	if will := s.takeDelayedWill(clientID); will != nil {
		s.publishOrdinaryWill(will) // its delay ends with the session at the latest [MQTT-3.1.2-8]
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.sessions.remove(clientID)
}

// enter makes a connection the present one of its client, which is no longer away.
func (s *Server) enter(cl *mochi.Client, conn *connection) {
	_ = s.takeDelayedWill(cl.ID)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.sessions.remove(cl.ID)
	s.connections[cl.ID] = conn
}

// startSession lets a client publish, subscribe and receive, now that its CONNACK is sent.
func (s *Server) startSession(cl *mochi.Client, conn *connection) {
	conn.session = s.messages.Session(cl.ID)
	conn.outbox.begin(func() { s.writeWaiting(cl, conn) })
	conn.wakeOthers = func(notifications []statestore.Notification) { s.wakeOthers(conn, notifications) }
	conn.session.Attach(pubsub.Receiver{
		Link:              conn.outbox,
		MQTT5:             cl.Properties.ProtocolVersion >= mqtt.Version5,
		ReceiveMaximum:    conn.receiveMaximum,
		MaximumPacketSize: cl.Properties.Props.MaximumPacketSize,
		MayRead:           func(topic string) bool { return s.mayReceive(conn, topic) },
	})
	s.observeConnection(conn)
	conn.inbound.start(s, cl)
}

// connectionOf returns the connection of a client, or nil.
func (s *Server) connectionOf(client string) *connection {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.connections[client]
}

// keepSession counts the session of a connection as one of a client that is away. It reports
// false if the client's user has as many of these as Limits.SessionsPerUser allows.
func (s *Server) keepSession(conn *connection) bool {
	s.mu.Lock()
	kept := s.sessions.add(conn.identity, s.options.Limits.SessionsPerUser)
	s.mu.Unlock()
	if !kept {
		s.notKept.Log("client", logs.Name(conn.identity.Client), "user", logs.Name(conn.identity.User), "limit", s.options.Limits.SessionsPerUser,
			"hint", "raise Options.Limits.SessionsPerUser, --max-sessions-per-user, or let clients ask for no Session Expiry Interval")
	}
	return kept
}

// endsWithConnection reports whether a client has no session beyond its connection.
func endsWithConnection(cl *mochi.Client) bool {
	if cl.Properties.ProtocolVersion < 5 {
		return cl.Properties.Clean
	}
	return cl.Properties.Props.SessionExpiryInterval == 0
}

// What follows ends the sessions of clients that stayed away too long. mochi v2.7.9 lists the
// expired sessions first and removes them later, by client id: it would also remove a client that
// came back in between, and another user could take its id. So mochi is told that none expires.

// limitSession bounds the Session Expiry Interval that a client asks for at CONNECT, before
// mochi adds the client. It reports whether the client gets a shorter one.
func limitSession(cl *mochi.Client) (shortened bool) {
	props := &cl.Properties.Props
	shortened = props.SessionExpiryInterval > maxSessionExpiry
	props.SessionExpiryInterval = min(props.SessionExpiryInterval, maxSessionExpiry)
	props.SessionExpiryIntervalFlag = false // mochi v2.7.9 then takes its own maximum, which is never reached
	return shortened
}

// changeSession is limitSession for a DISCONNECT, which may change the interval. If it leaves
// the interval in the packet, that is an error: a session that ends with its connection
// cannot be made longer [MQTT-3.14.2-2].
func changeSession(cl *mochi.Client, pk *packets.Packet) {
	asked, props := &pk.Properties, &cl.Properties.Props
	if asked.SessionExpiryIntervalFlag && (asked.SessionExpiryInterval == 0 || props.SessionExpiryInterval != 0) {
		props.SessionExpiryInterval = min(asked.SessionExpiryInterval, maxSessionExpiry)
		asked.SessionExpiryIntervalFlag = false
	}
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

// endSessions ends the sessions, and frees the messages, that have expired by now.
func (s *Server) endSessions(now time.Time) {
	for _, cl := range s.mochi.Clients.GetAll() {
		conn, ok := cl.Net.Conn.(*connection)
		if !ok || cl.StopTime() == 0 || !conn.isOver() {
			continue // connected, or endConnection has not returned yet
		}
		kept := uint32(maxSessionExpiry)
		if cl.Properties.ProtocolVersion >= 5 {
			kept = cl.Properties.Props.SessionExpiryInterval
		}
		if now.Unix() > cl.StopTime()+int64(kept) {
			s.expire(cl)
		}
	}
	s.messages.Sweep()
	s.endRestoredSessions(now)
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
	release, ok := s.clientIDs.tryHold(client)
	if !ok {
		return false
	}
	defer release()
	if !s.hasSession(client) {
		s.engine.EndSession(client)
	}
	return true
}

// expire ends a session. It does not wait while a connection of its client is being established: the
// client resumes the session, or the next round finds it again. Until the session has ended, no
// client is admitted that would own the same topics.
func (s *Server) expire(cl *mochi.Client) {
	release, ok := s.clientIDs.tryLock(cl.ID, userOf(cl))
	if !ok {
		return
	}
	defer release()
	if present, ok := s.mochi.Clients.Get(cl.ID); !ok || present != cl {
		return
	}
	s.endSession(cl.ID)
	s.mochi.Clients.Delete(cl.ID)
}

// isOver reports whether mochi is done with a connection, and endConnection has returned.
func (c *connection) isOver() bool {
	select {
	case <-c.over:
		return true
	default:
		return false
	}
}

// keptSessions counts the sessions of clients that are away, so that one user cannot have too
// many. It is guarded by Server.mu.
type keptSessions struct {
	user  map[string]string // by client id
	count map[string]int    // by user
}

func newKeptSessions() keptSessions {
	return keptSessions{user: make(map[string]string), count: make(map[string]int)}
}

// add counts a session. It reports false if its user has limit of them.
func (k *keptSessions) add(identity access.Identity, limit int) bool {
	if _, ok := k.user[identity.Client]; ok {
		return true
	}
	if k.count[identity.User] >= limit {
		return false
	}
	k.user[identity.Client] = identity.User
	k.count[identity.User]++
	return true
}

// remove removes the session of a client, if there is one.
func (k *keptSessions) remove(client string) {
	user, ok := k.user[client]
	if !ok {
		return
	}
	delete(k.user, client)
	if k.count[user]--; k.count[user] == 0 {
		delete(k.count, user)
	}
}
