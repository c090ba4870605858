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

// request is a message to the state store: a PUBLISH or a Will. It shares the bytes of its packet.
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

// handle applies a request and returns the message with its reply. If the message is not a request
// by the rules of the protocol, handle drops it and returns what to say in the acknowledgement.
func (s *Server) handle(cl *mqtt.Client, conn *connection, r request) (frame.Message, *packets.Code) {
	dropped := s.checkRequest(conn.identity, cl, r)
	if dropped == "" {
		dropped = s.reserve(conn, r.responseTopic)
	}
	if dropped != "" {
		conn.readTurn.End() // drop may disconnect the client, and wait for that
		return frame.Message{}, s.drop(cl, dropped)
	}
	reply, fault := s.apply(cl, conn, r)
	if fault != nil {
		return frame.Message{}, fault
	}
	return s.answer(cl, r, reply), nil
}

// apply applies a request that checkRequest has passed.
func (s *Server) apply(cl *mqtt.Client, conn *connection, r request) (statestore.Reply, *packets.Code) {
	start := time.Now()
	command := s.parse(cl, r)
	if command.Err() == nil && !s.options.Authorizer.Authorize(conn.identity, command.Verb, command.Key) {
		command = command.Deny()
	}
	if s.options.Journal != nil {
		conn.readTurn.End() // the reply may wait for a commit
	}
	reply, err := s.engine.Apply(command)
	if err != nil {
		return reply, refusal(packets.ErrImplementationSpecificError, "the store has stopped")
	}
	conn.readTurn.Begin()
	if s.backlogged.Swap(false) {
		// A burst of requests is applied faster than the goroutines that write to watchers are
		// scheduled. Let them run, or a client seems slow that is not.
		conn.readTurn.End()
		runtime.Gosched()
		conn.readTurn.Begin()
	}
	if reply.Outcome == statestore.Expired {
		return reply, s.drop(cl, DroppedExpired)
	}
	s.count(func(stats *Stats) { stats.Requests++ })
	if s.logger.Enabled(context.Background(), slog.LevelDebug) { // else the attributes would be allocated for nothing
		s.logger.Debug("request", "client", logs.Name(cl.ID), "took", time.Since(start))
	}
	return reply, nil
}

// parse parses the command in a request that arrives now.
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

// checkRequest returns why the message must be dropped, or "" if it is a request.
func (s *Server) checkRequest(identity access.Identity, cl *mqtt.Client, r request) DropReason {
	if cl.Properties.ProtocolVersion < 5 {
		return DroppedOldProtocol
	}
	dropped := envelope.Check(r.retain, r.qos, r.responseTopic, r.correlation)
	if dropped == "" && !s.mayBeAnswered(identity, r.responseTopic) {
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
	if !s.responseTopics.reserve(conn.identity.Client, topic) {
		return DroppedTooManyTopics
	}
	conn.reserved = strings.Clone(topic)
	return ""
}

// drop counts and logs a request that is dropped, and returns what to say in its acknowledgement.
// It disconnects the client if the response topic belongs to the store (docs/protocol.md §1.2).
func (s *Server) drop(cl *mqtt.Client, why DropReason) *packets.Code {
	s.count(func(stats *Stats) { stats.Dropped[why]++ })
	s.drops.Log("client", logs.Name(cl.ID), "remote", cl.Net.Remote, "reason", string(why))
	if why == DroppedForbiddenTopic {
		s.disconnect(cl, *refusal(packets.ErrNotAuthorized, string(why)))
	}
	return refusal(codeOf(why), string(why))
}

// codeOf returns the reason code for a reason, in PUBACK and in CONNACK.
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

// tooLargeForClient replaces a reply that is larger than its client takes. It is not one of the
// refusals of the protocol: clients get its text.
const tooLargeForClient protocol.Refusal = "the reply is larger than the client takes"

// answer returns the message with a reply to a client. If a value makes it larger than the client
// takes, answer returns a refusal instead, so that the client need not wait for nothing.
func (s *Server) answer(cl *mqtt.Client, r request, reply statestore.Reply) frame.Message {
	message := s.message(r, reply)
	if reply.Outcome != statestore.Found || !isTooLarge(cl, message.Size()) {
		return message
	}
	return s.message(r, statestore.Reply{Verb: reply.Verb, Err: tooLargeForClient})
}

// isTooLarge reports whether a packet of some bytes exceeds the Maximum Packet Size of a client.
func isTooLarge(cl *mqtt.Client, size int) bool {
	limit := cl.Properties.Props.MaximumPacketSize
	return limit > 0 && uint64(size) > uint64(limit)
}

// message returns the message with a reply. It has QoS 0: a client that misses it repeats its
// request.
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

// publishReply publishes a reply on a topic that other clients may read. It calls yield now and
// then if that takes long.
func (s *Server) publishReply(message *frame.Message, yield func()) {
	properties, ok := propertiesOf(message)
	if !ok {
		s.logger.Debug("a reply was not delivered", "error", frame.ErrTooLong)
		return
	}
	_, _ = s.messages.PublishInTurns(&pubsub.Message{ // fails for retained messages only
		Topic:      message.Topic,
		Properties: properties,
		Payload:    message.Payload,
	}, yield)
}

// identified returns a message with the identifiers of the subscriptions that match it
// [MQTT-3.3.4-3].
func identified(message *frame.Message, identifiers []int) *frame.Forward {
	properties, _ := propertiesOf(message) // if they are too long, so is the packet, which fails later
	return &frame.Forward{MQTT5: true, Topic: message.Topic, Identifiers: identifiers, Properties: properties, Payload: message.Payload}
}

// propertiesOf returns the encoded properties of a message. It reports false if they are too long.
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
