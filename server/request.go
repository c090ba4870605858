package server

import (
	"strings"
	"time"

	"github.com/tenurelock/tenure/internal/mqtt"
	"github.com/tenurelock/tenure/internal/protocol"
	"github.com/tenurelock/tenure/server/internal/envelope"
	"github.com/tenurelock/tenure/server/internal/logs"
	"github.com/tenurelock/tenure/statestore"
)

// request is a message to the state store: a PUBLISH or a Will.
type request struct {
	*mqtt.Publish
	responseTopic                          string
	timestamp, fencingToken, store, forced *string
	dialect                                statestore.Dialect // of the client
	isWill                                 bool
}

// requestTexts has the texts of a request, apart from the bytes of its packet. Most requests of a client have
// the same, and copy nothing.
type requestTexts struct{ topic, timestamp, fencingToken, store, forced string }

// request returns the request in a PUBLISH or a Will. It is valid until the next call.
func (t *requestTexts) request(p *mqtt.Publish) request {
	if t.topic != string(p.ResponseTopic) {
		t.topic = string(p.ResponseTopic)
	}
	_, deployed := p.User(protocol.PropertyProtocolVersion)
	return request{
		Publish:       p,
		responseTopic: t.topic,
		timestamp:     copyProperty(&t.timestamp, p, protocol.PropertyTimestamp),
		fencingToken:  copyProperty(&t.fencingToken, p, protocol.PropertyFencingToken),
		store:         copyProperty(&t.store, p, protocol.PropertyStore),
		dialect:       statestore.DialectOf(deployed),
		forced:        copyProperty(&t.forced, p, protocol.PropertyForced),
	}
}

// copyProperty copies a user property to where, and returns where, or nil if the message does not
// have it.
func copyProperty(where *string, p *mqtt.Publish, name string) *string {
	value, ok := p.User(name)
	if !ok {
		return nil
	}
	if *where != string(value) { // nearly always equal for the identity of the store
		*where = string(value)
	}
	return where
}

// handle applies a request, whose reply leaves by the outbox of the connection: at once or after a commit. If
// the message is not a request by the rules of the protocol, or the store cannot take it, handle drops it and
// returns what to say in the acknowledgement.
func (s *Server) handle(conn *connection, r request) *mqtt.Refusal {
	dropped := s.checkRequest(conn, r)
	if dropped == "" {
		dropped = s.reserve(conn, r.responseTopic)
	}
	if dropped != "" {
		conn.readTurn.End() // drop may disconnect the client, and wait for that
		return s.drop(conn, dropped)
	}
	return s.apply(conn, r)
}

// apply applies a request that checkRequest has passed.
func (s *Server) apply(conn *connection, r request) *mqtt.Refusal {
	command := s.parse(conn, r)
	s.describe(conn, &r, &command)
	if command.Err() == nil && !s.options.Authorizer.Authorize(conn.identity, command.Verb, command.Key) {
		command = command.Deny()
	}
	command.Willed = s.endsWith(conn, &command)
	answer := s.newReply(&r, &command)
	admitted, fault := s.makeRoom(conn, &r, answer)
	if fault != nil {
		return fault
	}
	to, present := answer.to, answer.bytes // from now on the answer may be gone
	reply, now := s.engine.Submit(command, answer.arrive)
	admitted()
	s.note(conn, &command, reply)
	if to != nil {
		s.makeRoomForValue(conn, to, present, envelope.ValueCost(command.Key, &reply))
	}
	if s.behind.Load() != nil {
		conn.waitOutsideTurn(func() bool { s.letRead(); return true })
	}
	if now && reply.Outcome == statestore.Expired {
		answer.cancel()
		return s.drop(conn, DroppedExpired)
	}
	return nil
}

// parse parses the command in a request that arrives now.
func (s *Server) parse(conn *connection, r request) statestore.Command {
	asked := statestore.Request{
		Client:       conn.identity.Client,
		Payload:      r.Payload,
		Correlation:  r.CorrelationData,
		Timestamp:    r.timestamp,
		FencingToken: r.fencingToken,
		Store:        r.store,
		PacketID:     r.PacketID,
		Dialect:      r.dialect,
	}
	if r.Duplicate {
		asked.Delivery = statestore.Redelivery
	}
	if r.isWill {
		asked.Correlation = nil // it is not delivered again
	}
	if r.MessageExpiry > 0 {
		asked.Expires = s.engine.Elapsed() + time.Duration(r.MessageExpiry)*time.Second
	}
	return statestore.Parse(asked)
}

// checkRequest returns why the message must be dropped, or "" if it is a request.
func (s *Server) checkRequest(conn *connection, r request) DropReason {
	if conn.gate.Version < mqtt.Version5 {
		return DroppedOldProtocol
	}
	dropped := envelope.Check(r.Retain, r.QoS, r.responseTopic, r.CorrelationData)
	if dropped == "" && !s.mayBeAnswered(conn.identity, r.responseTopic) {
		return DroppedForeignTopic
	}
	return dropped
}

// reserve reserves the response topic of a request for the store's replies until the session
// ends. It returns why the request must be dropped, or "". The goroutine that reads the
// connection calls it.
func (s *Server) reserve(conn *connection, topic string) DropReason {
	if conn.reserved == topic {
		return "" // as for nearly all requests
	}
	if !s.reserveTopic(conn.client, topic) {
		return DroppedTooManyTopics
	}
	conn.reserved = strings.Clone(topic)
	return ""
}

// drop counts and logs a request that is dropped, and returns what to say in its acknowledgement.
// It disconnects the client if the response topic belongs to the store (docs/protocol.md §1.2).
func (s *Server) drop(conn *connection, why DropReason) *mqtt.Refusal {
	s.count(func(stats *Stats) { stats.Dropped[why]++ })
	conn.seen.Dropped()
	s.drops.Log("client", logs.Name(conn.identity.Client), "remote", conn.remote, "reason", string(why))
	if why == DroppedForbiddenTopic {
		conn.refusePacket(refusal(mqtt.NotAuthorized, string(why)))
	}
	return refusal(codeOf(why), string(why))
}

// codeOf returns the reason code for a reason, in PUBACK and in CONNACK.
func codeOf(why DropReason) byte {
	switch why {
	case DroppedForbiddenTopic, DroppedForeignTopic:
		return mqtt.NotAuthorized
	case DroppedInvalidTopic:
		return mqtt.InvalidTopic
	case DroppedTooManyTopics:
		return mqtt.QuotaExceeded
	}
	return mqtt.ImplementationError
}

func refusal(code byte, reason string) *mqtt.Refusal {
	return &mqtt.Refusal{Code: code, Reason: reason}
}
