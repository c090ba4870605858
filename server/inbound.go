package server

import (
	"strings"
	"time"

	mochi "github.com/mochi-mqtt/server/v2"
	"github.com/mochi-mqtt/server/v2/packets"

	"github.com/tenurelock/tenure/internal/mqtt"
	"github.com/tenurelock/tenure/internal/protocol"
	"github.com/tenurelock/tenure/server/internal/envelope"
	"github.com/tenurelock/tenure/server/internal/logs"
	"github.com/tenurelock/tenure/server/internal/pubsub"
	"github.com/tenurelock/tenure/server/internal/wire"
	"github.com/tenurelock/tenure/statestore"
)

// inbound handles all packets of a client except CONNECT, DISCONNECT and AUTH, which mochi handles,
// in turns (see package fairqueue), so that a client that sends without pause does not slow down others.
// Nothing is written in a turn. The answers to all packets that one read returned leave in one
// write. It belongs to the goroutine that reads the connection.
type inbound struct {
	conn    *connection
	server  *Server
	client  *mochi.Client // nil until its session is established
	version byte          // of MQTT

	publish                        *mqtt.Publish // the latest; shares the bytes of its packet, belongs to the gate
	topic                          string        // the response topic of the latest request
	timestamp, fencingToken, store string        // properties of the latest request
	forced                         string

	taken    bool // it has handled a packet since the last pause
	notified bool // requests since the last pause have caused notifications for their own client
	held     int  // bytes that wait to be written
}

// start makes inbound handle packets, now that the session of the client is established.
func (in *inbound) start(s *Server, cl *mochi.Client) {
	in.server, in.client, in.version = s, cl, cl.Properties.ProtocolVersion
}

// take handles a packet, or reports false if it is for mochi. The bytes of the packet are
// overwritten later.
func (in *inbound) take(packet []byte) bool {
	if in.client == nil {
		return false
	}
	var handle func(*inbound, []byte)
	switch mqtt.Type(packet) {
	case packets.Publish:
		handle = (*inbound).handlePublish
	case packets.Puback:
		handle = (*inbound).handlePuback
	case packets.Subscribe:
		handle = (*inbound).handleSubscribe
	case packets.Unsubscribe:
		handle = (*inbound).handleUnsubscribe
	case packets.Pingreq:
		handle = (*inbound).handlePing
	case packets.Pubrec, packets.Pubrel, packets.Pubcomp:
		handle = (*inbound).handleQoS2
	default:
		return false
	}
	in.taken = true
	if in.conn.closed.Load() {
		return true // no more requests are applied, and no answer would arrive
	}
	in.conn.readTurn.Begin() // ends in pause, or before anything is written
	handle(in, packet)
	if in.held >= heldEnough || in.conn.readTurn.Spent() {
		in.pause()
	}
	return true
}

// pause ends the turn and writes the answers, before the goroutine waits for the client or mochi
// goes on to read. It also extends the deadline for the next packet, as mochi does for its
// packets.
func (in *inbound) pause() {
	in.writeNotifications()
	in.conn.readTurn.End()
	if !in.taken {
		return
	}
	in.taken, in.held = false, 0
	*in.publish = mqtt.Publish{} // or an idle client would keep its packet, of 1 MiB perhaps
	in.conn.flush()
	in.conn.extendDeadline()
}

// writeNotifications writes the notifications that requests have caused for their own client.
func (in *inbound) writeNotifications() {
	if in.notified {
		in.notified = false
		in.server.writeOwnNotifications(in.client, in.conn)
	}
}

// yield ends the turn and waits for the next one, if a single packet takes longer than a turn.
func (in *inbound) yield() { in.conn.readTurn.Yield() }

// noLimits are for packets that the gate has checked.
var noLimits mqtt.Limits

func (in *inbound) handlePublish([]byte) {
	p := in.publish
	isRequest := string(p.Topic) == protocol.InvokeTopic
	switch {
	case p.QoS > 1:
		// CONNACK has announced a Maximum QoS of 1 [MQTT-3.2.2-11].
		if isRequest {
			in.server.drop(in.client, DroppedQoS)
		}
		in.disconnect(*refusal(packets.ErrQosNotSupported, "this server has no QoS 2: publish with QoS 1"))
	case isRequest:
		in.handleRequest()
	default:
		in.handleMessage()
	}
}

