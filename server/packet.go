package server

import (
	"sync"

	"github.com/eclipse/paho.golang/packets"

	"github.com/tenurelock/tenure/hlc"
	"github.com/tenurelock/tenure/internal/mqtt"
	"github.com/tenurelock/tenure/internal/protocol"
	"github.com/tenurelock/tenure/server/internal/envelope"
	"github.com/tenurelock/tenure/server/internal/fairqueue"
	"github.com/tenurelock/tenure/server/internal/logs"
	"github.com/tenurelock/tenure/server/internal/pubsub"
	"github.com/tenurelock/tenure/server/internal/wire"
	"github.com/tenurelock/tenure/statestore"
)

// packet is what waits in an outbox: a reply, or a notification.
type packet struct {
	reply   *pendingReply
	change  *statestore.Change // nil: it is a reply
	dialect statestore.Dialect // of the client
}

// size returns how many bytes of the budget the packet takes.
func (p packet) size() int64 {
	if p.reply != nil {
		return p.reply.bytes
	}
	return envelope.NotificationCost(p.change)
}

// write adds the packet to those that a connection holds back, or publishes it, in a turn of a place.
func (p packet) write(conn *connection, turn *fairqueue.Place) {
	s := conn.server
	if p.reply == nil {
		conn.hold(s.encodeNotification(conn.identity.Client, p.change, p.dialect))
		return
	}
	defer p.reply.free()
	topic := p.reply.topic
	reply := s.encodeReply(topic, p.reply.correlation, p.reply.reply)
	if p.reply.reply.Outcome == statestore.Found && conn.gate.TooLarge(reply.Size()) {
		free(reply)
		refused := statestore.Reply{Verb: p.reply.reply.Verb, Err: tooLargeForClient}
		reply = s.encodeReply(topic, p.reply.correlation, refused) // so that the client need not wait for nothing
	}
	if envelope.IsClientTopic(topic) {
		// Only the client itself can read the topic, so the reply is written directly, and nothing that other clients do
		// can delay it.
		conn.hold(reply)
	} else {
		s.publishReply(topic, reply, turn)
	}
}

// tooLargeForClient replaces a reply that is larger than its client takes. It is not one of the
// refusals of the protocol: clients get its text.
const tooLargeForClient protocol.Refusal = "the reply is larger than the client takes"

// pendingReply is the reply to a request, from before the store gets the request until the reply is written.
// Its memory comes from pendingReplies, so that an idle connection has none.
type pendingReply struct {
	conn        *connection
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

// newReply returns the reply to a request about a key.
func (c *connection) newReply(r *request, key string) *pendingReply {
	p, ok := pendingReplies.Get().(*pendingReply)
	if !ok {
		p = new(pendingReply)
		p.arrive = p.arrived
	}
	p.conn, p.topic, p.key = c, r.responseTopic, key
	p.correlation = append(p.correlation[:0], r.CorrelationData...) // whose bytes are overwritten later
	p.bytes = replyOverhead + int64(len(p.topic)+len(p.correlation))
	return p
}

// free lets another reply use the memory.
func (p *pendingReply) free() {
	if cap(p.correlation) <= maxForward {
		*p = pendingReply{correlation: p.correlation, arrive: p.arrive}
		pendingReplies.Put(p)
	}
}

// arrived queues the reply, which may leave now. The engine calls it with its lock held, so it must not block.
func (p *pendingReply) arrived(reply statestore.Reply) {
	p.conn.server.answered(reply)
	if reply.Outcome == statestore.Expired {
		p.conn.outbox.release(p)
		return
	}
	p.reply = reply
	p.bytes += envelope.ValueCost(p.key, &reply) // which request takes
	p.conn.outbox.answer(p)
}

// forwards has the memory of replies and notifications, which leave with QoS 0: a client that misses one repeats
// its request, or asks. So they allocate nothing, and an idle connection has none. It has no large values.
var forwards = sync.Pool{New: func() any { return new(wire.Forward) }}

// maxForward is how many bytes the memory of a packet may have to be used again.
const maxForward = 4096

// free lets another reply or notification use the memory.
func free(f *wire.Forward) {
	if cap(f.TopicBytes)+cap(f.Properties)+cap(f.Payload) <= maxForward {
		forwards.Put(f)
	}
}

// encodeReply returns a reply, to be freed after use.
func (s *Server) encodeReply(topic string, correlation []byte, reply statestore.Reply) *wire.Forward {
	f := forwards.Get().(*wire.Forward)
	f.TopicBytes = append(f.TopicBytes[:0], topic...)
	f.Properties = mqtt.AppendProperty(append(f.Properties[:0], s.replyProperties...),
		packets.PropCorrelationData, correlation)
	if !reply.Version.IsZero() {
		f.Properties = appendVersion(f.Properties, reply.Version)
	}
	f.Payload = reply.Append(f.Payload[:0])
	return f
}

// encodeNotification returns a notification to a client, to be freed after use. Each renewal of a
// watched key causes one, mostly to the holder alone.
func (s *Server) encodeNotification(id string, change *statestore.Change, dialect statestore.Dialect) *wire.Forward {
	f := forwards.Get().(*wire.Forward)
	f.TopicBytes = protocol.AppendNotifyTopic(f.TopicBytes[:0], id, change.Key)
	f.Properties = appendVersion(append(f.Properties[:0], s.notificationProperties...), change.Version)
	f.Payload = change.Append(f.Payload[:0], dialect)
	return f
}

func appendVersion(properties []byte, version hlc.Timestamp) []byte {
	var buffer [64]byte // for the usual node ids
	return mqtt.AppendUserProperty(properties, protocol.PropertyTimestamp, version.Append(buffer[:0]))
}

// encodeProperties sets the encoded properties that all notifications, and all replies, of the store have.
func (s *Server) encodeProperties(identity string) {
	common := mqtt.AppendProperty(nil, packets.PropContentType, protocol.ContentType)
	common = mqtt.AppendUserProperty(common, protocol.PropertyProtocolVersion, protocol.ProtocolVersion)
	s.notificationProperties = mqtt.AppendUserProperty(common, protocol.PropertyStore, identity)
	s.replyProperties = mqtt.AppendUserProperty(s.notificationProperties, protocol.PropertyStatus, protocol.StatusOK)
}

// hold adds a packet to those that are held back, and frees it.
func (c *connection) hold(packet *wire.Forward) {
	defer free(packet)
	if c.gate.TooLarge(packet.Size()) { // [MQTT-3.1.2-24]
		c.server.logger.Debug("a packet is larger than its client takes", "client", logs.Name(c.identity.Client))
		return
	}
	c.holdBack(packet.Append)
}

// publishReply publishes a reply on a topic that other clients may read, in turns, and frees it.
func (s *Server) publishReply(topic string, reply *wire.Forward, turn *fairqueue.Place) {
	defer free(reply)
	turn.Begin()
	s.publish(&pubsub.Message{Topic: topic, Properties: reply.Properties, Payload: reply.Payload}, turn)
}
