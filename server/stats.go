package server

import (
	"maps"

	"github.com/tenurelock/tenure/server/internal/envelope"
	"github.com/tenurelock/tenure/statestore"
)

// DropReason is why a request was not given to the store. The sender reads it in the
// acknowledgement, as far as its version of MQTT has room for it.
type DropReason = envelope.DropReason

// The reasons why a request is dropped.
const (
	DroppedRetained       = envelope.DroppedRetained
	DroppedQoS            = envelope.DroppedQoS
	DroppedNoResponse     = envelope.DroppedNoResponse
	DroppedNoCorrelation  = envelope.DroppedNoCorrelation
	DroppedForbiddenTopic = envelope.DroppedForbiddenTopic
	DroppedInvalidTopic   = envelope.DroppedInvalidTopic
	DroppedForeignTopic   = envelope.DroppedForeignTopic
	DroppedExpired        = envelope.DroppedExpired

	DroppedTooManyTopics DropReason = "this client has used 64 response topics below clients/ in its session already; let it use one for all requests"
	DroppedOldProtocol   DropReason = "a request needs MQTT 5"
)

// Refused is why a connection was refused.
type RefusalReason string

// Why connections are refused. CONNACK tells the client as much as it may know; where
// there was no CONNECT the connection is closed.
const (
	RefusedCredentials     RefusalReason = "the credentials are not good"
	RefusedBusy            RefusalReason = "too many passwords wait to be compared"
	RefusedSlow            RefusalReason = "its password could not be compared in time"
	RefusedUnauthenticated RefusalReason = "too many connections have not authenticated"
	RefusedTurn            RefusalReason = "another connection of its client was being established"
	RefusedDescriptors     RefusalReason = "too many files and sockets are open"
	RefusedRules           RefusalReason = "the server does not admit what CONNECT asks for"
)

// MessageDropReason is why an ordinary message did not reach a subscriber. The publisher is
// not told.
type MessageDropReason string

// The reasons why a message is dropped.
const (
	// MessageConnectionFull: it has QoS 0, and as much waits for the connection as
	// Limits.OutgoingBytes or Limits.AllOutgoingBytes allow.
	MessageConnectionFull MessageDropReason = "connection full"
	// MessageSessionFull: it has QoS 1, and as much waits in the session as
	// Limits.SessionMessages or Limits.SessionBytes allow.
	MessageSessionFull MessageDropReason = "session full"
	// MessageSessionsFull: it has QoS 1, and as much waits in all sessions as
	// Limits.AllSessionBytes allows.
	MessageSessionsFull MessageDropReason = "sessions full"
	// MessageExpired: its Message Expiry Interval was over before it could be sent.
	MessageExpired MessageDropReason = "expired"
	// MessageTooLarge: it is larger than the Maximum Packet Size of the subscriber.
	MessageTooLarge MessageDropReason = "too large"
	// MessageNotReadable: the subscriber may not read the topic.
	MessageNotReadable MessageDropReason = "not readable"
	// MessageNoReceiver: no member of a shared subscription could take it.
	MessageNoReceiver MessageDropReason = "no receiver"
	// MessageNotRetained: as much is retained as Limits.RetainedMessages or
	// Limits.RetainedBytes allow.
	MessageNotRetained MessageDropReason = "not retained"
)

// Stats counts what happened since the server was made.
type Stats struct {
	// Connected is how many clients are connected now.
	Connected int
	// Requests is how many requests the store has answered, refusals and
	// repetitions included.
	Requests uint64
	// Dropped is how many were not given to the store, by reason.
	Dropped map[DropReason]uint64
	// DroppedMessages is how many ordinary messages did not reach a subscriber, counted for
	// each subscriber, by reason.
	DroppedMessages map[MessageDropReason]uint64
	// AppliedWills is how many requests that clients left as their Wills were
	// given to the store when their connections ended. They are counted in
	// Requests too, refusals included.
	AppliedWills uint64
	// RefusedConnections is how many connections were refused, at CONNECT or
	// before: credentials, limits, Wills.
	RefusedConnections uint64
	// Refused is the same by reason.
	Refused map[RefusalReason]uint64
	// SlowReaders is how many clients were disconnected because they did not
	// read what was written to them, notifications or anything else.
	SlowReaders uint64
	// Panics is how often the server recovered from a panic: it ended the connection that it
	// handled or was to send a message to, or gave up publishing a Will. Each is a fault of
	// the server, or of a function that it was given.
	Panics uint64
}

// Usage is what a server holds now for its clients.
type Usage struct {
	Store statestore.Usage
	// Sessions, connected or kept, and their Subscriptions, which take up
	// SubscriptionBytes.
	Sessions, Subscriptions int
	SubscriptionBytes       int64
	// WaitingMessages of QoS 1 wait in sessions, and have WaitingBytes.
	WaitingMessages, WaitingBytes int64
	// OutgoingBytes wait to be written to connections, besides these.
	OutgoingBytes int64
	// ArrivingBytes is the room for large packets that are not complete.
	ArrivingBytes int64
	// RetainedMessages have RetainedBytes.
	RetainedMessages int
	RetainedBytes    int64
}

// Usage returns what the server holds now. It is cheap to call.
func (s *Server) Usage() Usage {
	messages := s.messages.Usage()
	return Usage{
		Store:             s.engine.Usage(),
		Sessions:          messages.Sessions,
		Subscriptions:     messages.Subscriptions,
		SubscriptionBytes: messages.SubscriptionBytes,
		WaitingMessages:   messages.WaitingMessages,
		WaitingBytes:      messages.WaitingBytes,
		OutgoingBytes:     s.outgoing.Used(),
		ArrivingBytes:     s.incoming.Used(),
		RetainedMessages:  messages.RetainedMessages,
		RetainedBytes:     messages.RetainedBytes,
	}
}

// Stats returns the counts as they are now.
func (s *Server) Stats() Stats {
	dropped := s.messages.Usage().Dropped
	s.mu.Lock()
	defer s.mu.Unlock()
	stats := s.stats
	stats.Connected = len(s.connections)
	stats.Dropped = maps.Clone(s.stats.Dropped)
	stats.Refused = maps.Clone(s.stats.Refused)
	stats.DroppedMessages = map[MessageDropReason]uint64{
		MessageConnectionFull: dropped.LinkFull,
		MessageSessionFull:    dropped.SessionFull,
		MessageSessionsFull:   dropped.TotalFull,
		MessageExpired:        dropped.Expired,
		MessageTooLarge:       dropped.TooLarge,
		MessageNotReadable:    dropped.Forbidden,
		MessageNoReceiver:     dropped.Absent,
		MessageNotRetained:    dropped.NotRetained,
	}
	return stats
}

func (s *Server) countRefused(why RefusalReason) {
	s.count(func(stats *Stats) {
		stats.RefusedConnections++
		stats.Refused[why]++
	})
}

// count changes the counts.
func (s *Server) count(change func(*Stats)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	change(&s.stats)
}
