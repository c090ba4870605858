package pubsub

import (
	"math"
	"sync"
	"time"

	"github.com/tenurelock/tenure/server/internal/wire"
)

// Link is a connection as its session uses it. Its methods must not block and must not call this
// package. Its type must be comparable, such as a pointer.
type Link interface {
	// Wake means that there is something to send: the goroutine that writes to the connection
	// must call Session.Append until that reports no more. Until then, Wake is not called
	// again.
	Wake()
	// Reserve takes room for a QoS 0 message that waits for the connection, and reports false
	// if there is not enough. It is called with a lock of the session held.
	Reserve(bytes int) bool
	// Release gives the room back. It is called with a lock of the session held.
	Release(bytes int)
}

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

// waiting is a message that waits in a session.
type waiting struct {
	message *Message
	form
	size       int64
	number     uint64 // increases with each message of the session
	asked      uint64 // the epoch in which MayRead was called
	packetID   uint16 // 0: not sent
	sentIn     uint64 // the epoch in which it was sent; 0: in none
	isGone     bool   // no longer in the list
	prev, next *waiting
}

// list is a list of waiting messages, the oldest first.
type list struct {
	first, last *waiting
	length      int
}

// push appends a message and numbers it by a counter.
func (l *list) push(w *waiting, counter *uint64) {
	*counter++
	w.number, w.prev = *counter, l.last
	if l.last != nil {
		l.last.next = w
	} else {
		l.first = w
	}
	l.last = w
	l.length++
}

func (l *list) remove(w *waiting) {
	if w.prev != nil {
		w.prev.next = w.next
	} else {
		l.first = w.next
	}
	if w.next != nil {
		w.next.prev = w.prev
	} else {
		l.last = w.prev
	}
	w.isGone = true
	l.length--
}

// queue has the messages that wait for a client.
type queue struct {
	mu       sync.Mutex
	receiver Receiver // of the latest connection
	link     Link     // nil: not connected
	epoch    uint64   // counts Attach
	closed   bool
	awake    bool // the link was woken and has not sent everything

	queued   uint64 // how many messages there have been
	fleeting list   // QoS 0
	reserved int    // their bytes, with link
	lasting  list   // QoS 1: sent ones, and from unsent on those that are not sent in this epoch
	unsent   *waiting
	bytes    int64               // of lasting
	inFlight map[uint16]*waiting // the messages of lasting with a packet id
	sent     int                 // how many of inFlight were sent in this epoch
	packetID uint16              // the latest

	earliest time.Time // nothing expires before; zero: nothing expires
	sweepAt  time.Time // not to be swept before
}

// Attach makes the session send its messages to a connection, in place of the one before. QoS 1
// messages that were not acknowledged are sent again.
func (s *Session) Attach(r Receiver) {
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		return
	}
	s.dropFleeting()
	s.receiver, s.link = r, r.Link
	s.epoch++
	s.sent, s.unsent, s.awake = 0, s.lasting.first, false
	s.reader.Store(&reader{mayRead: r.MayRead, connected: true, epoch: s.epoch})
	s.unlockAndWake()
}

// Detach ends the use of a connection, which is over. It has no effect if another one was attached
// since.
func (s *Session) Detach(link Link) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed || s.link != link {
		return
	}
	s.dropFleeting()
	s.link, s.receiver.Link = nil, nil
	s.reader.Store(&reader{mayRead: s.receiver.MayRead, epoch: s.epoch})
}

// isConnected reports whether a connection is attached. It takes no lock.
func (s *Session) isConnected() bool {
	r := s.reader.Load()
	return r != nil && r.connected
}

// dropFleeting drops the QoS 0 messages that a connection did not send before it ended.
func (q *queue) dropFleeting() {
	if q.link != nil && q.reserved > 0 {
		q.link.Release(q.reserved)
	}
	q.fleeting, q.reserved = list{}, 0
}

// close drops all messages, and returns the first of the remaining QoS 1 messages.
func (s *Session) close() (left *waiting) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.dropFleeting()
	left = s.lasting.first
	s.broker.waiting.Add(-int64(s.lasting.length))
	s.broker.waitingBytes.Release(s.bytes)
	s.lasting, s.unsent, s.bytes, s.inFlight, s.sent = list{}, nil, 0, nil, 0
	s.closed, s.link, s.receiver = true, nil, Receiver{}
	s.reader.Store(nil)
	return left
}

