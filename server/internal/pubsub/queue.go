package pubsub

import (
	"cmp"
	"container/list"
	"math"
	"time"

	"github.com/tenurelock/tenure/internal/mqtt"
	"github.com/tenurelock/tenure/server/internal/wire"
)

// Link is a connection as its session uses it. Wake means that there is something to send: the goroutine that
// writes to the connection must call Session.Append until that reports no more. Until then, Wake is not called
// again. It must not block. The type must be comparable, such as a pointer.
type Link interface{ Wake() }

// Receiver is a connection with the limits of its client.
type Receiver struct {
	Link  Link
	MQTT5 bool // else 3.1.1
	// ReceiveMaximum is how many QoS 1 messages may be in flight; 0 means 65,535.
	ReceiveMaximum uint16
	// MaximumPacketSize is in bytes; 0 means no maximum.
	MaximumPacketSize uint32
	// MayRead reports whether the client may read a topic; nil means any. It is called when a
	// message is queued, and once more before the message is sent on a later connection. The
	// session uses it until the next Attach. It is called without locks, also by goroutines of
	// other clients.
	MayRead func(topic string) bool
}

func (r *Receiver) mayRead(topic string) bool { return r.MayRead == nil || r.MayRead(topic) }

// waiting is a message that waits in a session.
type waiting struct {
	*Message
	delivery
	size     int64
	packetID uint16 // 0: it was never sent
	isSent   bool   // on the present connection
	asked    uint64 // the epoch in which MayRead was called
}

func (w *waiting) isOver(now time.Time) bool {
	return w.packetID == 0 && !w.Expires.IsZero() && !now.Before(w.Expires) // one that was sent must be sent again [MQTT-4.4.0-1]
}

// queue has the messages that wait for a client, guarded by Session.mu: first those that are sent, which have QoS 1,
// then the others.
type queue struct {
	receiver Receiver // of the latest connection
	link     Link     // nil: not connected
	epoch    uint64   // counts Attach
	awake    bool     // the link was woken and has not sent everything

	messages list.List     // of *waiting, the oldest first
	unsent   *list.Element // the next one to send
	bytes    int64
	sent     int                      // how many are in flight
	sentOnce map[uint16]*list.Element // those with a packet id
	packetID uint16                   // the latest
	expires  time.Time                // nothing expires before; zero: nothing expires
}

// Attach makes the session send its messages to a connection, in place of the one before. QoS 1
// messages that were not acknowledged are sent again.
func (s *Session) Attach(r Receiver) {
	s.mu.Lock()
	if s.ended {
		s.mu.Unlock()
		return
	}
	s.detachLocked()
	s.receiver, s.link, s.awake = r, r.Link, false
	s.epoch++
	s.unlockAndWake()
}

// Detach ends the use of a connection, which is over. It has no effect if another one was attached
// since.
func (s *Session) Detach(link Link) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.link == link {
		s.detachLocked()
	}
}

// detachLocked drops the QoS 0 messages that the connection has not sent. All others are to be sent again.
func (s *Session) detachLocked() {
	s.link, s.receiver.Link = nil, nil
	for e := s.messages.Front(); e != nil; {
		w := e.Value.(*waiting)
		w.isSent = false
		next := e.Next()
		if w.qos == 0 {
			s.removeLocked(e)
		}
		e = next
	}
	s.sent, s.unsent = 0, s.messages.Front()
}

// clearLocked drops all messages.
func (s *Session) clearLocked() {
	s.broker.waiting.Add(-int64(s.messages.Len()))
	s.broker.waitingBytes.Release(s.bytes)
	s.messages.Init()
	s.unsent, s.bytes, s.sentOnce, s.sent = nil, 0, nil, 0
	s.link, s.receiver = nil, Receiver{}
}

// unlockAndWake releases mu, and wakes the link if that has something to send.
func (s *Session) unlockAndWake() {
	link, wake := s.link, s.link != nil && !s.awake && s.due() != nil
	s.awake = s.awake || wake
	s.mu.Unlock()
	if wake {
		link.Wake()
	}
}

// due returns the next message to send, or nil if none can be sent now. Once as many are in flight as the
// client allows, it allows no message of QoS 0 either, to keep the order [MQTT-4.9.0-2].
func (q *queue) due() *waiting {
	most := cmp.Or(q.receiver.ReceiveMaximum, math.MaxUint16)
	if q.unsent == nil || q.sent >= int(most) {
		return nil
	}
	return q.unsent.Value.(*waiting)
}

// offer queues a message, or counts why it is dropped.
func (s *Session) offer(m *Message, d delivery) {
	s.mu.Lock()
	receiver, away, epoch := s.receiver, s.link == nil, s.epoch
	s.mu.Unlock()
	switch {
	case away && d.qos == 0:
		return
	case !receiver.mayRead(m.Topic):
		s.broker.dropped[Forbidden].Add(1)
		return
	}
	size := overhead + int64(len(m.Topic)+len(m.Properties)+len(m.Payload)+8*len(d.identifiers))
	limits := &s.broker.limits
	s.mu.Lock()
	defer s.unlockAndWake()
	switch {
	case s.ended || s.link == nil && d.qos == 0:
	case s.messages.Len() >= limits.SessionMessages || s.bytes+size > limits.SessionBytes:
		s.broker.dropped[SessionFull].Add(1)
	case !s.broker.waitingBytes.Take(s.bytes, size, assured):
		s.broker.dropped[TotalFull].Add(1)
	default:
		s.pushLocked(&waiting{Message: m, delivery: d, size: size, asked: epoch})
	}
}

