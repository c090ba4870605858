package server

import (
	"sync/atomic"

	mqtt "github.com/mochi-mqtt/server/v2"
	"github.com/mochi-mqtt/server/v2/packets"

	"github.com/tenurelock/tenure/internal/frame"
	"github.com/tenurelock/tenure/internal/protocol"
	"github.com/tenurelock/tenure/server/internal/logs"
)

// express takes the requests out of what a client sends and answers them past the
// broker, to which a request is a message like any other: it takes each packet apart for
// every use that MQTT knows, and writes each answer by itself. Here the answers to all
// that was read at once leave at once.
//
// It takes plain requests only, whose replies go to their sender alone. Whatever is wrong
// or rare the broker gets as it came, and decides what is to be done about it. Both ways
// lead to the same functions, checkRequest and apply.
//
// All of it belongs to the goroutine that reads the connection.
type express struct {
	conn   *connection
	server *Server
	client *mqtt.Client // nil until its session is established

	topic         string // to which it was asked to reply last,
	alone         bool   // whether its client is the only reader of that,
	subscriptions uint64 // and when that was so (see Server.subscriptions)

	timestamp, fencingToken, store string // of the request that is taken

	// Since the last pause.
	taken, answered int64
	read, written   int64 // bytes
}

// board opens the express to a client whose session is established.
func (e *express) board(s *Server, cl *mqtt.Client) { e.server, e.client = s, cl }

// take answers a packet if it is a plain request, and reports whether it was. The packet
// is overwritten afterwards: statestore.Parse and the store copy what they keep.
func (e *express) take(packet []byte) bool {
	if e.client == nil || frame.Type(packet) != frame.TypePublish ||
		uint64(len(packet)) > uint64(e.server.options.MaxPacketSize) {
		return false
	}
	p, ok := frame.ParsePublish(packet)
	if !ok || p.QoS != 1 || string(p.Topic) != protocol.InvokeTopic || !e.readsAlone(p.ResponseTopic) {
		return false
	}
	r := request{
		qos:           p.QoS,
		retain:        p.Retain,
		responseTopic: e.topic,
		correlation:   p.CorrelationData,
		expiry:        p.MessageExpiry,
		timestamp:     keep(&e.timestamp, &p, protocol.PropertyTimestamp),
		fencingToken:  keep(&e.fencingToken, &p, protocol.PropertyFencingToken),
		store:         keep(&e.store, &p, protocol.PropertyStore),
		payload:       p.Payload,
	}
	who := e.conn.identity
	if e.server.checkRequest(who, e.client, r) != "" || !e.server.mayRead(who, e.topic) || e.server.reserve(e.client, e.topic) != "" {
		return false
	}
	e.taken++
	e.read += int64(len(packet))
	if e.conn.closed.Load() {
		return true // after all the others there is nobody to be answered
	}
	reply, fault := e.server.apply(who, e.client, r)
	if fault != nil {
		e.acknowledge(p.PacketID, *fault)
		return true
	}
	message := e.server.answer(e.client, r, reply)
	if isTooLarge(e.client, &message) {
		e.server.respond(e.client, message) // the broker knows what to leave out
		e.acknowledge(p.PacketID, packets.CodeSuccess)
		return true
	}
	e.answered++
	var err error
	e.conn.holdBack(func(held []byte) []byte {
		before := len(held)
		held, err = message.Append(held)
		held = frame.AppendPuback(held, p.PacketID)
		e.written += int64(len(held) - before)
		return held
	})
	if err != nil {
		e.server.logger.Debug("a reply was not delivered", "client", logs.Name(e.client.ID), "error", logs.Error(err))
	}
	return true
}

// readsAlone reports whether replies on a topic are for this client only, and notes the
// topic. Asking the broker costs more than all the rest of a request.
func (e *express) readsAlone(topic []byte) bool {
	// Before the question: what changes meanwhile will be asked about again.
	subscriptions := e.server.subscriptions.Load()
	if e.topic != string(topic) || e.subscriptions != subscriptions {
		e.topic, e.subscriptions = string(topic), subscriptions
		e.alone = e.server.onlyReader(e.client, e.topic)
	}
	return e.alone
}

// acknowledge sends a PUBACK through the broker.
func (e *express) acknowledge(packetID uint16, code packets.Code) {
	ack := packets.Packet{FixedHeader: packets.FixedHeader{Type: packets.Puback}, PacketID: packetID, ReasonCode: code.Code}
	if code.Code >= packets.ErrUnspecifiedError.Code {
		ack.Properties.ReasonString = code.Reason
	}
	_ = e.client.WritePacket(ack) // a connection that cannot be written to is closed
}

// pause lets the answers go, before the client is waited for or the broker reads on. And
// it does what the broker would have done for each of the requests: it gives the client
// time for the next one, and counts.
func (e *express) pause() {
	if e.taken == 0 {
		return
	}
	e.conn.flush()
	e.conn.extendDeadline()
	info := e.server.broker.Info
	atomic.AddInt64(&info.PacketsReceived, e.taken)
	atomic.AddInt64(&info.MessagesReceived, e.taken)
	atomic.AddInt64(&info.BytesReceived, e.read)
	atomic.AddInt64(&info.PacketsSent, 2*e.answered)
	atomic.AddInt64(&info.MessagesSent, e.answered)
	atomic.AddInt64(&info.BytesSent, e.written)
	e.taken, e.answered, e.read, e.written = 0, 0, 0, 0
}

// keep copies a user property to where it is kept, and returns that, or nil if it is not
// there.
func keep(where *string, p *frame.Publish, name string) *string {
	value, ok := p.User(name)
	if !ok {
		return nil
	}
	if *where != string(value) { // as the identity of the store nearly always is
		*where = string(value)
	}
	return where
}