// unlockAndWake releases mu, and wakes the link if that has something to send.
func (q *queue) unlockAndWake() {
	link, wake := q.link, q.link != nil && !q.awake && q.due() != nil
	q.awake = q.awake || wake
	q.mu.Unlock()
	if wake {
		link.Wake()
	}
}

// due returns the next message to send, or nil if none can be sent now.
func (q *queue) due() *waiting {
	next := q.unsent
	if q.sent >= q.window() {
		next = nil
	}
	if first := q.fleeting.first; first != nil && (next == nil || first.number < next.number) {
		next = first
	}
	return next
}

func (q *queue) window() int {
	if q.receiver.ReceiveMaximum == 0 {
		return math.MaxUint16
	}
	return int(q.receiver.ReceiveMaximum)
}

// offer queues a message in one of its forms, or counts why it is dropped. With connected, it
// does so only if the session is connected. If still, which may be nil, returns false, it does
// nothing. For a shared subscription it counts nothing, since another member may take the message.
func (s *Session) offer(m *Message, f form, connected bool, still func() bool) (result Reason) {
	r := s.reader.Load()
	if r == nil {
		r = &reader{}
	}
	if !r.connected && (connected || f.qos == 0) {
		return Absent
	}
	if r.mayRead != nil && !r.mayRead(m.Topic) {
		result = Forbidden
	} else {
		result = s.put(m, f, r.epoch, connected, still)
		if result == TotalFull && s.broker.sweepSome() {
			result = s.put(m, f, r.epoch, connected, still)
		}
	}
	if result != queued && result != Absent && f.group == nil {
		s.broker.dropped.count(result)
	}
	return result
}

// put queues a message if there is room.
func (s *Session) put(m *Message, f form, asked uint64, connected bool, still func() bool) Reason {
	w := &waiting{message: m, form: f, asked: asked, size: m.size() + 8*int64(len(f.identifiers))}
	s.mu.Lock()
	if s.closed || s.link == nil && (connected || f.qos == 0) || still != nil && !still() {
		s.mu.Unlock()
		return Absent
	}
	if f.qos == 0 {
		if !s.link.Reserve(int(w.size)) {
			s.mu.Unlock()
			return LinkFull
		}
		s.reserved += int(w.size)
		s.fleeting.push(w, &s.queued)
	} else if full := s.putLasting(w); full != queued {
		s.mu.Unlock()
		return full
	}
	s.unlockAndWake()
	return queued
}

func (s *Session) putLasting(w *waiting) Reason {
	limits := &s.broker.limits
	isFull := func() bool {
		return s.lasting.length >= limits.SessionMessages || s.bytes+w.size > limits.SessionBytes
	}
	if isFull() {
		s.sweepLocked(time.Now())
		if isFull() {
			return SessionFull
		}
	}
	if !s.broker.waitingBytes.Take(s.bytes, w.size, assured) {
		return TotalFull
	}
	s.broker.waiting.Add(1)
	s.bytes += w.size
	s.lasting.push(w, &s.queued)
	if s.unsent == nil {
		s.unsent = w
	}
	if at := w.message.Expires; !at.IsZero() && (s.earliest.IsZero() || at.Before(s.earliest)) {
		s.earliest = at
	}
	return queued
}

// take removes a message from its list.
func (s *Session) take(w *waiting) {
	if w.qos == 0 {
		s.fleeting.remove(w)
		s.reserved -= int(w.size)
		s.link.Release(int(w.size))
		return
	}
	if w == s.unsent {
		s.unsent = w.next
	}
	s.lasting.remove(w)
	s.bytes -= w.size
	s.broker.waiting.Add(-1)
	s.broker.waitingBytes.Release(w.size)
	if w.packetID != 0 {
		delete(s.inFlight, w.packetID)
		if w.sentIn == s.epoch {
			s.sent--
		}
	}
}

func (s *Session) drop(w *waiting, why Reason) {
	s.take(w)
	s.broker.dropped.count(why)
}

// sweepInterval is the shortest time between two sweeps of a session. A sweep visits all waiting
// messages, at the expense of the publisher that reached the limit.
const sweepInterval = time.Second

// sweep frees expired messages.
func (s *Session) sweep(now time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.sweepLocked(now)
}

