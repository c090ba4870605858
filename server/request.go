package server

import (
	"strings"
	"time"

	mqtt "github.com/mochi-mqtt/server/v2"
	"github.com/mochi-mqtt/server/v2/packets"

	"github.com/tenurelock/tenure/internal/protocol"
	"github.com/tenurelock/tenure/server/access"
	"github.com/tenurelock/tenure/statestore"
)

// handle applies a request and answers it. What is not a request in the sense of
// the protocol is dropped: nothing is applied, and the fault goes into the
// acknowledgement.
func (s *Server) handle(cl *mqtt.Client, pk packets.Packet) *packets.Code {
	who := identityOf(cl)
	if dropped := s.checkRequest(who, cl, pk); dropped != "" {
		return s.drop(cl, dropped)
	}
	command := s.read(cl, pk)
	if command.Err() == nil && !s.options.Authorizer.Authorize(who, command.Verb, command.Key) {
		command = command.Deny()
	}
	if command.Verb == statestore.VerbKeyNotify {
		s.startOutbox(cl)
	}
	reply := s.engine.Apply(command)
	if reply.Outcome == statestore.Expired {
		return s.drop(cl, DroppedExpired)
	}
	s.count(func(stats *Stats) { stats.Requests++ })
	s.respond(cl, pk.Properties, reply)
	return nil
}

// read reads the command in a request that arrives now.
func (s *Server) read(cl *mqtt.Client, pk packets.Packet) statestore.Command {
	request := statestore.Request{
		Client:       cl.ID,
		Payload:      pk.Payload,
		Correlation:  pk.Properties.CorrelationData,
		Timestamp:    userProperty(pk, protocol.PropertyTimestamp),
		FencingToken: userProperty(pk, protocol.PropertyFencingToken),
	}
	if seconds := pk.Properties.MessageExpiryInterval; seconds > 0 {
		request.Expires = s.engine.Elapsed() + time.Duration(seconds)*time.Second
	}
	return statestore.Parse(request)
}

// checkRequest judges the message around a request: why it must be dropped, if it
// must.
func (s *Server) checkRequest(who access.Identity, cl *mqtt.Client, pk packets.Packet) Dropped {
	topic := pk.Properties.ResponseTopic
	switch {
	case cl.Properties.ProtocolVersion < 5:
		return DroppedOldProtocol
	case pk.FixedHeader.Retain:
		return DroppedRetained
	case pk.FixedHeader.Qos != 1:
		return DroppedQoS
	case topic == "":
		return DroppedNoResponse
	case len(pk.Properties.CorrelationData) == 0:
		return DroppedNoCorrelation
	case topic == protocol.InvokeTopic || strings.HasPrefix(topic, protocol.ReservedPrefix):
		return DroppedForbiddenTopic
	case strings.ContainsAny(topic, "+#") || strings.HasPrefix(topic, "$"):
		return DroppedInvalidTopic
	case !s.mayPublish(who, topic):
		return DroppedForeignTopic
	}
	return ""
}

// drop counts and logs a request that is dropped, and returns what to tell its
// sender. A sender that wanted to be answered where only the store speaks is sent
// away (PROTOCOL 1).
func (s *Server) drop(cl *mqtt.Client, why Dropped) *packets.Code {
	s.count(func(stats *Stats) { stats.Dropped[why]++ })
	s.logger.Warn("dropped a request", "client", cl.ID, "reason", string(why))
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

// respond sends a reply with QoS 0: a client that cannot be reached now asks
// again, and at QoS 1 the broker could be held up by a client that does not read.
func (s *Server) respond(cl *mqtt.Client, request packets.Properties, reply statestore.Reply) {
	response := packets.Packet{
		FixedHeader: packets.FixedHeader{Type: packets.Publish},
		TopicName:   request.ResponseTopic,
		Payload:     reply.Append(nil, s.options.Dialect),
		Properties: packets.Properties{
			CorrelationData: request.CorrelationData,
			ContentType:     protocol.ContentType,
			User: []packets.UserProperty{
				{Key: protocol.PropertyStatus, Val: protocol.StatusOK},
				{Key: protocol.PropertyProtocolVersion, Val: protocol.ProtocolVersion},
			},
		},
	}
	if !reply.Version.IsZero() {
		response.Properties.User = append(response.Properties.User,
			packets.UserProperty{Key: protocol.PropertyTimestamp, Val: reply.Version.String()})
	}
	var err error
	if s.onlyReader(cl, request.ResponseTopic) {
		err = cl.WritePacket(response)
	} else {
		err = s.broker.InjectPacket(s.herald, response)
	}
	if err != nil {
		s.logger.Debug("a reply was not delivered", "client", cl.ID, "error", err)
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
	return ok && len(subscription.Identifiers) == 0
}

// startOutbox makes sure that notifications reach a client: straight to its
// connection, whether or not it subscribed to their topic.
func (s *Server) startOutbox(cl *mqtt.Client) {
	conn, ok := cl.Net.Conn.(*connection)
	if !ok {
		return
	}
	conn.outbox.start(func(notification statestore.Notification) {
		err := cl.WritePacket(packets.Packet{
			FixedHeader: packets.FixedHeader{Type: packets.Publish},
			TopicName:   protocol.NotifyTopic(cl.ID, notification.Key),
			Payload:     notification.Append(nil, s.options.Dialect),
			Properties: packets.Properties{
				ContentType: protocol.ContentType,
				User: []packets.UserProperty{
					{Key: protocol.PropertyTimestamp, Val: notification.Version.String()},
					{Key: protocol.PropertyProtocolVersion, Val: protocol.ProtocolVersion},
				},
			},
		})
		if err != nil {
			s.logger.Debug("a notification was not delivered", "client", cl.ID, "error", err)
		}
	})
}
