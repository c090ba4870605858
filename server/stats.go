package server

import (
	"maps"

	"github.com/tenurelock/tenure/server/activity"
	"github.com/tenurelock/tenure/server/internal/envelope"
	"github.com/tenurelock/tenure/server/internal/events"
	"github.com/tenurelock/tenure/server/internal/pubsub"
	"github.com/tenurelock/tenure/statestore"
)

// DropReason is why a request was not given to the store. The sender reads it in the
// acknowledgement, as far as its version of MQTT has space for it.
type DropReason = envelope.DropReason

// The reasons why a request is dropped.
const (
	DroppedRetained       = envelope.DroppedRetained       // it is retained
	DroppedQoS            = envelope.DroppedQoS            // its QoS is not 1
	DroppedNoResponse     = envelope.DroppedNoResponse     // it has no response topic
	DroppedNoCorrelation  = envelope.DroppedNoCorrelation  // it has no correlation data
	DroppedForbiddenTopic = envelope.DroppedForbiddenTopic // its response topic belongs to the store
	DroppedInvalidTopic   = envelope.DroppedInvalidTopic   // its response topic has a wildcard or begins with $
	DroppedForeignTopic   = envelope.DroppedForeignTopic   // its response topic belongs to another client
	DroppedExpired        = envelope.DroppedExpired        // its Message Expiry Interval was over

	// DroppedTooManyTopics: the client has used 64 other response topics in its session.
	DroppedTooManyTopics DropReason = "this client has used 64 response topics below clients/ in its session already; " +
		"let it use one for all requests"
	// DroppedJournalSlow: it is a Will, and for 5 s too much waited for the journal.
	DroppedJournalSlow DropReason = "the journal did not go on in time for a Will; if it stays so, look for a disk or a " +
		"network that is slow"
)

// RefusalReason is why a connection was refused.
type RefusalReason string

// The reasons why a connection is refused. CONNACK tells the client no more than it may know. A
// connection that has not sent a CONNECT is closed.
const (
	// RefusedCredentials: Authenticator has refused the client.
	RefusedCredentials RefusalReason = "wrong credentials"
	// RefusedBusy: too many clients wait for Authenticator.
	RefusedBusy RefusalReason = "too many password checks wait"
	// RefusedSlow: TLS or Authenticator had no turn, or Authenticator has not decided, within 5 s.
	RefusedSlow RefusalReason = "no TLS handshake or password check in time"
	// RefusedUnauthenticated: see Options.MaxUnauthenticated.
	RefusedUnauthenticated RefusalReason = "too many connections have not authenticated"
	RefusedTurn            RefusalReason = "another connection of the client was being established"
	RefusedDescriptors     RefusalReason = "too many files and sockets are open"
	// RefusedRules: a client id, a Will or a limit; CONNACK has the reason, if the client takes a CONNACK.
	RefusedRules RefusalReason = "CONNECT was refused"
)

// MessageDropReason is why an ordinary message did not reach a subscriber: "session full" or "sessions full", as
// much waits for the client, or for all, as may; "expired", its Message Expiry Interval was over before it could be
// sent; "too large" for the subscriber; "not readable", the subscriber may not read the topic. The publisher is not
// told.
type MessageDropReason = pubsub.Reason

// Stats counts what happened since the server was made.
type Stats struct {
	// Connected is how many clients are connected now.
	Connected int
	// Requests is how many requests the store has answered, including those that it refused and
	// redeliveries.
	Requests uint64
	// Dropped is how many requests were not given to the store, by reason.
	Dropped map[DropReason]uint64
	// DroppedMessages is how many ordinary messages did not reach a subscriber, counted for
	// each subscriber, by reason.
	DroppedMessages map[MessageDropReason]uint64
	// AppliedWills is how many Wills that are requests were given to the store. Requests counts
	// them too.
	AppliedWills uint64
	// Refused is how many connections were refused, at CONNECT or before, by reason.
	Refused map[RefusalReason]uint64
	// SlowReaders is how many clients were disconnected because they did not read fast enough.
	SlowReaders uint64
	// Panics is how often the server recovered from a panic by ending a connection, or by not
	// publishing a Will. Each is a bug of the server, or of an Authenticator or Authorizer.
	Panics uint64
}

// Usage is what a server holds now for its clients.
type Usage struct {
	// Store is what the store holds: keys, values, watches.
	Store statestore.Usage
	// Sessions is how many clients are connected or have a session that is kept.
	Sessions int
	// Their subscriptions and the messages that wait for them.
	pubsub.Usage
	// OutgoingBytes is what else waits to be written to connections, or will after a commit.
	OutgoingBytes int64
	// ArrivingBytes is what large packets take that are not complete.
	ArrivingBytes int64
}

// Usage returns what the server holds now. It is cheap to call.
func (s *Server) Usage() Usage {
	usage := Usage{Store: s.engine.Usage(), Usage: s.messages.Usage(), OutgoingBytes: s.outgoing.Used(),
		ArrivingBytes: s.arriving.Used()}
	s.mu.Lock()
	defer s.mu.Unlock()
	usage.Sessions = len(s.clients)
	return usage
}

// Stats returns the counts as they are now.
func (s *Server) Stats() Stats {
	s.mu.Lock()
	defer s.mu.Unlock()
	stats := s.stats
	stats.Dropped, stats.Refused, stats.DroppedMessages = maps.Clone(stats.Dropped),
		maps.Clone(stats.Refused), s.messages.Dropped()
	return stats
}

// refused counts a connection that is refused, and logs a line about it.
func (s *Server) refused(why RefusalReason, attributes ...any) {
	s.count(func(stats *Stats) { stats.Refused[why]++ })
	s.log(lineRefused, attributes...)
}

// count changes the statistics.
func (s *Server) count(change func(*Stats)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	change(&s.stats)
}

// State returns what the status page of the server shows. It takes milliseconds, and holds up requests for
// less than one. Values of leases, which may be secret, are a part of it.
func (s *Server) State() activity.State { return events.State(s.engine, s.seen) }