// handleRequest applies a request to the store, and answers it.
func (in *inbound) handleRequest() {
	p := in.publish
	if in.topic != string(p.ResponseTopic) {
		in.topic = string(p.ResponseTopic)
	}
	_, deployed := p.User(protocol.PropertyProtocolVersion)
	reply, later, fault := in.server.handle(in.client, in.conn, request{
		qos:           p.QoS,
		retain:        p.Retain,
		responseTopic: in.topic,
		correlation:   p.CorrelationData,
		expiry:        p.MessageExpiry,
		timestamp:     copyProperty(&in.timestamp, p, protocol.PropertyTimestamp),
		fencingToken:  copyProperty(&in.fencingToken, p, protocol.PropertyFencingToken),
		store:         copyProperty(&in.store, p, protocol.PropertyStore),
		payload:       p.Payload,
		again:         p.Duplicate,
		packetID:      p.PacketID,
		dialect:       statestore.DialectOf(deployed),
		forced:        copyProperty(&in.forced, p, protocol.PropertyForced),
	})
	if fault != nil {
		if in.version < mqtt.Version5 {
			// An acknowledgement would say that the request was accepted.
			in.disconnect(*fault)
			return
		}
		in.acknowledge(*fault)
		return
	}
	if !later {
		in.held += in.server.sendReply(in.client, in.conn, in.conn.readTurn, in.topic, p.CorrelationData, reply)
	}
	in.acknowledge(packets.CodeSuccess) // does not wait for a commit: it says that the server has the request
}

// handleMessage publishes an ordinary message.
func (in *inbound) handleMessage() {
	p, s := in.publish, in.server
	topic := string(p.Topic)
	switch {
	case p.Retain && !s.options.Retain:
		// CONNACK has announced it. A client of an earlier version can be told in no other way.
		in.disconnect(*refusal(packets.ErrRetainNotSupported, noneRetained))
		return
	case p.Retain && envelope.IsClientTopic(topic):
		in.refuse(packets.ErrNotAuthorized, notRetained)
		return
	case !s.mayPublish(in.conn.identity, topic):
		in.refuse(packets.ErrNotAuthorized, "this client may not publish to this topic")
		return
	}
	message := &pubsub.Message{
		Topic:      topic,
		QoS:        p.QoS,
		Retain:     p.Retain,
		Properties: wire.AppendForwarded(nil, p),
		Payload:    p.Payload,
		Publisher:  in.client.ID,
		Borrowed:   true,
	}
	if p.MessageExpiry > 0 {
		message.Expires = time.Now().Add(time.Duration(p.MessageExpiry) * time.Second)
	}
	switch matched, err := s.messages.PublishInTurns(message, in.yield); {
	case p.QoS == 0:
	case in.version < mqtt.Version5:
		in.acknowledge(packets.CodeSuccess)
	case err != nil:
		in.acknowledge(*refusal(packets.ErrQuotaExceeded, err.Error()))
	case !matched:
		in.acknowledge(packets.CodeNoMatchingSubscribers)
	default:
		in.acknowledge(packets.CodeSuccess)
	}
}

// refuse acknowledges a message with a reason code for not publishing it. Before MQTT 5,
// acknowledgements have no reason codes, so refuse ends the connection. A message of QoS 0 has no
// acknowledgement.
func (in *inbound) refuse(code packets.Code, reason string) {
	switch {
	case in.publish.QoS == 0:
	case in.version < mqtt.Version5:
		in.disconnect(code)
	default:
		in.acknowledge(*refusal(code, reason))
	}
}

// acknowledge adds a PUBACK to the packets that are held back, unless the message has QoS 0.
func (in *inbound) acknowledge(code packets.Code) {
	id := in.publish.PacketID
	if in.publish.QoS == 0 {
		return
	}
	in.held += in.conn.holdBack(func(held []byte) []byte {
		switch {
		case code.Code == packets.CodeSuccess.Code:
			return mqtt.AppendPuback(held, id)
		case code.Code < packets.ErrUnspecifiedError.Code:
			return wire.AppendPubackReason(held, id, code.Code, "")
		}
		full := wire.AppendPubackReason(held, id, code.Code, code.Reason)
		if !isTooLarge(in.client, len(full)-len(held)) {
			return full
		}
		return wire.AppendPubackReason(held, id, code.Code, "") // [MQTT-3.4.2-2]
	})
}

// disconnect disconnects the client because of the present packet.
func (in *inbound) disconnect(code packets.Code) {
	in.conn.fault = code
	in.conn.readTurn.End() // the rest waits for the client
	in.server.disconnect(in.client, code)
}

// handlePing answers a PINGREQ. It costs as much as a request, so it waits for a turn too.
func (in *inbound) handlePing([]byte) {
	in.held += in.conn.holdBack(func(held []byte) []byte { return append(held, packets.Pingresp<<4, 0) })
}

