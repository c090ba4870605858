package server

import (
	"bytes"
	"context"
	"math"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"github.com/eclipse/paho.golang/packets"

	"github.com/tenurelock/tenure/internal/engine"
	"github.com/tenurelock/tenure/internal/mqtt"
	"github.com/tenurelock/tenure/internal/protocol"
	"github.com/tenurelock/tenure/internal/semaphore"
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

// sendReply sends a reply to its topic, in the turn of a goroutine of the connection. It returns how
// many bytes it added to the packets that are held back.
func (s *Server) sendReply(conn *connection, turn *fairqueue.Place, topic string, correlation []byte, reply statestore.Reply) (added int) {
	encoded := s.encodeReply(conn, topic, correlation, reply)
	defer encoded.free()
	if !envelope.IsClientTopic(topic) {
		s.publishReply(encoded, turn.Yield)
		return 0
	}
	return s.holdReply(conn, encoded)
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
	_, _ = s.messages.PublishInTurns(&pubsub.Message{ // fails for retained messages only
		Topic:      reply.Topic,
		Properties: reply.Properties,
		Payload:    reply.Payload,
		Borrowed:   true,
	}, yield)
}

// waitingReply is a reply that waits for a commit, since it shows a change that the journal does not
// have yet. Two goroutines add their part: the one that read the request, and the engine's after
// the commit, in any order. The one that comes second queues the reply in the outbox.
type waitingReply struct {
	server *Server
	to     *outbox
	arrive func(statestore.Reply) // the method arrived as a value, which is allocated once

	parts atomic.Int32 // how many of the two have been added

	// Of the goroutine that read the request.
	topic       string
	correlation []byte
	room        int64 // bytes of the outbox
	abandoned   bool  // the connection ended before there was room

	reply statestore.Reply // of the engine's goroutine
}

func (s *Server) newWaitingReply(to *outbox) *waitingReply {
	w := &waitingReply{server: s, to: to}
	w.arrive = w.arrived
	return w
}

// arrived takes the reply after its commit. The engine calls it, so it must not block.
func (w *waitingReply) arrived(reply statestore.Reply) {
	w.server.count(func(stats *Stats) { stats.Requests++ })
	w.reply = reply
	w.added()
}

// address adds what the reply needs of its request, whose bytes are overwritten later.
func (w *waitingReply) address(topic string, correlation []byte, room int64) {
	w.topic, w.correlation, w.room = topic, bytes.Clone(correlation), room
}

// added notes that one part is complete.
func (w *waitingReply) added() {
	if w.parts.Add(1) == 2 && w.to.pushReply(w) {
		w.to.Wake()
	}
}

// waitingReplyOverhead is what a reply costs besides its texts while it waits, in bytes.
const waitingReplyOverhead = 512

// submit gives a command to a store with a journal. It reports true for later if the reply waits for
// a commit. It then has queued the reply, or will.
//
// If too much waits, for this connection or for all, it waits for a commit first, outside of its turn
// of the processors. It returns a fault if the connection or the store ends before that. A request
// that isAssured does not wait for what others have filled.
func (s *Server) submit(conn *connection, r request, command statestore.Command) (reply statestore.Reply, later bool, fault *mqtt.Refusal) {
	if r.isWill {
		return s.submitWill(conn, r, command)
	}
	room := waitingReplyOverhead + int64(len(r.responseTopic)+len(r.CorrelationData))
	if !conn.outbox.takeReply(room, s.options.Store.DedupWindow) && !s.waitToTake(conn, room) {
		return reply, false, refusal(mqtt.ImplementationError, connectionEnded)
	}
	var admitted func()
	if s.journalTurns.mustWait(s.engine) && !isAssured(conn, r) {
		if admitted = s.waitForJournal(conn); admitted == nil {
			conn.outbox.cancelReply(room)
			return reply, false, refusal(mqtt.ImplementationError, storeStopped)
		}
	}
	if conn.spare == nil {
		conn.spare = s.newWaitingReply(conn.outbox)
	}
	waiting := conn.spare
	reply, now := s.engine.SubmitWaking(command, waiting.arrive, conn.wakeOthers)
	s.note(conn, &command, reply)
	if admitted != nil {
		admitted()
	}
	switch {
	case !now:
	case reply.Outcome == statestore.Expired: // is not sent
		conn.outbox.cancelReply(room)
		return reply, false, nil
	case conn.outbox.cancelUnlessBehind(room):
		return reply, false, nil
	}
	conn.spare = nil
	if now {
		waiting.arrived(reply) // replies about one key leave in the order of the store
	}
	// Only now is it known how long the value is. The goroutine reads nothing more until there is
	// room for it.
	if value := envelope.ValueCost(command.Key, &reply); value > 0 {
		if conn.outbox.growReply(room, value) || s.waitToGrow(conn, room, value) {
			room += value
		} else {
			waiting.abandoned = true
		}
	}
	waiting.address(r.responseTopic, r.CorrelationData, room)
	waiting.added()
	return statestore.Reply{}, true, nil
}

const (
	// assuredRequest is the largest payload of a request that the store takes though too much waits
	// for a commit, and assuredReplies is how much may wait for its connection then, its own reply
	// included: about three replies. So 10,000 connections can add some 40 MB to what waits.
	assuredRequest = 1 << 10
	assuredReplies = 2 << 10
)

// isAssured reports whether the store takes a request even if too much waits for a commit, since it is
// small, and nearly nothing waits for its connection. A renewal needs no commit: it must not wait
// for the changes of other clients while a disk is slow.
func isAssured(conn *connection, r request) bool {
	return len(r.Payload) <= assuredRequest && conn.outbox.promisedAtMost(assuredReplies)
}

// The three functions below wait, outside of a turn, and report failure if the connection or the store
// ends before. They are apart from submit, so that a request that need not wait allocates nothing.

func (s *Server) waitToTake(conn *connection, room int64) bool {
	return conn.waitOutsideTurn(func() bool {
		return conn.outbox.waitForRoom(conn.open, func() bool { return conn.outbox.takeReply(room, s.options.Store.DedupWindow) })
	})
}

func (s *Server) waitToGrow(conn *connection, present, more int64) bool {
	return conn.waitOutsideTurn(func() bool {
		return conn.outbox.waitForRoom(conn.open, func() bool { return conn.outbox.growReply(present, more) })
	})
}

// waitForJournal returns what ends the turn of the connection, to be called once the store has the
// request; nil if the connection or the store has ended.
func (s *Server) waitForJournal(conn *connection) (admitted func()) {
	conn.waitOutsideTurn(func() bool {
		admitted = s.journalTurns.wait(conn, s.engine)
		return admitted != nil
	})
	return admitted
}

// journalTurns lets the requests in that wait while too much waits for a commit. Sources take turns, so
// that one with a thousand connections does not keep the others waiting, and one request at a time goes
// in, so that no more goes in than there is room for. A source is a user, or an address if its
// clients have not authenticated.
type journalTurns struct {
	turns   *semaphore.Fair[journalSource]
	waiting atomic.Int64
}

type journalSource struct {
	user    string
	network netip.Prefix // of clients without a user
}

func newJournalTurns() *journalTurns {
	unlimited := func(journalSource) int { return math.MaxInt } // each connection waits with one request
	return &journalTurns{turns: semaphore.New(1, math.MaxInt, unlimited)}
}

// mustWait reports whether a request has to wait: for room, or behind requests that wait already.
func (t *journalTurns) mustWait(store *engine.Engine) bool {
	return !store.HasRoom() || t.waiting.Load() > 0
}

// wait waits for a turn and for room. It returns what ends the turn, or nil if the connection or the
// store has ended.
func (t *journalTurns) wait(conn *connection, store *engine.Engine) (end func()) {
	t.waiting.Add(1)
	defer t.waiting.Add(-1)
	source := journalSource{user: conn.identity.User}
	if source.user == "" {
		source.network = unauthenticated.SourceOf(conn.address())
	}
	end, err := t.turns.Acquire(conn.open, source)
	if err != nil {
		return nil
	}
	if store.Room(conn.open) != nil {
		end()
		return nil
	}
	return end
}

const (
	connectionEnded = "the connection ended before the store could take the request"
	storeStopped    = "the store has stopped; it did not take the request"
)

const (
	// willPatience bounds how long a Will waits while too much waits for a commit. The next
	// connection of its client waits meanwhile, and the journal may never go on.
	willPatience = 5 * time.Second
	// maxWillReplies bounds how many replies to Wills wait.
	maxWillReplies = 1024
)

// submitWill is submit for a Will, whose connection has ended. Its reply can reach another client
// only.
func (s *Server) submitWill(conn *connection, r request, command statestore.Command) (reply statestore.Reply, later bool, fault *mqtt.Refusal) {
	ctx, cancel := context.WithTimeout(s.running, willPatience)
	defer cancel()
	if s.engine.Room(ctx) != nil {
		if s.stopping.Load() {
			return reply, false, refusal(mqtt.ShuttingDown, storeStopped)
		}
		return reply, false, s.drop(conn, DroppedJournalSlow)
	}
	room := waitingReplyOverhead + int64(len(r.responseTopic)+len(r.CorrelationData))
	if envelope.IsClientTopic(r.responseTopic) || !s.willReplies.takeReply(room, maxWillReplies) {
		reply, now := s.engine.Submit(command, nil)
		s.note(conn, &command, reply)
		return reply, !now, nil
	}
	waiting := s.newWaitingReply(s.willReplies)
	reply, now := s.engine.Submit(command, waiting.arrive)
	s.note(conn, &command, reply)
	if now {
		s.willReplies.cancelReply(room)
		return reply, false, nil
	}
	waiting.address(r.responseTopic, r.CorrelationData, room)
	waiting.added()
	return statestore.Reply{}, true, nil
}

// writeReplies adds the replies whose commits are over to the packets that are held back, and
// writes when these are enough.
func (s *Server) writeReplies(conn *connection) {
	conn.replies = conn.outbox.takeReplies(conn.replies)
	held := 0
	for _, reply := range conn.replies {
		if conn.closed.Load() {
			return
		}
		conn.writeTurn.Begin()
		held += s.sendReply(conn, conn.writeTurn, reply.topic, reply.correlation, reply.reply)
		conn.outbox.replyWritten(reply.room)
		if held >= heldEnough || conn.writeTurn.Spent() {
			conn.writeTurn.End()
			conn.flush()
			held = 0
		}
	}
	clear(conn.replies) // an idle client must not keep their values
}

// publishWillReplies publishes the replies to Wills whose commits are over.
func (s *Server) publishWillReplies() {
	defer s.willTurn.End()
	for _, reply := range s.willReplies.takeReplies(nil) {
		s.willTurn.Begin()
		encoded := s.encodeReplyToAll(reply.topic, reply.correlation, reply.reply)
		s.publishReply(encoded, s.willTurn.Yield)
		encoded.free()
		s.willReplies.replyWritten(reply.room)
	}
}
