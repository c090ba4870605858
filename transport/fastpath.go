package transport

import (
	"context"
	"fmt"
	"runtime"
	"time"

	"github.com/eclipse/paho.golang/packets"

	"github.com/tenurelock/tenure/internal/mqtt"
	"github.com/tenurelock/tenure/internal/protocol"
)

// fastPath carries the requests and replies of a link past paho's codec, which takes packets apart
// for every use that MQTT knows: it writes PUBLISH packets itself, and takes PUBACKs and
// replies out of the packets that arrive. mqtt.Client handles all other packets, from CONNECT
// to DISCONNECT.
//
// It begins after SUBSCRIBE was granted. From then on nothing else uses packet ids, so all
// of them belong to the fast path.
//
// One goroutine sends, mqttConn.serve: it gathers what callers have queued, and no caller waits for a
// broker that does not read.
type fastPath struct {
	link *link

	// Used by the goroutine that sends only.
	message mqtt.Message
	packets []byte

	// Guarded by link.mu.
	lastID  uint16
	unacked map[uint16]correlation // by packet id
}

// maxBatch is how many bytes of packets are gathered before they are written.
const maxBatch = 32 << 10

func newFastPath(l *link) *fastPath {
	return &fastPath{link: l, unacked: make(map[uint16]correlation)}
}

// send writes the queued requests; those that were queued together leave in one write.
func (f *fastPath) send() {
	if f.link.underWay() > 1 {
		// Replies that arrived together have woken as many callers: let them queue their
		// next requests first.
		runtime.Gosched()
	}
	for {
		f.packets = f.packets[:0]
		f.encode()
		if len(f.packets) == 0 {
			return
		}
		f.link.net.Send(f.packets)
		if cap(f.packets) > 2*maxBatch {
			f.packets = nil // there was a long one; they are rare
		}
	}
}

// encode gathers packets. From here on a request may reach the broker, even if its caller
// gives up.
func (f *fastPath) encode() {
	var failed ended
	defer func() { failed.tell() }()
	l := f.link
	l.mu.Lock()
	defer l.mu.Unlock()
	for now := (time.Time{}); len(f.packets) < maxBatch; {
		e := l.popLocked()
		if e == nil {
			return
		}
		if now.IsZero() {
			now = time.Now()
		}
		if l.pending[e.correlation] == nil {
			continue // its slot is free again
		}
		if err := f.appendLocked(e, now); err != nil {
			l.takeLocked(e.correlation)
			l.slots.free()
			failed.add(e, Reply{}, err)
			continue
		}
		e.sent = true
	}
}

// appendLocked adds the packet of a request to those to be written. The error says why there
// can be none.
func (f *fastPath) appendLocked(e *exchange, now time.Time) error {
	if e.ctx.Err() != nil {
		return notSent(context.Cause(e.ctx))
	}
	if while := e.request.Binding.While; while != nil && while.Err() != nil {
		return notSent(context.Cause(while))
	}
	expiry := time.Duration(0)
	if deadline, ok := e.until(); ok {
		if expiry = deadline.Sub(now); expiry <= 0 {
			return notSent(context.DeadlineExceeded)
		}
	}
	l, id := f.link, f.nextIDLocked()
	f.message = mqtt.Message{
		Topic:           protocol.InvokeTopic,
		QoS:             1,
		PacketID:        id,
		MessageExpiry:   messageExpiry(expiry),
		ContentType:     protocol.ContentType,
		ResponseTopic:   l.replies,
		CorrelationData: e.correlation[:],
		User:            requestProperties(f.message.User[:0], l.clientID, e.request),
		Payload:         e.request.Payload,
	}
	// paho v0.23.0 does not check this, and the broker would end the connection [MQTT-3.2.2-15].
	if size := f.message.Size(); size > l.maxPacket {
		return &RejectedError{
			Code:   packets.ConnackPacketTooLarge,
			Reason: fmt.Sprintf("the request makes a packet of %d bytes, and the broker takes at most %d", size, l.maxPacket),
		}
	}
	batch, err := f.message.Append(f.packets)
	if err != nil {
		return notSent(err)
	}
	f.packets, f.unacked[id] = batch, e.correlation
	return nil
}

// nextIDLocked returns a packet id that is not in use. There is one: a link has no more
// slots than there are ids, and this request has one of them.
func (f *fastPath) nextIDLocked() uint16 {
	for {
		f.lastID++
		if _, used := f.unacked[f.lastID]; f.lastID != 0 && !used {
			return f.lastID
		}
	}
}

// take handles a packet that arrived, and reports false if it is for the client. It is called
// where the connection is read. If the packet is a PUBLISH, p is what the gate has decoded of it.
func (f *fastPath) take(packet []byte, p *mqtt.Publish) bool {
	switch mqtt.Type(packet) {
	case packets.PUBACK:
		ack, ok := mqtt.ParsePuback(packet)
		return ok && f.acknowledged(ack)
	case packets.PUBLISH:
		if p.QoS > 0 || p.Identified {
			return false // it is to be acknowledged; and a reply has no subscription identifier
		}
		m := readMessage(p)
		f.link.deliver(&m)
		return true
	}
	return false
}

// acknowledged reports whether a PUBACK is for a request.
func (f *fastPath) acknowledged(ack mqtt.Puback) bool {
	var refused ended
	defer func() { refused.tell() }()
	f.link.mu.Lock()
	defer f.link.mu.Unlock()
	id, ok := f.unacked[ack.PacketID]
	delete(f.unacked, ack.PacketID)
	if ok {
		refused = f.link.acknowledgedLocked(id, ack)
	}
	return ok
}
