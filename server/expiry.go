package server

import (
	"context"
	"time"

	mqtt "github.com/mochi-mqtt/server/v2"
	"github.com/mochi-mqtt/server/v2/packets"
)

// What follows ends the sessions of clients that stayed away too long. The broker does
// that too, but it looks which sessions have run out and removes them later, by their
// client ids: a client that comes back in between would be removed in their place, and
// its client id would be free for another user while it is connected. So the broker is told
// that no session ever runs out.

// limitSession bounds the session that a client asks for at CONNECT, before the broker
// enters the client. It reports whether the client gets a shorter one.
func limitSession(cl *mqtt.Client) (shortened bool) {
	props := &cl.Properties.Props
	shortened = props.SessionExpiryInterval > maxSessionExpiry
	props.SessionExpiryInterval = min(props.SessionExpiryInterval, maxSessionExpiry)
	props.SessionExpiryIntervalFlag = false // the broker takes its own maximum, which is never reached
	return shortened
}

// changeSession is limitSession for a DISCONNECT, which may change the interval. What is
// left in the packet is an error: a session that ends with the connection cannot be made
// longer [MQTT-3.14.2-2].
func changeSession(cl *mqtt.Client, pk *packets.Packet) {
	asked, props := &pk.Properties, &cl.Properties.Props
	if asked.SessionExpiryIntervalFlag && (asked.SessionExpiryInterval == 0 || props.SessionExpiryInterval != 0) {
		props.SessionExpiryInterval = min(asked.SessionExpiryInterval, maxSessionExpiry)
		asked.SessionExpiryIntervalFlag = false
	}
}

// expireSessions ends sessions that have run out, and frees messages that have, about once a
// second, until ctx ends.
func (s *Server) expireSessions(ctx context.Context) {
	eachSecond(ctx, func(now time.Time) {
		s.endSessions(now)
		s.messages.Sweep()
	})
}

// publishDueTestaments publishes the Wills whose delay is over, until ctx ends. It has a
// goroutine of its own: the ends of many sessions take long.
func (s *Server) publishDelayedWills(ctx context.Context) { eachSecond(ctx, s.publishDueWills) }

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

// endSessions ends the sessions that have run out by now.
func (s *Server) endSessions(now time.Time) {
	for _, cl := range s.mochi.Clients.GetAll() {
		conn, ok := cl.Net.Conn.(*connection)
		if !ok || cl.StopTime() == 0 || !conn.isOver() {
			continue // connected, or its end is still to be noted
		}
		kept := uint32(maxSessionExpiry)
		if cl.Properties.ProtocolVersion >= 5 {
			kept = cl.Properties.Props.SessionExpiryInterval
		}
		if now.Unix() > cl.StopTime()+int64(kept) {
			s.expire(cl)
		}
	}
}

// expire ends a session, unless a connection of its client is being established. That may
// take seconds, so expire does not wait: the client takes the session over, or the next round
// finds it again. Until the end, no client is admitted that would own the same topics.
func (s *Server) expire(cl *mqtt.Client) {
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

// isOver reports whether the broker has forgotten a connection, and the server noted that.
func (c *connection) isOver() bool {
	select {
	case <-c.over:
		return true
	default:
		return false
	}
}