// pushLocked appends a message, whose bytes are taken.
func (s *Session) pushLocked(w *waiting) {
	s.broker.waiting.Add(1)
	s.bytes += w.size
	e := s.messages.PushBack(w)
	if s.unsent == nil {
		s.unsent = e
	}
	if at := w.Expires; !at.IsZero() && (s.expires.IsZero() || at.Before(s.expires)) {
		s.expires = at
	}
}

func (s *Session) removeLocked(e *list.Element) {
	w := e.Value.(*waiting)
	if e == s.unsent {
		s.unsent = e.Next()
	}
	s.messages.Remove(e)
	s.bytes -= w.size
	s.broker.waiting.Add(-1)
	s.broker.waitingBytes.Release(w.size)
	delete(s.sentOnce, w.packetID)
	if w.isSent {
		s.sent--
	}
}

func (s *Session) dropLocked(e *list.Element, why Reason) {
	s.removeLocked(e)
	s.broker.dropped[why].Add(1)
}

// sweep frees expired messages.
func (s *Session) sweep(now time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.expires.IsZero() || now.Before(s.expires) {
		return
	}
	s.expires = time.Time{}
	for e := s.unsent; e != nil; {
		w, next := e.Value.(*waiting), e.Next()
		if at := w.Expires; w.isOver(now) {
			s.dropLocked(e, Expired)
		} else if !at.IsZero() && w.packetID == 0 && (s.expires.IsZero() || at.Before(s.expires)) {
			s.expires = at
		}
		e = next
	}
}

// Acknowledge frees a message that the client has acknowledged. It ignores packet ids that
// are not in use.
func (s *Session) Acknowledge(packetID uint16) {
	s.mu.Lock()
	if e := s.sentOnce[packetID]; e != nil {
		s.removeLocked(e)
	}
	s.unlockAndWake()
}

// Append appends packets that are to be sent now to dst, at least one, until they have enough
// bytes. If more is true, the caller must call it again, since the link is not woken for what is
// left. It appends nothing if link is not the one that is attached.
func (s *Session) Append(link Link, dst []byte, enough int) (out []byte, more bool) {
	out = dst
	for len(out) == len(dst) || len(out)-len(dst) < enough {
		packet, ok := s.next(link)
		if !ok {
			return out, false
		}
		if longer, err := packet.Append(out); err == nil { // next has checked the size
			out = longer
		}
	}
	return out, true
}

// next takes the next message to send. If there is none, the link will be woken for the one after.
func (s *Session) next(link Link) (packet wire.Forward, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for s.link != nil && s.link == link {
		w, e, now := s.due(), s.unsent, time.Now()
		if w == nil {
			s.awake = false
			break
		}
		if w.asked != s.epoch { // it was queued for an earlier connection
			allowed := s.askUnlocked(w.Topic)
			switch {
			case s.unsent != e || s.link != link:
			case allowed:
				w.asked = s.epoch
			default:
				s.dropLocked(e, Forbidden)
			}
			continue
		}
		if w.isOver(now) {
			s.dropLocked(e, Expired)
			continue
		}
		packet = s.packet(w, now)
		if s.isTooLarge(&packet) {
			s.dropLocked(e, TooLarge)
			continue
		}
		if w.qos == 0 {
			s.removeLocked(e)
			return packet, true
		}
		if w.packetID == 0 {
			w.packetID = s.newPacketID()
			s.sentOnce[w.packetID] = e
		}
		packet.PacketID = w.packetID
		w.isSent = true
		s.sent++
		s.unsent = e.Next()
		return packet, true
	}
	return packet, false
}

// askUnlocked calls MayRead without the lock. It is called with the lock held, and holds it again
// when it returns or panics.
func (s *Session) askUnlocked(topic string) bool {
	receiver := s.receiver
	s.mu.Unlock()
	defer s.mu.Lock()
	return receiver.mayRead(topic)
}

func (s *Session) isTooLarge(packet *wire.Forward) bool {
	size, most := packet.Size(), s.receiver.MaximumPacketSize
	return size > 1+4+mqtt.MaxRemaining || len(packet.Topic) > mqtt.MaxString || most > 0 && uint64(size) > uint64(most)
}

func (s *Session) packet(w *waiting, now time.Time) wire.Forward {
	packet := wire.Forward{
		MQTT5:     s.receiver.MQTT5,
		Topic:     w.Topic,
		QoS:       w.qos,
		Duplicate: w.packetID != 0,
		Payload:   w.Payload,
	}
	if packet.MQTT5 {
		packet.Identifiers, packet.Properties = w.identifiers, w.Properties
		if packet.Expires = !w.Expires.IsZero(); packet.Expires {
			left := max(0, w.Expires.Sub(now))
			packet.MessageExpiry = uint32(min((left+time.Second-1)/time.Second, math.MaxUint32))
		}
	}
	return packet
}

// newPacketID returns an unused packet id. There is one, since fewer messages are in flight than
// there are ids.
func (q *queue) newPacketID() uint16 {
	if q.sentOnce == nil {
		q.sentOnce = make(map[uint16]*list.Element)
	}
	for {
		q.packetID++
		if q.packetID != 0 && q.sentOnce[q.packetID] == nil {
			return q.packetID
		}
	}
}
