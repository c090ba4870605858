package server

import (
	"context"
	"log/slog"
	"runtime"
	"strings"
	"time"

	mqtt "github.com/mochi-mqtt/server/v2"
	"github.com/mochi-mqtt/server/v2/packets"

	"github.com/tenurelock/tenure/internal/frame"
	"github.com/tenurelock/tenure/internal/protocol"
	"github.com/tenurelock/tenure/server/access"
	"github.com/tenurelock/tenure/server/internal/envelope"
	"github.com/tenurelock/tenure/server/internal/logs"
	"github.com/tenurelock/tenure/server/internal/pubsub"
	"github.com/tenurelock/tenure/statestore"
)

// request is a message to the state store, whichever way it came. It is part of the
// packet that brought it.
type request struct {
	qos                     byte
	retain                  bool
	responseTopic           string
	correlation             []byte
	expiry                  uint32 // seconds; 0: none
	timestamp, fencingToken *string
	store                   *string // the identity that it names
	payload                 []byte
	isWill                  bool
}

// handle applies a request and returns its reply. What is not a request in the sense of
// the protocol is dropped: nothing is applied, and the fault goes into the
// acknowledgement.
func (s *Server) handle(cl *mqtt.Client, conn *connection, r request) (frame.Message, *packets.Code) {
	dropped := s.checkRequest(conn.identity, cl, r)
	if dropped == "" {
		dropped = s.reserve(conn, r.responseTopic)
	}
	if dropped != "" {
		conn.readTurn.End() // the client may be sent away, which waits for it
		return frame.Message{}, s.drop(cl, dropped)
	}
	reply, fault := s.apply(cl, conn, r)
	if fault != nil {
		return frame.Message{}, fault
	}
	return s.answer(cl, r, reply), nil
}

// apply gives a request to the store that checkRequest found nothing wrong with.
func (s *Server) apply(cl *mqtt.Client, conn *connection, r request) (statestore.Reply, *packets.Code) {
	start := time.Now()
	command := s.parse(cl, r)
	if command.Err() == nil && !s.options.Authorizer.Authorize(conn.identity, command.Verb, command.Key) {
		command = command.Deny()
	}
	reply := s.engine.Apply(command)
	if s.backlogged.Swap(false) {
		// Requests that come together are applied faster than the goroutines that write to
		// watchers get their turn: let them have it, or a client seems slow that is not.
		conn.readTurn.End()
		runtime.Gosched()
		conn.readTurn.Begin()
	}
	if reply.Outcome == statestore.Expired {
		return reply, s.drop(cl, DroppedExpired)
	}
	s.count(func(stats *Stats) { stats.Requests++ })
	if s.logger.Enabled(context.Background(), slog.LevelDebug) { // or what is not logged costs allocations
		s.logger.Debug("request", "client", logs.Name(cl.ID), "took", time.Since(start))
	}
	return reply, nil
}

// read reads the command in a request that arrives now.
func (s *Server) parse(cl *mqtt.Client, r request) statestore.Command {
	asked := statestore.Request{
		Client:       cl.ID,
		Payload:      r.payload,
		Correlation:  r.correlation,
		Timestamp:    r.timestamp,
		FencingToken: r.fencingToken,
		Store:        r.store,
		Last:         r.isWill,
	}
	if r.expiry > 0 {
		asked.Expires = s.engine.Elapsed() + time.Duration(r.expiry)*time.Second
	}
	return statestore.Parse(asked)
}

// checkRequest judges the message around a request: why it must be dropped, if it
// must.
func (s *Server) checkRequest(who access.Identity, cl *mqtt.Client, r request) DropReason {
	if cl.Properties.ProtocolVersion < 5 {
		return DroppedOldProtocol
	}
	dropped := envelope.Check(r.retain, r.qos, r.responseTopic, r.correlation)
	if dropped == "" && !s.mayBeAnswered(who, r.responseTopic) {
		return DroppedForeignTopic
	}
	return dropped
}

// reserve keeps the response topic of a request for the store's replies until the session
// ends, and returns why the request must be dropped, if it must. It is called by the
// goroutine that reads the connection.
func (s *Server) reserve(conn *connection, topic string) DropReason {
	if conn.reserved == topic {
		return "" // as for nearly all requests
	}
	if !s.responseTopics.reserve(conn.identity.Client, topic) {
		return DroppedTooManyTopics
	}
	conn.reserved = strings.Clone(topic)
	return ""
}

