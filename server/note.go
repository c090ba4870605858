package server

import (
	"errors"
	"net"
	"strings"
	"time"

	"github.com/tenurelock/tenure/internal/protocol"
	"github.com/tenurelock/tenure/internal/shown"
	"github.com/tenurelock/tenure/server/activity"
	"github.com/tenurelock/tenure/server/internal/events"
	"github.com/tenurelock/tenure/server/internal/logs"
	"github.com/tenurelock/tenure/statestore"
)

// State returns what the status page of the server shows. It takes milliseconds, and holds up requests for
// less than one. Values of leases, which may be secret, are a part of it.
func (s *Server) State() activity.State { return events.State(s.engine, s.seen) }

// describe adds to a command what the server knows of its request.
func (s *Server) describe(conn *connection, r *request, command *statestore.Command) {
	command.Arrived = s.engine.Elapsed()
	command.User, command.Will = conn.identity.User, r.isWill
	if r.forced != nil {
		command.Forced = strings.Clone(shown.Cut(*r.forced))
	}
}

// note notes the reply to a request, and logs a request that a rule refuses: of the users, or of strict mode.
func (s *Server) note(conn *connection, command *statestore.Command, reply statestore.Reply) {
	conn.seen.Answered(command, &reply, time.Now())
	s.log.Answered(command, &reply, conn.remote)
	switch reply.Err {
	case protocol.NotAuthorized, protocol.LockRule, protocol.FencingTokenNeverIssued:
		s.denials.Log("client", logs.Name(conn.identity.Client), "user", logs.Name(conn.identity.User), "remote", conn.remote,
			"verb", command.Verb.String(), "key", logs.Name(command.Key), "reason", reply.Err.Error())
	}
}

// noteEnd notes the end of a connection.
func (s *Server) noteEnd(conn *connection) {
	s.engine.Lost(conn.identity.Client, conn.identity.User)
	conn.seen.Go(whyEnded(conn, s.stopping.Load()))
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
