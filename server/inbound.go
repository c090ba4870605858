package server

import (
	"strings"
	"time"

	"github.com/eclipse/paho.golang/packets"

	"github.com/tenurelock/tenure/internal/mqtt"
	"github.com/tenurelock/tenure/internal/protocol"
	"github.com/tenurelock/tenure/server/internal/logs"
	"github.com/tenurelock/tenure/server/internal/pubsub"
	"github.com/tenurelock/tenure/server/internal/wire"
)

// handle handles a packet of an established client, which the gate has checked. It reports false if the
// connection is over. The goroutine that reads the connection calls it, in its turn (see package fairqueue), so
// that a client that sends without pause does not slow down others. Nothing is written in a turn. The answers
// to all packets that one read returned leave in one write.
func (c *connection) handle(packet []byte) (goOn bool) {
	kind := mqtt.Type(packet)
	if kind == packets.DISCONNECT {
		c.left()
		return false
	}
	c.handled = true
	if c.closed.Load() {
		return true // no more requests are applied, and no answer would arrive; a DISCONNECT may follow
	}
	switch kind {
	case packets.PUBLISH:
		c.handlePublish()
	case packets.PUBACK:
		c.session.Acknowledge(c.gate.Puback().PacketID)
	case packets.SUBSCRIBE:
		c.handleSubscribe(c.gate.Subscribe)
		c.gate.Subscribe = nil
	case packets.UNSUBSCRIBE:
		c.handleUnsubscribe(c.gate.Subscribe)
		c.gate.Subscribe = nil
	case packets.PINGREQ: // costs as much as a request, so it waits for a turn too
		c.answer(func(held []byte) []byte { return append(held, packets.PINGRESP<<4, 0) })
	case packets.PUBREC:
		c.answerQoS2(packets.PUBREL<<4 | 2)
	case packets.PUBREL:
		c.answerQoS2(packets.PUBCOMP << 4)
	}
	if c.answers >= heldEnough || c.readTurn.Spent() {
		c.pause()
	}
	return c.fault == nil
}

// answer lets encode append to the packets that are held back.
func (c *connection) answer(encode func(held []byte) []byte) { c.answers += c.holdBack(encode) }

func (c *connection) handlePublish() {
	p := c.gate.Publish()
	isRequest := string(p.Topic) == protocol.InvokeTopic
	switch {
	case p.QoS > 1:
		// CONNACK has announced a Maximum QoS of 1 [MQTT-3.2.2-11].
		if isRequest {
			c.server.drop(c, DroppedQoS)
		}
		c.refusePacket(refusal(mqtt.QoSNotSupported, noQoS2))
	case isRequest:
		c.handleRequest()
	default:
		c.handleMessage()
	}
}

// handleRequest applies a request to the store, and answers it.
func (c *connection) handleRequest() {
	fault := c.server.handle(c, c.texts.request(c.gate.Publish()))
	c.writeOwn()
	if fault != nil {
		if c.gate.Version < mqtt.Version5 {
			// An acknowledgement would say that the request was accepted.
			c.refusePacket(fault)
			return
		}
		c.acknowledge(fault)
		return
	}
	c.acknowledge(accepted) // does not wait for a commit: it says that the server has the request
}

// handleMessage publishes an ordinary message.
func (c *connection) handleMessage() {
	p, s := c.gate.Publish(), c.server
	topic := string(p.Topic)
	switch {
	case p.Retain:
		// CONNACK has announced it. A client of an earlier version can be told in no other way.
		c.refusePacket(refusal(mqtt.RetainNotSupported, noneRetained))
		return
	case !s.mayPublish(c.identity, topic):
		c.refuseMessage(mqtt.NotAuthorized, "this client may not publish to this topic")
		return
	}
	message := c.message(topic, p)
	message.Borrowed = true
	if p.MessageExpiry > 0 {
		message.Expires = time.Now().Add(time.Duration(p.MessageExpiry) * time.Second)
	}
	if !s.messages.Publish(&message, c.readTurn.Yield) && c.gate.Version >= mqtt.Version5 {
		c.acknowledge(&mqtt.Refusal{Code: mqtt.NoMatchingSubscribers})
		return
	}
	c.acknowledge(accepted)
}

// message returns what is passed on of a PUBLISH or a Will, whose payload it shares.
func (c *connection) message(topic string, p *mqtt.Publish) pubsub.Message {
	return pubsub.Message{
		Topic:      topic,
		QoS:        p.QoS,
		Properties: wire.AppendForwarded(nil, p),
		Payload:    p.Payload,
		Publisher:  c.identity.Client,
	}
}

