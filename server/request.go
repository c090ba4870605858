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
	"github.com/tenurelock/tenure/server/internal/logs"
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
}

// requestIn returns the request in a PUBLISH as the broker reads it.
func requestIn(pk packets.Packet) request {
	return request{
		qos:           pk.FixedHeader.Qos,
		retain:        pk.FixedHeader.Retain,
		responseTopic: pk.Properties.ResponseTopic,
		correlation:   pk.Properties.CorrelationData,
		expiry:        pk.Properties.MessageExpiryInterval,
		timestamp:     userProperty(pk, protocol.PropertyTimestamp),
		fencingToken:  userProperty(pk, protocol.PropertyFencingToken),
		store:         userProperty(pk, protocol.PropertyStore),
		payload:       pk.Payload,
	}
}

// handle applies a request and answers it. What is not a request in the sense of
// the protocol is dropped: nothing is applied, and the fault goes into the
// acknowledgement.
func (s *Server) handle(cl *mqtt.Client, r request) *packets.Code {
	who := identityOf(cl)
	dropped := s.checkRequest(who, cl, r)
	if dropped == "" {
		dropped = s.reserve(cl, r.responseTopic)
	}
	if dropped != "" {
		return s.drop(cl, dropped)
	}
	reply, fault := s.apply(who, cl, r)
	if fault == nil {
		s.respond(cl, s.answer(cl, r, reply))
	}
	return fault
}

// apply gives a request to the store that checkRequest found nothing wrong with.
func (s *Server) apply(who access.Identity, cl *mqtt.Client, r request) (statestore.Reply, *packets.Code) {
	start := time.Now()
	command := s.read(cl, r)
	if command.Err() == nil && !s.options.Authorizer.Authorize(who, command.Verb, command.Key) {
		command = command.Deny()
	}
	if command.Verb == statestore.VerbKeyNotify {
		s.startOutbox(cl)
	}
	reply := s.engine.Apply(command)
	if s.crowded.Swap(false) {
		// Requests that come together are applied faster than the goroutines of those who
		// watch get their turn: let them have it, lest somebody seem slow who is not.
		runtime.Gosched()
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
func (s *Server) read(cl *mqtt.Client, r request) statestore.Command {
	asked := statestore.Request{
		Client:       cl.ID,
		Payload:      r.payload,
		Correlation:  r.correlation,
		Timestamp:    r.timestamp,
		FencingToken: r.fencingToken,
		Store:        r.store,
	}
	if r.expiry > 0 {
		asked.Expires = s.engine.Elapsed() + time.Duration(r.expiry)*time.Second
	}
	return statestore.Parse(asked)
}

// checkRequest judges the message around a request: why it must be dropped, if it
// must.
func (s *Server) checkRequest(who access.Identity, cl *mqtt.Client, r request) Dropped {
	if cl.Properties.ProtocolVersion < 5 {
		return DroppedOldProtocol
	}
	dropped := checkMessage(r.retain, r.qos, r.responseTopic, r.correlation)
	if dropped == "" && !s.mayBeAnswered(who, r.responseTopic) {
		return DroppedForeignTopic
	}
	return dropped
}

// reserve keeps the response topic of a request for the store's replies until the session
// ends, and returns why the request must be dropped, if it must. It is called by the
// goroutine that reads the connection.
func (s *Server) reserve(cl *mqtt.Client, topic string) Dropped {
	conn, ok := cl.Net.Conn.(*connection)
	if ok && conn.reserved == topic {
		return "" // as for nearly all requests
	}
	if !s.responseTopics.reserve(cl.ID, topic) {
		return DroppedTooManyTopics
	}
	if ok {
		conn.reserved = strings.Clone(topic)
	}
	return ""
}

// checkMessage is what checkRequest judges without knowing the sender.
func checkMessage(retain bool, qos byte, responseTopic string, correlation []byte) Dropped {
	switch {
	case retain:
		return DroppedRetained
	case qos != 1:
		return DroppedQoS
	case responseTopic == "":
		return DroppedNoResponse
	case len(correlation) == 0:
		return DroppedNoCorrelation
	case responseTopic == protocol.InvokeTopic || strings.HasPrefix(responseTopic, protocol.ReservedPrefix):
		return DroppedForbiddenTopic
	case strings.ContainsAny(responseTopic, "+#") || strings.HasPrefix(responseTopic, "$"):
		return DroppedInvalidTopic
	}
	return ""
}

// drop counts and logs a request that is dropped, and returns what to tell its
// sender. A sender that wanted to be answered where only the store speaks is sent
// away (PROTOCOL 1).
func (s *Server) drop(cl *mqtt.Client, why Dropped) *packets.Code {
	s.count(func(stats *Stats) { stats.Dropped[why]++ })
	s.drops.Log("client", logs.Name(cl.ID), "remote", cl.Net.Remote, "reason", string(why))
	if why == DroppedForbiddenTopic {
		s.disconnect(cl, *refusal(packets.ErrNotAuthorized, string(why)))
	}
	return refusal(codeOf(why), string(why))
}

// codeOf returns the reason code that goes with the reason, in PUBACK and in CONNACK.
func codeOf(why Dropped) packets.Code {
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

// userProperty returns the first user property of a name, or nil. It aliases the
// packet.
func userProperty(pk packets.Packet, name string) *string {
	for i := range pk.Properties.User {
		if pk.Properties.User[i].Key == name {
			return &pk.Properties.User[i].Val
		}
	}
	return nil
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
	refusal := s.message(r, statestore.Reply{Verb: reply.Verb, Err: tooLargeForClient})
	if isTooLarge(cl, &refusal) {
		return message // the broker may leave out properties until it fits
	}
	return refusal
}

// isTooLarge reports whether a client has said that it takes no message as large.
func isTooLarge(cl *mqtt.Client, message *frame.Message) bool {
	limit := cl.Properties.Props.MaximumPacketSize
	return limit > 0 && uint64(message.Size()) > uint64(limit)
}

// message returns the message that carries a reply. It has QoS 0: a client that cannot
// be reached now asks again, and at QoS 1 the broker could be held up by a client that
// does not read.
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

// respond sends a reply through the broker.
func (s *Server) respond(cl *mqtt.Client, message frame.Message) {
	response := packets.Packet{
		FixedHeader: packets.FixedHeader{Type: packets.Publish},
		TopicName:   message.Topic,
		Payload:     message.Payload,
		Properties: packets.Properties{
			CorrelationData: message.CorrelationData,
			ContentType:     message.ContentType,
		},
	}
	for _, property := range message.User {
		response.Properties.User = append(response.Properties.User, packets.UserProperty{Key: property.Name, Val: property.Value})
	}
	var err error
	if s.onlyReader(cl, message.Topic) && s.mayRead(identityOf(cl), message.Topic) {
		err = cl.WritePacket(response)
	} else {
		err = s.broker.InjectPacket(s.herald, response)
	}
	if err != nil {
		s.logger.Debug("a reply was not delivered", "client", logs.Name(cl.ID), "error", logs.Error(err))
	}
}

// onlyReader reports whether a client is the one plain subscriber of a topic, as
// requesters are: the reply can then go straight to its connection.
func (s *Server) onlyReader(cl *mqtt.Client, topic string) bool {
	readers := s.broker.Topics.Subscribers(topic)
	if len(readers.Subscriptions) != 1 || len(readers.Shared) != 0 {
		return false
	}
	subscription, ok := readers.Subscriptions[cl.ID]
	for _, identifier := range subscription.Identifiers {
		ok = ok && identifier == 0 // which means that the subscription has none
	}
	return ok
}
