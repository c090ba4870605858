package server

import (
	"strings"
	"time"

	"github.com/tenurelock/tenure/internal/mqtt"
	"github.com/tenurelock/tenure/internal/protocol"
	"github.com/tenurelock/tenure/internal/shown"
	"github.com/tenurelock/tenure/internal/unauthenticated"
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

// request applies a request, whose reply leaves by the outbox of the connection: at once or after a commit. If
// the message is not a request by the rules of the protocol, or the store cannot take it, it is dropped, and
// request returns what to say in the acknowledgement.
func (s *Server) request(conn *connection, r request) *mqtt.Refusal {
	dropped := s.checkRequest(conn, r)
	if dropped == "" && !s.reserveTopic(conn, r.responseTopic) {
		dropped = DroppedTooManyTopics
	}
	if dropped != "" {
		conn.readTurn.End() // drop may disconnect the client, and wait for that
		return s.drop(conn, dropped)
	}
	command := s.command(conn, &r)
	command.Willed = s.endsWith(conn, &command)
	answer := conn.newReply(&r, command.Key)
	endTurn, ok := conn.admitRequest(&r, answer)
	if !ok {
		return refusal(mqtt.ImplementationError,
			"the connection or the store has ended before the store could take the request")
	}
	reply, fault := s.submit(conn, command, answer.arrive)
	endTurn()
	if value := envelope.ValueCost(command.Key, &reply); value > 0 {
		conn.outbox.overdraw(value)
	}
	if s.behind.Load() != nil {
		conn.waitOutsideTurn(s.letRead)
	}
	return fault
}

// command returns the command in a request that arrives now, with the decision whether the user may give it.
func (s *Server) command(conn *connection, r *request) statestore.Command {
	command := s.parse(conn, r)
	command.Arrived = s.engine.Elapsed()
	command.User, command.Will = conn.identity.User, r.isWill
	if r.forced != nil {
		command.Forced = strings.Clone(shown.Cut(*r.forced))
	}
	if command.Verb == statestore.VerbKeyNotify {
		_, command.Waits = r.User(protocol.PropertyWaiting)
	}
	if command.Err() == nil && !s.options.Authorizer.Authorize(conn.identity, command.Verb, command.Key) {
		command = command.Deny()
	}
	return command
}

// submit gives a command to the store, and notes what becomes of it.
func (s *Server) submit(
	conn *connection, command statestore.Command, done func(statestore.Reply),
) (statestore.Reply, *mqtt.Refusal) {
	reply, now := s.engine.Submit(command, done)
	conn.seen.Answered(&command, &reply, time.Now())
	s.events.Answered(&command, &reply, conn.remote)
	if now && reply.Outcome == statestore.Expired {
		return reply, s.drop(conn, DroppedExpired)
	}
	return reply, nil
}

// answered counts a reply of the store.
func (s *Server) answered(reply statestore.Reply) {
	if reply.Outcome != statestore.Expired { // which is not sent
		s.count(func(stats *Stats) { stats.Requests++ })
	}
}

const (
	// assuredRequest and assuredReplies bound what the store takes though too much waits for a commit: a
	// request of so many bytes, of a connection for which no more replies wait. So 10,000 connections can add
	// some 40 MB to what waits. A renewal needs no commit: it must not wait for the changes of other clients
	// while a disk is slow.
	assuredRequest = 1 << 10
	assuredReplies = 3
)

// admitRequest takes space for a request and its reply, and waits if too much waits: for the connection, or for
// a commit. endTurn is to be called when the store has the request. admitRequest reports false if the connection or
// the store ends before.
func (c *connection) admitRequest(r *request, answer *pendingReply) (endTurn func(), ok bool) {
	s, o, most := c.server, c.outbox, c.server.options.Store.DedupWindow
	replies, writes, ok := o.reserveReply(answer.bytes, most, false)
	if !ok {
		c.waitOutsideTurn(func() { replies, writes, ok = o.reserveReply(answer.bytes, most, true) })
	}
	if c.writesOwn = c.writesOwn || writes; !ok {
		return nil, false
	}
	assured := len(r.Payload) <= assuredRequest && replies <= assuredReplies
	if assured || s.engine.HasCapacity() && s.journalTurns.Waiting() == 0 {
		return func() {}, true
	}
	c.waitOutsideTurn(func() { endTurn, ok = c.awaitJournal() })
	if !ok {
		o.release(answer)
	}
	return endTurn, ok
}

// awaitJournal waits until not too much waits for a commit, and reports false if the connection or the store
// ends before. Users take turns, and clients without a user by their addresses, so that one with a thousand
// connections does not keep the others waiting. A turn ends when the store has the request, so that no more
// goes in than there is space for.
func (c *connection) awaitJournal() (end func(), ok bool) {
	source := c.identity.User
	if source == "" {
		source = unauthenticated.SourceOf(unauthenticated.RemoteOf(c.socket)).String()
	}
	end, err := c.server.journalTurns.Acquire(c.open, source)
	if err != nil {
		return nil, false
	}
	if c.server.engine.AwaitCapacity(c.open) != nil {
		end()
		return nil, false
	}
	return end, true
}

// parse parses the command in a request that arrives now.
func (s *Server) parse(conn *connection, r *request) statestore.Command {
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
	dropped := envelope.Check(r.Retain, r.QoS, r.responseTopic, r.CorrelationData)
	if dropped == "" && !s.mayBeAnswered(conn.identity, r.responseTopic) {
		return DroppedForeignTopic
	}
	return dropped
}

// drop counts and logs a request that is dropped, and returns what to say in its acknowledgement.
// It disconnects the client if the response topic belongs to the store (docs/protocol.md §1.2).
func (s *Server) drop(conn *connection, why DropReason) *mqtt.Refusal {
	s.count(func(stats *Stats) { stats.Dropped[why]++ })
	conn.seen.Dropped()
	s.log(lineDropped, "client", logs.Name(conn.identity.Client), "remote", conn.remote, "reason", string(why))
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