func (s *Session) sweepLocked(now time.Time) {
	if s.earliest.IsZero() || now.Before(s.earliest) || now.Before(s.sweepAt) {
		return
	}
	s.sweepAt, s.earliest = now.Add(sweepInterval), time.Time{}
	for w := s.lasting.first; w != nil; {
		next, at := w.next, w.message.Expires
		switch {
		case at.IsZero() || w.packetID != 0: // a message that was sent must be sent again [MQTT-4.4.0-1]
		case !now.Before(at):
			s.drop(w, Expired)
		case s.earliest.IsZero() || at.Before(s.earliest):
			s.earliest = at
		}
		w = next
	}
}

// Acknowledge frees a message that the client has acknowledged. It ignores packet ids that
// are not in use.
func (s *Session) Acknowledge(packetID uint16) {
	s.mu.Lock()
	if w := s.inFlight[packetID]; w != nil {
		s.take(w)
	}
	s.unlockAndWake()
}

// Append appends packets that are to be sent now to dst, at least one, until they have enough
// bytes. If more is true, the caller must call it again, since the link is not woken for what is
// left. It appends nothing if link is not the one that is attached.
func (s *Session) Append(link Link, dst []byte, enough int) (out []byte, more bool) {
	out = dst
	for {
		packet, ok, more := s.next(link, len(out) > len(dst) && len(out)-len(dst) >= enough)
		if !ok {
			return out, more
		}
		if longer, err := packet.Append(out); err == nil { // next has checked the size
			out = longer
		}
	}
}

// next takes the next message to send. With enough it only reports whether there is one.
func (s *Session) next(link Link, enough bool) (packet wire.Forward, ok, more bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for s.link != nil && s.link == link {
		w := s.due()
		if w == nil {
			s.awake = false
			break
		}
		if enough {
			return packet, false, true
		}
		if w.asked != s.epoch {
			s.ask(w)
			continue
		}
		now := time.Now()
		if w.packetID == 0 && w.message.isOver(now) {
			s.drop(w, Expired)
			continue
		}
		packet = s.packet(w, now)
		if size := packet.Size(); size > maxPacket || len(packet.Topic) > math.MaxUint16 ||
			s.receiver.MaximumPacketSize > 0 && uint64(size) > uint64(s.receiver.MaximumPacketSize) {
			s.drop(w, TooLarge)
			continue
		}
		if w.qos == 0 {
			s.take(w)
			return packet, true, false
		}
		if w.packetID == 0 {
			w.packetID = s.newPacketID()
			s.inFlight[w.packetID] = w
		}
		packet.PacketID = w.packetID
		w.sentIn = s.epoch
		s.sent++
		s.unsent = w.next
		return packet, true, false
	}
	return packet, false, false
}

// ask calls MayRead for a message that was queued for an earlier connection. It releases the lock
// meanwhile.
func (s *Session) ask(w *waiting) {
	epoch := s.epoch
	allowed := s.askUnlocked(s.receiver.MayRead, w.message.Topic)
	switch {
	case w.isGone || s.link == nil || s.epoch != epoch: // it is no longer in a list
	case allowed:
		w.asked = epoch
	default:
		s.drop(w, Forbidden)
	}
}

// askUnlocked calls MayRead without the lock. It is called with the lock held, and holds it again
// when it returns or panics.
func (s *Session) askUnlocked(mayRead func(topic string) bool, topic string) bool {
	s.mu.Unlock()
	defer s.mu.Lock()
	return mayRead == nil || mayRead(topic)
}

// maxPacket is the largest size of an MQTT packet [MQTT-2.1.4].
const maxPacket = 1 + 4 + 1<<28 - 1

func (s *Session) packet(w *waiting, now time.Time) wire.Forward {
	m := w.message
	packet := wire.Forward{
		MQTT5:     s.receiver.MQTT5,
		Topic:     m.Topic,
		QoS:       w.qos,
		Duplicate: w.packetID != 0,
		Retain:    w.retain,
		Payload:   m.Payload,
	}
	if packet.MQTT5 {
		packet.Identifiers, packet.Properties = w.identifiers, m.Properties
		if packet.Expires = !m.Expires.IsZero(); packet.Expires {
			left := max(0, m.Expires.Sub(now))
			packet.MessageExpiry = uint32(min((left+time.Second-1)/time.Second, math.MaxUint32))
		}
	}
	return packet
}

// newPacketID returns an unused packet id. There is one, since fewer messages are in flight than
// there are ids.
func (q *queue) newPacketID() uint16 {
	if q.inFlight == nil {
		q.inFlight = make(map[uint16]*waiting)
	}
	for {
		q.packetID++
		if q.packetID != 0 && q.inFlight[q.packetID] == nil {
			return q.packetID
		}
	}
}
