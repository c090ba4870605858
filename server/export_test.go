package server

import (
	"time"

	"github.com/tenurelock/tenure/server/access"
	"github.com/tenurelock/tenure/statestore"
)

// These methods give tests access to internals.

// HasSession reports whether a client is connected or has a session.
func (s *Server) HasSession(client string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.clients[client] != nil
}

// Lost returns when the last connection of a client ended.
func (s *Server) Lost(client string) time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.clients[client].lost
}

// Expire ends the session of a client if its time is over.
func (s *Server) Expire(client string, now time.Time) {
	s.sweepClient(client, now)
}

// Clients returns how many clients are connected or have a session.
func (s *Server) Clients() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.clients)
}

// LockClientID locks a client id like a connection that is established.
func (s *Server) LockClientID(client string) (release func()) {
	release, ok := s.tryLockID(client)
	if !ok {
		panic("the client id is taken")
	}
	return release
}

// ClaimClientID claims a locked client id like a connection that is admitted.
func (s *Server) ClaimClientID(client string) bool {
	return s.reserveID(&connection{identity: access.Identity{Client: client}}) == nil
}

func (s *Server) collides(client string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.collidesLocked(client)
}

// Waits reports whether a connection waits for a client id.
func (s *Server) Waits(client string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.ids[client] != nil && s.ids[client].users > 1
}

// LockedClientIDs returns how many client ids are locked.
func (s *Server) LockedClientIDs() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.ids)
}

// SetClientIDTimeout sets how long a connection waits for its client id. Call it before Serve.
func (s *Server) SetClientIDTimeout(patience time.Duration) { s.clientIDTimeout = patience }

// Sweep ends the sessions, and publishes the Wills, whose time is over by now.
func (s *Server) Sweep(now time.Time) { s.sweep(now) }

// PanicInStore makes the store panic while it is changed.
func (s *Server) PanicInStore(value any) {
	s.engine.Submit(statestore.Parse(statestore.Request{Client: "p", Correlation: []byte("x"), Payload: []byte("*2\r\n$3\r\nDEL\r\n$1\r\nk\r\n")}), func(statestore.Reply) { panic(value) })
}

// ResponseTopics returns the number of sessions with reserved response topics.
func (s *Server) ResponseTopics() (sessions int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, c := range s.clients {
		if len(c.answered) > 0 || c.answeredWill > 0 {
			sessions++
		}
	}
	return sessions
}

// Sockets returns the number of open connections, before and after CONNECT.
func (s *Server) Sockets() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.connections)
}

// SetAuthenticationTimeout sets how long a connection has to authenticate. Call it before Serve.
func (s *Server) SetAuthenticationTimeout(patience time.Duration) { s.auth.Timeout = patience }

// Unauthenticated returns the number of connections that have not authenticated, and how many of
// them wait for the comparison of a password.
func (s *Server) Unauthenticated() (all, waiting int) {
	_, waiting = s.auth.Waiting()
	return s.auth.Len(), waiting
}

// Handshaking returns how many TLS handshakes wait for their turns.
func (s *Server) Handshaking() int {
	handshakes, _ := s.auth.Waiting()
	return handshakes
}

// HasCapacity reports whether the store takes a change without waiting for a commit.
func (s *Server) HasCapacity() bool { return s.engine.HasCapacity() }

// WaitingForCapacity returns how many requests wait behind one that waits because too much waits for a commit.
func (s *Server) WaitingForCapacity() int { return s.journalTurns.Waiting() }

// Limits are what Options derives from MaxMemory.
type Limits = limits

// With returns options with these limits.
func (o Options) With(l Limits) Options {
	o.limits = l
	return o
}
