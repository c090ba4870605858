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
		c.client.session.Acknowledge(c.gate.Puback().PacketID)
	case packets.SUBSCRIBE:
		c.handleSubscribe(c.gate.Subscribe)
		c.gate.Subscribe = nil
	case packets.UNSUBSCRIBE:
		c.handleUnsubscribe(c.gate.Subscribe)
		c.gate.Subscribe = nil
	case packets.PINGREQ: // costs as much as a request, so it waits for a turn too
		c.holdBack(func(held []byte) []byte { return append(held, packets.PINGRESP<<4, 0) })
	}
	if c.holdsEnough() || c.readTurn.Spent() {
		c.pause()
	}
	return !c.why.Load().isFault()
}

// handlePublish applies a request, or passes a message on. A fault is told in the acknowledgement.
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
	default:
		message := c.message(string(p.Topic), p)
		if !s.publish(&message, c.readTurn) {
			answer = unmatched
		}
	}
	if p.QoS > 0 {
		c.acknowledge(answer)
	}
}

// The reason codes of acknowledgements that report no fault.
var accepted, unmatched = new(mqtt.Refusal), &mqtt.Refusal{Code: mqtt.NoMatchingSubscribers}

// expiryOf returns when a message with a Message Expiry Interval expires; 0: never.
func expiryOf(seconds uint32) time.Time {
	if seconds == 0 {
		return time.Time{}
	}
	return time.Now().Add(time.Duration(seconds) * time.Second)
}

// publish publishes a message in turns, so that others have theirs, until the server stops.
func (s *Server) publish(message *pubsub.Message, turn *fairqueue.Place) (matched bool) {
	return s.messages.Publish(message, func() (goOn bool) {
		turn.Yield()
		return s.running.Err() == nil
	})
}

// message returns what is passed on of a PUBLISH or a Will, whose payload it shares.
func (c *connection) message(topic string, p *mqtt.Publish) pubsub.Message {
	return pubsub.Message{
		Topic:      topic,
		QoS:        p.QoS,
		Properties: wire.AppendForwarded(nil, p),
		Payload:    p.Payload,
		Publisher:  c.identity.Client,
		Expires:    expiryOf(p.MessageExpiry),
	}
}

// acknowledge adds a PUBACK to the packets that are held back.
func (c *connection) acknowledge(code *mqtt.Refusal) {
	id := c.gate.Publish().PacketID
	c.holdBack(func(held []byte) []byte {
		if code.Code == mqtt.Success {
			return mqtt.AppendPuback(held, id)
		}
		full := wire.AppendPubackReason(held, id, code.Code, code.Reason)
		if c.gate.TooLarge(len(full) - len(held)) {
			return wire.AppendPubackReason(held, id, code.Code, "") // [MQTT-3.4.2-2]
		}
		return full
	})
}

func (c *connection) handleSubscribe(asked *wire.Subscribe) {
	codes := make([]byte, len(asked.Filters))
	for i, filter := range asked.Filters {
		why := ""
		if codes[i], why = c.subscribe(filter); why != "" {
			c.server.log(lineSubscription, "client", logs.Name(c.identity.Client), "remote", c.remote,
				"filter", logs.Name(filter.Topic), "reason", why)
		}
	}
	c.holdBack(func(held []byte) []byte { return wire.AppendGranted(held, packets.SUBACK, asked.PacketID, codes) })
}

// subscribe adds a subscription, and returns the reason code for SUBACK, and why there is none.
func (c *connection) subscribe(asked wire.Subscription) (code byte, why string) {
	qos := min(asked.QoS, 1)
	switch {
	case strings.HasPrefix(asked.Topic, "$share/"): // as CONNACK has announced
		return mqtt.SharedNotSupported, "this server has no shared subscriptions"
	case !c.server.maySubscribe(c.identity, asked.Topic):
		return mqtt.NotAuthorized, "the client may not read these topics; none has messages that begins with $"
	case !c.client.session.Subscribe(asked.Topic, pubsub.Subscription{QoS: qos, NoLocal: asked.NoLocal}):
		return mqtt.QuotaExceeded, "the client, or all together, have as many subscriptions as they may"
	}
	return qos, ""
}

func (c *connection) handleUnsubscribe(asked *wire.Subscribe) {
	codes := make([]byte, len(asked.Filters))
	for i, filter := range asked.Filters {
		if !c.client.session.Unsubscribe(filter.Topic) {
			codes[i] = mqtt.NoSubscription
		}
	}
	c.holdBack(func(held []byte) []byte { return wire.AppendGranted(held, packets.UNSUBACK, asked.PacketID, codes) })
}