// refuseMessage acknowledges a message with a reason code for not publishing it. Before MQTT 5,
// acknowledgements have no reason codes, so it ends the connection. A message of QoS 0 has no
// acknowledgement.
func (c *connection) refuseMessage(code byte, reason string) {
	switch {
	case c.gate.Publish().QoS == 0:
	case c.gate.Version < mqtt.Version5:
		c.refusePacket(refusal(code, reason))
	default:
		c.acknowledge(refusal(code, reason))
	}
}

// accepted is the reason code of an acknowledgement that reports no fault.
var accepted = new(mqtt.Refusal)

// acknowledge adds a PUBACK to the packets that are held back, unless the message has QoS 0.
func (c *connection) acknowledge(code *mqtt.Refusal) {
	id := c.gate.Publish().PacketID
	if c.gate.Publish().QoS == 0 {
		return
	}
	c.answer(func(held []byte) []byte {
		if code.Code == mqtt.Success {
			return mqtt.AppendPuback(held, id)
		}
		full := wire.AppendPubackReason(held, id, code.Code, code.Reason)
		if code.Reason != "" && c.gate.TooLarge(len(full)-len(held)) {
			return wire.AppendPubackReason(held, id, code.Code, "") // [MQTT-3.4.2-2]
		}
		return full
	})
}

// answerQoS2 answers an acknowledgement of a message with QoS 2: there is no such message.
func (c *connection) answerQoS2(answer byte) {
	id := c.gate.Puback().PacketID
	c.answer(func(held []byte) []byte {
		if c.gate.Version < mqtt.Version5 { // which have no reason code for an unknown message
			return append(held, answer, 2, byte(id>>8), byte(id))
		}
		return append(held, answer, 3, byte(id>>8), byte(id), mqtt.UnknownPacketID)
	})
}

func (c *connection) handleSubscribe(asked *wire.Subscribe) {
	codes := make([]byte, len(asked.Filters))
	for i, filter := range asked.Filters {
		codes[i] = c.subscribe(filter, asked.Identifier)
		if codes[i] < mqtt.Failure {
			continue
		}
		c.server.refusedSubscriptions.Log("client", logs.Name(c.identity.Client), "remote", c.remote,
			"filter", logs.Name(filter.Topic), "reason", whyNotSubscribed(filter.Topic, codes[i]))
		if c.gate.Version < mqtt.Version5 {
			codes[i] = mqtt.Failure // the only one that they have
		}
	}
	c.answer(func(held []byte) []byte {
		return wire.AppendGranted(held, packets.SUBACK, c.gate.Version, asked.PacketID, codes)
	})
}

// subscribe adds a subscription, and returns the reason code for SUBACK.
func (c *connection) subscribe(asked wire.Subscription, identifier int) (code byte) {
	switch {
	case strings.HasPrefix(asked.Topic, "$share/"):
		return mqtt.SharedNotSupported // as CONNACK has announced
	case !c.server.maySubscribe(c.identity, asked.Topic):
		return mqtt.NotAuthorized
	}
	qos := min(asked.QoS, 1)
	switch c.session.Subscribe(pubsub.Subscription{Filter: asked.Topic, QoS: qos, NoLocal: asked.NoLocal, Identifier: identifier}) {
	case nil:
		return qos
	case pubsub.ErrTooManySubscriptions:
		return mqtt.QuotaExceeded
	}
	return mqtt.Failure
}

// whyNotSubscribed returns the reason for a code of SUBACK, for the log.
func whyNotSubscribed(filter string, code byte) string {
	switch {
	case code == mqtt.QuotaExceeded:
		return "the client has as many subscriptions as it may have: Options.Limits.Subscriptions, --max-subscriptions"
	case code == mqtt.SharedNotSupported:
		return "this server has no shared subscriptions"
	case code != mqtt.NotAuthorized:
		return "the session is over"
	case strings.HasPrefix(filter, "$"):
		return "nothing is published on topics that begin with $"
	}
	return "the client may not read these topics"
}

func (c *connection) handleUnsubscribe(asked *wire.Subscribe) {
	codes := make([]byte, len(asked.Filters))
	for i, filter := range asked.Filters {
		if !c.session.Unsubscribe(filter.Topic) {
			codes[i] = mqtt.NoSubscription
		}
	}
	c.answer(func(held []byte) []byte {
		return wire.AppendGranted(held, packets.UNSUBACK, c.gate.Version, asked.PacketID, codes)
	})
}
