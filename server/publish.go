package server

import (
	"strings"
	"time"

	"github.com/eclipse/paho.golang/packets"

	"github.com/tenurelock/tenure/internal/mqtt"
	"github.com/tenurelock/tenure/internal/protocol"
	"github.com/tenurelock/tenure/server/internal/fairqueue"
	"github.com/tenurelock/tenure/server/internal/logs"
	"github.com/tenurelock/tenure/server/internal/pubsub"
	"github.com/tenurelock/tenure/server/internal/wire"
)

// dispatch handles a packet of an established client, which the gate has checked. It reports false if the
// connection is over. The goroutine that reads the connection calls it, in its turn (see package fairqueue), so
// that a client that sends without pause does not slow down others. Nothing is written in a turn. The answers
// to all packets that one read returned leave in one write.
func (c *connection) dispatch(packet []byte) (goOn bool) {
	kind := mqtt.Type(packet)
	if kind == packets.DISCONNECT {
		c.left()
		return false
	}
	c.handled = true
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
	case packets.PUBREC, packets.PUBREL, packets.PUBCOMP: // of a message that there cannot be
		c.refusePacket(refusal(mqtt.ProtocolError, noQoS2))
	}
	if c.answers >= heldEnough || c.readTurn.Spent() {
		c.pause()
	}
	return !c.why.Load().isFault()
}

// answer lets encode append to the packets that are held back.
func (c *connection) answer(encode func(held []byte) []byte) { c.answers += c.holdBack(encode) }

// handlePublish applies a request, or passes a message on. A fault is told in the acknowledgement. Before MQTT 5
// these have no reasons, so that it ends the connection.
func (c *connection) handlePublish() {
	p, s := c.gate.Publish(), c.server
	isRequest := string(p.Topic) == protocol.InvokeTopic // which allocates nothing
	answer := accepted
	switch {
	case p.QoS > 1:
		if isRequest {
			s.drop(c, DroppedQoS)
		}
		c.refusePacket(refusal(mqtt.QoSNotSupported, noQoS2)) // CONNACK has announced it [MQTT-3.2.2-11]
		return
	case isRequest:
		// An acknowledgement does not wait for a commit: it says that the server has the request.
		if fault := s.request(c, c.texts.request(p)); fault != nil {
			answer = fault
		}
		c.writeOwn()
	case p.Retain:
		c.refusePacket(refusal(mqtt.RetainNotSupported, noneRetained)) // CONNACK has announced it, too
		return
	case !s.mayPublish(c.identity, string(p.Topic)):
		answer = refusal(mqtt.NotAuthorized, "this client may not publish to this topic")
	case !s.passOn(c, p):
		answer = unmatched
	}
	switch {
	case p.QoS == 0 && !isRequest:
	case c.gate.Version < mqtt.Version5 && answer.Code >= mqtt.Failure:
		c.refusePacket(answer)
	case p.QoS > 0:
		c.acknowledge(answer)
	}
}

// The reason codes of acknowledgements that report no fault.
var accepted, unmatched = new(mqtt.Refusal), &mqtt.Refusal{Code: mqtt.NoMatchingSubscribers}

// passOn publishes an ordinary message, and reports whether a subscription matches it.
func (s *Server) passOn(c *connection, p *mqtt.Publish) (matched bool) {
	message := c.message(string(p.Topic), p)
	message.Borrowed = true
	if p.MessageExpiry > 0 {
		message.Expires = time.Now().Add(time.Duration(p.MessageExpiry) * time.Second)
	}
	return s.messages.Publish(&message, func() bool { return s.yield(c.readTurn) && !c.isClosed() })
}

// yield lets others have their turns during a long task, and reports whether the server goes on.
func (s *Server) yield(turn *fairqueue.Place) (goOn bool) {
	turn.Yield()
	return !s.stopping.Load()
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

// acknowledge adds a PUBACK to the packets that are held back.
func (c *connection) acknowledge(code *mqtt.Refusal) {
	id := c.gate.Publish().PacketID
	c.answer(func(held []byte) []byte {
		if code.Code == mqtt.Success || c.gate.Version < mqtt.Version5 {
			return mqtt.AppendPuback(held, id)
		}
		full := wire.AppendPubackReason(held, id, code.Code, code.Reason)
		if code.Reason != "" && c.gate.TooLarge(len(full)-len(held)) {
			return wire.AppendPubackReason(held, id, code.Code, "") // [MQTT-3.4.2-2]
		}
		return full
	})
}

func (c *connection) handleSubscribe(asked *wire.Subscribe) {
	codes := make([]byte, len(asked.Filters))
	for i, filter := range asked.Filters {
		codes[i] = c.subscribe(filter, asked.Identifier)
		if codes[i] < mqtt.Failure {
			continue
		}
		c.server.log(lineSubscription, "client", logs.Name(c.identity.Client), "remote", c.remote,
			"filter", logs.Name(filter.Topic), "reason", whyNotSubscribed(codes[i]))
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
func whyNotSubscribed(code byte) string {
	switch code {
	case mqtt.QuotaExceeded:
		return "the client, or all together, have as many subscriptions as they may: " +
			"Options.Limits.Subscriptions, --max-subscriptions, Options.Limits.AllSubscriptionBytes"
	case mqtt.SharedNotSupported:
		return "this server has no shared subscriptions"
	case mqtt.NotAuthorized:
		return "the client may not read these topics; none has messages that begins with $"
	}
	return "the session is over"
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
