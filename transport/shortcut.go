package transport

import (
	"runtime"

	"github.com/tenurelock/tenure/internal/frame"
	"github.com/tenurelock/tenure/internal/mqttnet"
	"github.com/tenurelock/tenure/internal/protocol"
	"github.com/tenurelock/tenure/internal/wire"
)

// shortCut carries requests and replies past paho, which takes packets apart for every
// use that MQTT knows: it writes PUBLISH packets itself, and takes PUBACKs and replies
// out of what the connection brings. All else, from CONNECT to DISCONNECT, is paho's: it
// does not notice.
//
// It comes into use when paho is done with SUBSCRIBE, so the packet ids are its own: paho
// has no more use for any.
type shortCut struct {
	conn *mqttConn
	link *link
	net  *mqttnet.Conn

	// Of the goroutine that sends.
	message frame.Message
	packets []byte

	// Guarded by mqttConn.mu.
	lastID  uint16
	unacked map[uint16]correlation // by packet id
}

// maxBatch is how many bytes of packets are gathered before they are written.
const maxBatch = 32 << 10

// takeShortCut makes a connection's requests and replies go past paho from now on, and
// returns what sends the requests that are queued.
func (c *mqttConn) takeShortCut(l *link, net *mqttnet.Conn) (send func()) {
	s := &shortCut{conn: c, link: l, net: net, unacked: make(map[uint16]correlation)}
	net.Intercept(s.take)
	return s.send
}

// send writes what is queued; what came together leaves together.
func (s *shortCut) send() {
	if s.underWay() > 1 {
		// Replies that came together have woken as many callers: let them ask first what
		// they want to ask next.
		runtime.Gosched()
	}
	for {
		s.packets = s.packets[:0]
		s.encode()
		if len(s.packets) == 0 {
			return
		}
		s.net.Send(s.packets)
		if cap(s.packets) > 2*maxBatch {
			s.packets = nil // there was a long one; they are rare
		}
	}
}

func (s *shortCut) underWay() int {
	s.conn.mu.Lock()
	defer s.conn.mu.Unlock()
	return len(s.link.pending)
}

// encode gathers packets. A request whose caller leaves from here on may arrive.
func (s *shortCut) encode() {
	s.conn.mu.Lock()
	defer s.conn.mu.Unlock()
	for len(s.packets) < maxBatch {
		e := s.conn.nextLocked(s.link, &s.message)
		if e == nil {
			return
		}
		s.message.PacketID = s.nextIDLocked()
		packets, err := s.message.Append(s.packets)
		if err != nil {
			s.link.takeLocked(e.correlation)
			s.link.freeSlot()
			e.end(result{err: notSent(err)})
			continue
		}
		s.packets = packets
		s.unacked[s.message.PacketID] = e.correlation
	}
}

// nextIDLocked returns a packet id that is not in use. There is one: a link has no more
// slots than there are ids, and this request has one of them.
func (s *shortCut) nextIDLocked() uint16 {
	for {
		s.lastID++
		if _, used := s.unacked[s.lastID]; s.lastID != 0 && !used {
			return s.lastID
		}
	}
}

// take looks at a packet that came in, and reports whether that was all there is to do.
// It is called where the connection is read.
func (s *shortCut) take(packet []byte) bool {
	switch frame.Type(packet) {
	case wire.Puback:
		ack, ok := frame.ParsePuback(packet)
		return ok && s.acknowledged(ack)
	case wire.Publish:
		p, ok := frame.ParsePublish(packet)
		if !ok || p.QoS > 0 {
			return false // it is for paho to acknowledge
		}
		m := message{topic: p.Topic, correlation: p.CorrelationData, payload: p.Payload}
		m.timestamp, _ = p.User(protocol.PropertyTimestamp)
		m.status, _ = p.User(protocol.PropertyStatus)
		m.statusMessage, _ = p.User(protocol.PropertyStatusMessage)
		m.store, _ = p.User(protocol.PropertyStore)
		s.conn.deliver(s.link, &m)
		return true
	}
	return false
}

// acknowledged reports whether a PUBACK is that of a request.
func (s *shortCut) acknowledged(ack frame.Puback) bool {
	s.conn.mu.Lock()
	id, ok := s.unacked[ack.PacketID]
	delete(s.unacked, ack.PacketID)
	s.conn.mu.Unlock()
	if ok {
		s.conn.acknowledged(s.link, id, ack.ReasonCode, string(ack.ReasonString))
	}
	return ok
}
