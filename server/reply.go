package server

import (
	"context"
	"sync"
	"time"

	"github.com/eclipse/paho.golang/packets"

	"github.com/tenurelock/tenure/internal/mqtt"
	"github.com/tenurelock/tenure/internal/protocol"
	"github.com/tenurelock/tenure/internal/unauthenticated"
	"github.com/tenurelock/tenure/server/internal/envelope"
	"github.com/tenurelock/tenure/server/internal/fairqueue"
	"github.com/tenurelock/tenure/server/internal/logs"
	"github.com/tenurelock/tenure/server/internal/pubsub"
	"github.com/tenurelock/tenure/server/internal/wire"
	"github.com/tenurelock/tenure/statestore"
)

// tooLargeForClient replaces a reply that is larger than its client takes. It is not one of the
// refusals of the protocol: clients get its text.
const tooLargeForClient protocol.Refusal = "the reply is larger than the client takes"

// encodedPublish is a reply or a notification as it leaves, with QoS 0: a client that misses it repeats
// its request, or asks. Its memory comes from encodedPublishes, so that it allocates nothing and an
// idle connection has none.
type encodedPublish struct {
	wire.Forward // its TopicBytes, Properties and Payload may be the fields below
	topic        []byte
	properties   []byte
	payload      []byte
}

var encodedPublishes = sync.Pool{New: func() any { return new(encodedPublish) }}

// free lets another reply or notification use the memory. It keeps no large value.
func (e *encodedPublish) free() {
	e.Forward = wire.Forward{}
	if cap(e.topic)+cap(e.properties)+cap(e.payload) <= maxEncodedPublish {
		encodedPublishes.Put(e)
	}
}

// maxEncodedPublish is how many bytes the memory of a packet may have to be used again.
const maxEncodedPublish = 4096

// encodeReply returns a reply to a client, to be freed after use. If a value makes it larger than the
// client takes, it is a refusal instead, so that the client need not wait for nothing.
func (s *Server) encodeReply(conn *connection, topic string, correlation []byte, reply statestore.Reply) *encodedPublish {
	encoded := s.encodeReplyToAll(topic, correlation, reply)
	if reply.Outcome == statestore.Found && conn.gate.TooLarge(encoded.Size()) {
		encoded.free()
		return s.encodeReplyToAll(topic, correlation, statestore.Reply{Verb: reply.Verb, Err: tooLargeForClient})
	}
	return encoded
}

// encodeReplyToAll is encodeReply without regard to what a client takes.
func (s *Server) encodeReplyToAll(topic string, correlation []byte, reply statestore.Reply) *encodedPublish {
	e := encodedPublishes.Get().(*encodedPublish)
	e.properties = append(e.properties[:0], s.replyProperties...)
	e.properties = mqtt.AppendProperty(e.properties, packets.PropCorrelationData, correlation)
	if !reply.Version.IsZero() {
		var room [64]byte // for the usual node ids
		e.properties = mqtt.AppendUserProperty(e.properties, protocol.PropertyTimestamp, reply.Version.Append(room[:0]))
	}
	e.payload = reply.Append(e.payload[:0])
	e.Forward = wire.Forward{MQTT5: true, Topic: topic, Properties: e.properties, Payload: e.payload}
	return e
}

// encodeReplyProperties returns the encoded properties that all replies of a store have.
func encodeReplyProperties(identity string) []byte {
	return mqtt.AppendUserProperty(encodeNotificationProperties(identity), protocol.PropertyStatus, protocol.StatusOK)
}

// holdReply adds a reply on a topic of its client to the packets that are held back, and returns how
// many bytes it added. Only the client itself can read the topic, so it is written directly, and
// nothing that other clients do can delay it.
func (s *Server) holdReply(conn *connection, reply *encodedPublish) (added int) {
	identifiers, subscribed := conn.session.Matches(reply.Topic)
	if !subscribed {
		return 0
	}
	reply.Identifiers = identifiers       // of the subscriptions that match it [MQTT-3.3.4-3]
	if conn.gate.TooLarge(reply.Size()) { // [MQTT-3.1.2-24]
		return 0
	}
	return conn.holdBack(func(held []byte) []byte {
		held, err := reply.Append(held)
		if err != nil {
			s.logger.Debug("a reply was not delivered", "client", logs.Name(conn.identity.Client), "error", logs.Error(err))
		}
		return held
	})
}

