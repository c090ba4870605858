package server

import (
	"cmp"
	"errors"
	"net"
	"strings"
	"time"

	"github.com/tenurelock/tenure/server/activity"
	"github.com/tenurelock/tenure/statestore"
)

// observing makes the event of a request, and returns what the engine calls with the reply when that may
// leave. It is apart from apply so that a request without an observer allocates nothing for it.
func (s *Server) observing(conn *connection, r *request, command *statestore.Command, now time.Time) func(statestore.Reply) {
	event := s.events.Request(command, now)
	event.User, event.Remote = activity.CutText(conn.identity.User), conn.remote
	event.Will = r.isWill
	if r.forced != nil {
		event.Forced = activity.CutText(strings.Clone(*r.forced))
	}
	return func(reply statestore.Reply) { s.events.Answered(event, reply) }
}

// observeConnection reports that the session of a client is established.
func (s *Server) observeConnection(conn *connection) {
	if s.events.Wanted() {
		conn.observed = true
		s.events.Push(s.connectionEvent(activity.Connected, conn, ""))
	}
}

// observeEnd reports the end of a connection, unless its beginning was not reported.
func (s *Server) observeEnd(conn *connection) {
	if conn.observed {
		s.events.Push(s.connectionEvent(activity.Disconnected, conn, cmp.Or(conn.endReason, activity.ReasonLost)))
	}
}

// observeTakeOver reports that a client has opened a connection while an earlier one was open.
func (s *Server) observeTakeOver(earlier, next *connection) {
	event := s.connectionEvent(activity.TakenOver, earlier, earlier.remote)
	event.Remote = next.remote
	s.events.Push(event) // a flapping client id is for the log, whether or not there is an observer
}

func (s *Server) connectionEvent(kind activity.Kind, conn *connection, reason string) activity.Event {
	return activity.Event{
		Kind:   kind,
		At:     time.Now(),
		Client: activity.CutKey(conn.identity.Client),
		User:   activity.CutText(conn.identity.User),
		Remote: conn.remote,
		Reason: reason,
	}
}

// observeRefusal reports that a connection was refused.
func (s *Server) observeRefusal(conn *connection, why RefusalReason) {
	if s.events.Wanted() {
		s.events.Push(activity.Event{Kind: activity.Refused, At: time.Now(), Client: activity.CutKey(conn.identity.Client), Remote: conn.remote, Reason: string(why)})
	}
}

// observeDrop reports that a request was dropped.
func (s *Server) observeDrop(conn *connection, why DropReason) {
	if s.events.Wanted() {
		s.events.Push(activity.Event{
			Kind: activity.Dropped, At: time.Now(), Client: activity.CutKey(conn.identity.Client), User: activity.CutText(conn.identity.User),
			Remote: conn.remote, Reason: string(why),
		})
	}
}

// whyEnded returns why a connection ended, as the goroutine that reads it finds out.
func whyEnded(conn *connection, stopping bool) string {
	var timeout net.Error
	switch {
	case conn.ended == nil:
		return activity.ReasonLeft
	case conn.replaced.Load():
		return activity.ReasonTakenOver
	case conn.slow.Load():
		return activity.ReasonSlow
	case conn.fault != nil:
		return activity.ReasonFault
	case stopping:
		return activity.ReasonStopped
	case errors.As(conn.ended, &timeout) && timeout.Timeout():
		return activity.ReasonSilent
	}
	return activity.ReasonLost
}
