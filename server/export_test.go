package server

import (
	"time"

	mqtt "github.com/mochi-mqtt/server/v2"

	"github.com/tenurelock/tenure/server/access"
	"github.com/tenurelock/tenure/server/internal/pubsub"
	"github.com/tenurelock/tenure/statestore"
)

// What follows lets tests see and disturb what a user of the package cannot.

// Broker returns the embedded broker.
func (s *Server) Mochi() *mqtt.Server { return s.mochi }

// MaySubscribe reports whether a client may subscribe to a filter.
func (s *Server) MaySubscribe(who access.Identity, filter string) bool {
	return s.maySubscribe(who, filter)
}

// MayPublishWill reports whether a Will may be published now.
func (s *Server) MayPublishWill(who access.Identity, topic string) bool {
	return s.mayPublishWill(who, topic)
}

// TakeName is what a connection does while it is established.
func (s *Server) LockClientID(client, user string) (release func()) {
	release, ok := s.clientIDs.tryLock(client, user)
	if !ok {
		panic("the client id is taken")
	}
	return release
}

// ClaimName is what a connection does that has taken its client id and is admitted.
func (s *Server) ClaimClientID(client string) bool { return s.clientIDs.claim(client, s.hasSession) }

// Waits reports whether a connection waits for a client id.
func (s *Server) Waits(client string) bool {
	s.clientIDs.mu.Lock()
	defer s.clientIDs.mu.Unlock()
	name := s.clientIDs.locked[client]
	return name != nil && name.next != nil
}

// TakenNames returns how many client ids are taken.
func (s *Server) LockedClientIDs() int {
	s.clientIDs.mu.Lock()
	defer s.clientIDs.mu.Unlock()
	return len(s.clientIDs.locked)
}

// PatienceForNames changes how long a connection waits for its client id; before Serve.
func (s *Server) SetClientIDTimeout(patience time.Duration) { s.clientIDs.timeout = patience }

// EndSessions ends the sessions that have run out by now.
func (s *Server) EndSessions(now time.Time) { s.endSessions(now) }

// PanicInStore makes the store panic while it is changed.
func (s *Server) PanicInStore(value any) {
	s.engine.ApplyThen(statestore.Parse(statestore.Request{Client: "p", Correlation: []byte("x"), Payload: []byte("*2\r\n$3\r\nDEL\r\n$1\r\nk\r\n")}), func(statestore.Reply) { panic(value) })
}

// PublishTestaments publishes the ordinary Wills whose delay is over by now.
func (s *Server) PublishDueWills(now time.Time) { s.publishDueWills(now) }

// Messages returns what passes ordinary messages on.
func (s *Server) Messages() *pubsub.Broker { return s.messages }

// ResponseTopics returns of how many sessions response topics are reserved.
func (s *Server) ResponseTopics() int {
	s.responseTopics.mu.Lock()
	defer s.responseTopics.mu.Unlock()
	return len(s.responseTopics.sessions)
}

// Sockets returns how many connections the listener knows, CONNECT or not.
func (s *Server) Sockets() int {
	s.listener.mu.Lock()
	defer s.listener.mu.Unlock()
	return len(s.listener.connections)
}

// HurryAtTheDoor changes how long a connection has to authenticate; before Serve.
func (s *Server) SetAuthenticationTimeout(patience time.Duration) { s.listener.auth.timeout = patience }

// AtTheDoor returns how many connections have not authenticated, and how many of them wait
// for a password to be compared.
func (s *Server) Unauthenticated() (all, waiting int) {
	s.listener.auth.mu.Lock()
	defer s.listener.auth.mu.Unlock()
	return s.listener.auth.total, s.checks.Waiting()
}