// publishReply publishes a reply on a topic that other clients may read. It calls yield now and
// then if that takes long.
func (s *Server) publishReply(reply *encodedPublish, yield func()) {
	s.messages.Publish(&pubsub.Message{
		Topic:      reply.Topic,
		Properties: reply.Properties,
		Payload:    reply.Payload,
		Borrowed:   true,
	}, yield)
}

// pendingReply is the reply to a request, from before the store gets the request until the reply is written.
// Its memory comes from pendingReplies, so that an idle connection has none.
type pendingReply struct {
	server      *Server
	to          *outbox // nil: no client can read the reply
	topic       string
	correlation []byte
	key         string
	bytes       int64 // of the outbox
	reply       statestore.Reply
	arrive      func(statestore.Reply) // the method arrived as a value, which is allocated once
}

var pendingReplies sync.Pool

// replyOverhead is what a reply costs besides its texts while it waits, in bytes.
const replyOverhead = 512

// newReply returns the reply to a request.
func (s *Server) newReply(r *request, command *statestore.Command) *pendingReply {
	p, ok := pendingReplies.Get().(*pendingReply)
	if !ok {
		p = new(pendingReply)
		p.arrive = p.arrived
	}
	p.server, p.topic, p.key = s, r.responseTopic, command.Key
	p.correlation = append(p.correlation[:0], r.CorrelationData...) // whose bytes are overwritten later
	p.bytes = replyOverhead + int64(len(p.topic)+len(p.correlation))
	return p
}

func (p *pendingReply) free() (isReply bool) {
	if cap(p.correlation) <= maxEncodedPublish {
		*p = pendingReply{correlation: p.correlation, arrive: p.arrive}
		pendingReplies.Put(p)
	}
	return true
}

// arrived queues the reply, which may leave now. The engine calls it with its lock held, so it must not block.
func (p *pendingReply) arrived(reply statestore.Reply) {
	if reply.Outcome == statestore.Expired {
		return // it is not sent
	}
	p.server.count(func(stats *Stats) { stats.Requests++ })
	if p.to != nil {
		p.reply = reply
		p.bytes += envelope.ValueCost(p.key, &reply) // for which makeRoomForValue takes room
		p.to.answer(p)
	}
}

func (p *pendingReply) size() int64 { return p.bytes }

// write writes the reply to its connection, which is nil for the reply to a Will.
func (p *pendingReply) write(conn *connection, turn *fairqueue.Place) (added int) {
	var encoded *encodedPublish
	if conn == nil {
		encoded = p.server.encodeReplyToAll(p.topic, p.correlation, p.reply)
	} else {
		encoded = p.server.encodeReply(conn, p.topic, p.correlation, p.reply)
	}
	defer encoded.free()
	if envelope.IsClientTopic(p.topic) {
		return p.server.holdReply(conn, encoded)
	}
	p.server.publishReply(encoded, turn.Yield)
	return 0
}

// cancel gives back the room of a reply that is not sent.
func (p *pendingReply) cancel() {
	if p.to != nil {
		p.to.release(p)
	}
}

const (
	// assuredRequest and assuredReplies bound what the store takes though too much waits for a commit: a
	// request of so many bytes, of a connection for which no more replies wait. So 10,000 connections can add
	// some 40 MB to what waits.
	assuredRequest = 1 << 10
	assuredReplies = 3
)

// isAssured reports whether the store takes a request even if too much waits for a commit, since it is
// small, and nearly nothing waits for its connection. A renewal needs no commit: it must not wait
// for the changes of other clients while a disk is slow.
func isAssured(conn *connection, r *request) bool {
	return len(r.Payload) <= assuredRequest && conn.outbox.awaitedReplies() <= assuredReplies
}