// drop counts and logs a request that is dropped, and returns what to tell its
// sender. A sender that wanted to be answered where only the store speaks is sent
// away (docs/protocol.md §1.2).
func (s *Server) drop(cl *mqtt.Client, why DropReason) *packets.Code {
	s.count(func(stats *Stats) { stats.Dropped[why]++ })
	s.drops.Log("client", logs.Name(cl.ID), "remote", cl.Net.Remote, "reason", string(why))
	if why == DroppedForbiddenTopic {
		s.disconnect(cl, *refusal(packets.ErrNotAuthorized, string(why)))
	}
	return refusal(codeOf(why), string(why))
}

// codeOf returns the reason code that goes with the reason, in PUBACK and in CONNACK.
func codeOf(why DropReason) packets.Code {
	switch why {
	case DroppedForbiddenTopic, DroppedForeignTopic:
		return packets.ErrNotAuthorized
	case DroppedInvalidTopic:
		return packets.ErrTopicNameInvalid
	case DroppedTooManyTopics:
		return packets.ErrQuotaExceeded
	}
	return packets.ErrImplementationSpecificError
}

// tooLargeForClient takes the place of a reply that is larger than its client takes. It is
// not among the refusals of the protocol: clients get its text.
const tooLargeForClient protocol.Refusal = "the reply is larger than the client takes"

// answer returns the message that carries a reply to a client. Where a value makes it larger
// than the client takes, it returns a refusal instead, so that the client need not wait.
func (s *Server) answer(cl *mqtt.Client, r request, reply statestore.Reply) frame.Message {
	message := s.message(r, reply)
	if reply.Outcome != statestore.Found || !isTooLarge(cl, &message) {
		return message
	}
	return s.message(r, statestore.Reply{Verb: reply.Verb, Err: tooLargeForClient})
}

// isTooLarge reports whether a client has said that it takes no message as large.
func isTooLarge(cl *mqtt.Client, message *frame.Message) bool {
	limit := cl.Properties.Props.MaximumPacketSize
	return limit > 0 && uint64(message.Size()) > uint64(limit)
}

// message returns the message that carries a reply. It has QoS 0: a client that misses it
// asks again.
func (s *Server) message(r request, reply statestore.Reply) frame.Message {
	message := frame.Message{
		Topic:           r.responseTopic,
		ContentType:     protocol.ContentType,
		CorrelationData: r.correlation,
		User: []frame.UserProperty{
			{Name: protocol.PropertyStatus, Value: protocol.StatusOK},
			{Name: protocol.PropertyProtocolVersion, Value: protocol.ProtocolVersion},
			{Name: protocol.PropertyStore, Value: s.engine.Identity()},
			{Name: protocol.PropertyTimestamp, Value: reply.Version.String()},
		},
		Payload: reply.Append(nil, s.options.Dialect),
	}
	if reply.Version.IsZero() {
		message.User = message.User[:3]
	}
	return message
}

// publishReply sends a reply to a topic that other clients may read. yield is called now and
// then, where that is a long work.
func (s *Server) publishReply(message *frame.Message, yield func()) {
	properties, ok := propertiesOf(message)
	if !ok {
		s.logger.Debug("a reply was not delivered", "error", frame.ErrTooLong)
		return
	}
	_, _ = s.messages.PublishInTurns(&pubsub.Message{ // which fails for retained messages only
		Topic:      message.Topic,
		Properties: properties,
		Payload:    message.Payload,
	}, yield)
}

// identified returns a message with the identifiers of the subscriptions that it goes to
// [MQTT-3.3.4-3].
func identified(message *frame.Message, identifiers []int) *frame.Forward {
	properties, _ := propertiesOf(message) // one that is too long is too long to be written
	return &frame.Forward{MQTT5: true, Topic: message.Topic, Identifiers: identifiers, Properties: properties, Payload: message.Payload}
}

// propertiesOf returns the properties of a message as they lie on the wire, and reports
// false if it is too long.
func propertiesOf(message *frame.Message) ([]byte, bool) {
	bare := *message
	bare.Payload = nil
	packet, err := bare.Append(nil)
	if err != nil {
		return nil, false
	}
	p, ok := frame.ParsePublish(packet)
	return p.AppendForwarded(nil), ok
}
