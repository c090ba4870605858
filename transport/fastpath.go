package transport

import (
	"context"
	"fmt"
	"runtime"
	"time"

	"github.com/eclipse/paho.golang/packets"

	"github.com/tenurelock/tenure/internal/frame"
	"github.com/tenurelock/tenure/internal/protocol"
	"github.com/tenurelock/tenure/internal/wire"
)

// fastPath carries the requests and replies of a link past paho's codec, which takes packets apart
// for every use that MQTT knows: it writes PUBLISH packets itself, and takes PUBACKs and
// replies out of the packets that arrive. mqttclient.Client handles all other packets, from CONNECT
// to DISCONNECT.
//
// It begins after SUBSCRIBE was granted. From then on nothing else uses packet ids, so all
// of them belong to the fast path.
//
// One goroutine at a time sends: the one with the claim. A caller that queues a request while
// none has the claim takes it, if no other request is under way, and writes to the socket
// itself: that saves two switches of goroutines. It writes once, and only what the socket takes
// without a wait, so no caller waits for a broker that does not read. All else is left to the
// sending goroutine (mqttConn.serve), which gets the claim with it.
type fastPath struct {
	link *link

	// Used by the goroutine with the claim only.
	message frame.Message
	packets []byte

	// Guarded by link.mu.
	claimed bool // a goroutine has the claim
	handed  bool // a caller left the claim to the sending goroutine
	lastID  uint16
	unacked map[uint16]correlation // by packet id
	alone   int                    // requests in a row that were alone, each soon after the one before
	latest  time.Time              // when the latest of them was queued
	within  time.Duration          // aloneWithin, but for tests
}

// maxBatch is how many bytes of packets are gathered before they are written.
const maxBatch = 32 << 10

const (
	// aloneOften is how many requests in a row must have been alone, with no other request under way,
	// before callers read their replies themselves.
	aloneOften = 16
	// aloneWithin is the longest time from one of them to the next. For a program that makes a request
	// now and then, and waits for notifications, the connection is read all the time.
	aloneWithin = 500 * time.Microsecond
	// lendTick bounds two delays, each to twice this: of a notification that arrives soon after the last
	// of these requests, and of a caller that gives up.
	lendTick = time.Millisecond
)

func newFastPath(l *link) *fastPath {
	return &fastPath{link: l, unacked: make(map[uint16]correlation), within: aloneWithin}
}

// claimLocked takes the claim for the caller that has just queued a request, and reports
// whether it got it.
func (f *fastPath) claimLocked() bool {
	// Where replies have woken several callers, the sending goroutine gathers their next
	// requests: one system call for all of them costs less than the switches do.
	if f.claimed || len(f.link.pending) > 1 || !f.link.net.CanTrySend() {
		f.alone = 0
		return false
	}
	now := time.Now()
	if now.Sub(f.latest) > f.within {
		f.alone = 0
	}
	f.alone, f.latest = f.alone+1, now
	f.claimed = true
	return true
}

// callersRead reports whether callers should read their replies themselves: their requests come one
// after the other, the latest a moment ago, and none waits for its reply now. Without the moment, each
// piece of what arrives after the last of them would wait for a tick.
func (f *fastPath) callersRead() bool {
	f.link.mu.Lock()
	defer f.link.mu.Unlock()
	return f.alone >= aloneOften && len(f.link.pending) == 0 && time.Since(f.latest) <= f.within
}

// trySend sends the queued requests in the goroutine of a caller, which has the claim. It does
// not wait.
func (f *fastPath) trySend() {
	done := false
	defer func() { f.tried(done) }() // also if the context of a request panics
	f.packets = f.packets[:0]
	f.encode()
	if len(f.packets) == 0 {
		done = true
		return
	}
	taken, left := f.link.net.TrySend(f.packets)
	if taken {
		f.packets = f.packets[:0]
	}
	done = taken && !left
}

// tried gives the claim of a caller back if everything was sent, and to the sending goroutine
// otherwise.
func (f *fastPath) tried(done bool) {
	f.link.mu.Lock()
	defer f.link.mu.Unlock()
	if done && f.link.isIdleLocked() {
		f.claimed = false
		return
	}
	f.handed = true
	f.link.wakeUp()
}

// send writes the queued requests; those that were queued together leave in one write. Only
// the sending goroutine calls it.
func (f *fastPath) send() {
	f.link.mu.Lock()
	if f.claimed && !f.handed {
		f.link.mu.Unlock()
		return // a caller is sending, and hands the claim over if anything is left
	}
	handed, underWay := f.handed, len(f.link.pending)
	f.claimed, f.handed = true, false
	f.link.mu.Unlock()
	if handed {
		f.link.net.Send(f.packets) // empty, or what the caller could not even begin to write
	}
	if underWay > 1 {
		// Replies that arrived together have woken as many callers: let them queue their
		// next requests first.
		runtime.Gosched()
	}
	for {
		f.packets = f.packets[:0]
		f.encode()
		if len(f.packets) == 0 && f.releaseClaim() {
			return
		}
		f.link.net.Send(f.packets)
		if cap(f.packets) > 2*maxBatch {
			f.packets = nil // there was a long one; they are rare
		}
	}
}

// releaseClaim gives the claim back, unless requests were queued meanwhile.
func (f *fastPath) releaseClaim() bool {
	f.link.mu.Lock()
	defer f.link.mu.Unlock()
	f.claimed = !f.link.isIdleLocked()
	return !f.claimed
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
	f.message = frame.Message{
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
func (f *fastPath) take(packet []byte, p *frame.Publish) bool {
	switch frame.Type(packet) {
	case wire.Puback:
		ack, ok := frame.ParsePuback(packet)
		return ok && f.acknowledged(ack)
	case wire.Publish:
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
func (f *fastPath) acknowledged(ack frame.Puback) bool {
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
