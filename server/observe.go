package server

import (
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

// observe reports what happened to a connection, if anything takes the events.
func (s *Server) observe(kind activity.Kind, conn *connection, reason string) {
	if s.events.Wanted() {
		s.events.Push(connectionEvent(kind, conn, reason))
	}
}

// observeEnd reports the end of a connection, unless its beginning was not reported.
func (s *Server) observeEnd(conn *connection) {
	if conn.observed {
		s.events.Push(connectionEvent(activity.Disconnected, conn, whyEnded(conn, s.stopping.Load())))
	}
}

// observeTakeOver reports that a client has opened a connection while an earlier one was open.
func (s *Server) observeTakeOver(earlier, next *connection) {
	event := connectionEvent(activity.TakenOver, earlier, earlier.remote)
	event.Remote = next.remote
	s.events.Push(event) // a flapping client id is for the log, whether or not there is an observer
}

func connectionEvent(kind activity.Kind, conn *connection, reason string) activity.Event {
	return activity.Event{
		Kind:   kind,
		At:     time.Now(),
		Client: activity.CutKey(conn.identity.Client),
		User:   activity.CutText(conn.identity.User),
		Remote: conn.remote,
		Reason: reason,
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