const (
	connectionEnded = "the connection ended before the store could take the request"
	storeStopped    = "the store has stopped; it did not take the request"
)

// noTurn ends a turn of Server.journalTurns that a request does not have.
func noTurn() {}

// makeRoom makes room for a request and its reply, and waits if too much waits: for the connection, or for a
// commit. It returns what is to be called once the store has the request, or a fault if the connection or the
// store ends before.
func (s *Server) makeRoom(conn *connection, r *request, answer *pendingReply) (admitted func(), fault *mqtt.Refusal) {
	if r.isWill {
		return noTurn, s.makeRoomForWill(conn, answer)
	}
	bytes, most := answer.bytes, s.options.Store.DedupWindow
	if !conn.outbox.reserveReply(readerWrites, bytes, most) && !conn.waitOutsideTurn(func() bool {
		return conn.outbox.awaitRoom(func() bool { return conn.outbox.reserveReply(readerWrites, bytes, most) })
	}) {
		return nil, refusal(mqtt.ImplementationError, connectionEnded)
	}
	answer.to = conn.outbox
	if s.options.Journal == nil || s.engine.HasRoom() && s.journalTurns.Waiting() == 0 || isAssured(conn, r) {
		return noTurn, nil
	}
	if conn.waitOutsideTurn(func() bool { admitted = s.awaitJournal(conn); return admitted != nil }) {
		return admitted, nil
	}
	answer.cancel()
	return nil, refusal(mqtt.ImplementationError, storeStopped)
}

// makeRoomForValue takes room for the value of a reply that has some bytes already, and perhaps has left. Only
// the store has told how long it is. The goroutine reads nothing more until there is room for it.
func (s *Server) makeRoomForValue(conn *connection, to *outbox, present, value int64) {
	if value == 0 || to.growReply(present, value) {
		return
	}
	grown := to == conn.outbox && conn.waitOutsideTurn(func() bool {
		return to.awaitRoom(func() bool { return to.growReply(present, value) })
	})
	if !grown {
		to.overdraw(value) // the reply gives it back
	}
}

// awaitJournal waits until not too much waits for a commit. Users take turns, and clients without a user by
// their addresses, so that one with a thousand connections does not keep the others waiting. One request at a
// time goes in, so that no more goes in than there is room for. awaitJournal returns what ends the turn, or nil
// if the connection or the store has ended.
func (s *Server) awaitJournal(conn *connection) (end func()) {
	source := conn.identity.User
	if source == "" {
		source = unauthenticated.SourceOf(conn.address()).String()
	}
	end, err := s.journalTurns.Acquire(conn.open, source)
	if err == nil && s.engine.Room(conn.open) != nil {
		end()
		return nil
	}
	return end
}

const (
	// willPatience bounds how long a Will waits while too much waits for a commit. The next
	// connection of its client waits meanwhile, and the journal may never go on.
	willPatience = 5 * time.Second
	// maxWillReplies bounds how many replies to Wills wait.
	maxWillReplies = 1024
)

// makeRoomForWill is makeRoom for a Will, whose connection has ended. Its reply can reach another client only.
func (s *Server) makeRoomForWill(conn *connection, answer *pendingReply) *mqtt.Refusal {
	ctx, cancel := context.WithTimeout(s.running, willPatience)
	defer cancel()
	if s.engine.Room(ctx) != nil {
		if s.stopping.Load() {
			return refusal(mqtt.ShuttingDown, storeStopped)
		}
		return s.drop(conn, DroppedJournalSlow)
	}
	if !envelope.IsClientTopic(answer.topic) && s.willReplies.reserveReply(noWriter, answer.bytes, maxWillReplies) {
		answer.to = s.willReplies
	}
	return nil
}

// publishWillReplies publishes replies to Wills.
func (s *Server) publishWillReplies() {
	defer s.willReplies.turn.End()
	for _, p := range s.willReplies.take(startedWrites) {
		s.willReplies.turn.Begin()
		p.write(nil, s.willReplies.turn)
		s.willReplies.release(p)
	}
}