// handleQoS2 answers an acknowledgement of a message with QoS 2: there is no such message.
func (in *inbound) handleQoS2(packet []byte) {
	var ack mqtt.Puback
	if ack.Decode(packet, in.version, &noLimits) != nil {
		return
	}
	var answer byte
	switch mqtt.Type(packet) {
	case packets.Pubrec:
		answer = packets.Pubrel<<4 | 2
	case packets.Pubrel:
		answer = packets.Pubcomp << 4
	default:
		return
	}
	in.held += in.conn.holdBack(func(held []byte) []byte {
		if in.version < mqtt.Version5 { // which have no reason code for an unknown message
			return append(held, answer, 2, byte(ack.PacketID>>8), byte(ack.PacketID))
		}
		return append(held, answer, 3, byte(ack.PacketID>>8), byte(ack.PacketID), packets.ErrPacketIdentifierNotFound.Code)
	})
}

func (in *inbound) handlePuback(packet []byte) {
	var ack mqtt.Puback
	if ack.Decode(packet, in.version, &noLimits) == nil {
		in.conn.session.Acknowledge(ack.PacketID)
	}
}

func (in *inbound) handleSubscribe(packet []byte) {
	var asked wire.Subscribe
	if asked.Decode(packet, in.version, new(wire.Limits)) != nil {
		return
	}
	codes := make([]byte, len(asked.Filters))
	existed := make([]bool, len(asked.Filters))
	for i, filter := range asked.Filters {
		var code packets.Code
		existed[i], code = in.subscribe(subscriptionTo(filter, asked.Identifier))
		codes[i] = code.Code
		if code.Code < packets.ErrUnspecifiedError.Code {
			continue
		}
		in.server.refusedSubscriptions.Log("client", logs.Name(in.client.ID), "remote", in.client.Net.Remote,
			"filter", logs.Name(filter.Topic), "reason", whyNotSubscribed(filter.Topic, code))
		if in.version < mqtt.Version5 {
			codes[i] = packets.ErrUnspecifiedError.Code // 0x80, the only one that they have
		}
	}
	in.held += in.conn.holdBack(func(held []byte) []byte {
		return wire.AppendGranted(held, packets.Suback, in.version, asked.PacketID, codes)
	})
	if !in.server.options.Retain {
		return
	}
	for i, filter := range asked.Filters {
		if codes[i] < packets.ErrUnspecifiedError.Code {
			in.conn.session.SendRetained(subscriptionTo(filter, asked.Identifier), existed[i], in.yield)
		}
	}
}

func subscriptionTo(filter wire.Subscription, identifier int) pubsub.Subscription {
	return pubsub.Subscription{
		Filter:            filter.Topic,
		QoS:               min(filter.QoS, 1),
		NoLocal:           filter.NoLocal,
		RetainAsPublished: filter.RetainAsPublished,
		RetainHandling:    filter.RetainHandling,
		Identifier:        identifier,
	}
}

// subscribe adds a subscription. It returns whether it existed, and the reason code for SUBACK.
func (in *inbound) subscribe(asked pubsub.Subscription) (existed bool, code packets.Code) {
	if !in.server.maySubscribe(in.conn.identity, asked.Filter) {
		return false, packets.ErrNotAuthorized
	}
	existed, err := in.conn.session.Subscribe(asked)
	switch err {
	case nil:
		return existed, packets.Code{Code: asked.QoS}
	case pubsub.ErrTooManySubscriptions:
		return false, packets.ErrQuotaExceeded
	case pubsub.ErrFilter:
		return false, packets.ErrTopicFilterInvalid
	}
	return false, packets.ErrUnspecifiedError
}

// whyNotSubscribed returns the reason for a code of SUBACK, for the log.
func whyNotSubscribed(filter string, code packets.Code) string {
	_, _, shared := wire.Share(filter)
	switch {
	case code == packets.ErrQuotaExceeded:
		return "the client has as many subscriptions as it may have: Options.Limits.Subscriptions, --max-subscriptions"
	case code != packets.ErrNotAuthorized:
		return code.Reason
	case shared:
		return "the client may not read every topic that the shared filter matches: a/# matches a too, # and + match clients/, and topics that begin with $ are not published"
	case strings.HasPrefix(filter, "$"):
		return "nothing is published on topics that begin with $"
	}
	return "the client may not read these topics"
}

func (in *inbound) handleUnsubscribe(packet []byte) {
	var asked wire.Subscribe
	if asked.Decode(packet, in.version, new(wire.Limits)) != nil {
		return
	}
	codes := make([]byte, len(asked.Filters))
	for i, filter := range asked.Filters {
		if !in.conn.session.Unsubscribe(filter.Topic) {
			codes[i] = packets.CodeNoSubscriptionExisted.Code
		}
	}
	in.held += in.conn.holdBack(func(held []byte) []byte {
		return wire.AppendGranted(held, packets.Unsuback, in.version, asked.PacketID, codes)
	})
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
