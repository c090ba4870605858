package pubsub

import (
	"cmp"
	"maps"
	"math"
	"slices"
	"time"

	"github.com/tenurelock/tenure/internal/shrinkmap"
	"github.com/tenurelock/tenure/server/internal/wire"
)

// Receiver is a connection with the limits of its client.
type Receiver struct {
	// Wake means that there is something to send: the goroutine that writes to the connection must call
	// Session.Append until that reports no more. Until then, Wake is not called again. It must not block.
	Wake func()
	// ReceiveMaximum is how many QoS 1 messages may be in flight; 0 means 65,535.
	ReceiveMaximum uint16
	// MaximumPacketSize is in bytes.
	MaximumPacketSize uint32
}

// waiting is a message that waits in a session.
type waiting struct {
	*Message
	qos      byte
	size     int64
	packetID uint16 // 0: it was never sent
	order    uint64 // of sending
}

func (w *waiting) isOver(now time.Time) bool {
	return w.packetID == 0 && !w.Expires.IsZero() && !now.Before(w.Expires) // one that was sent must be sent again [MQTT-4.4.0-1]
}

// queue has the messages that wait for a client, guarded by Session.mu.
type queue struct {
	receiver Receiver // without Wake: not connected
	awake    bool     // Wake was called, and not everything is sent
	unsent   []*waiting
	taken    int                             // how many were, since it was copied
	sent     shrinkmap.Map[uint16, *waiting] // on this connection, by packet id
	sends    uint64
	bytes    int64
	packetID uint16 // the latest
	expires  bool   // a message of unsent may
}

// Attach makes the session send its messages to a connection. QoS 1 messages that were not acknowledged are
// sent again.
func (s *Session) Attach(r Receiver) {
	s.mu.Lock()
	s.receiver, s.awake = r, false
	s.unlockAndWake()
}

// Detach ends the use of the connection, which is over: no goroutine calls Append any more. The QoS 0 messages
// that it has not sent are dropped. All others are to be sent again.
func (s *Session) Detach() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.receiver = Receiver{}
	again := slices.SortedFunc(maps.Values(s.sent.All), func(a, b *waiting) int { return cmp.Compare(a.order, b.order) })
	s.unsent, s.sent = append(again, s.unsent...), shrinkmap.Map[uint16, *waiting]{}
	s.filterLocked(func(w *waiting) bool { return w.qos > 0 })
}

// filterLocked drops the messages that are not sent unless keep reports true.
func (s *Session) filterLocked(keep func(*waiting) bool) {
	s.unsent = slices.DeleteFunc(s.unsent, func(w *waiting) bool {
		gone := !keep(w)
		if gone {
			s.freeLocked(w)
		}
		return gone
	})
	if 8*len(s.unsent) < cap(s.unsent) {
		s.unsent = slices.Clone(s.unsent) // which gives memory back
	}
}

// freeLocked gives back what a message takes up, which the queue no longer has.
func (s *Session) freeLocked(w *waiting) {
	s.bytes -= w.size
	s.broker.waiting.Add(-1)
	s.broker.waitingBytes.Release(w.size)
}

// clearLocked drops all messages.
func (s *Session) clearLocked() {
	s.broker.waiting.Add(-int64(len(s.unsent) + len(s.sent.All)))
	s.broker.waitingBytes.Release(s.bytes)
	s.queue = queue{}
}

// unlockAndWake releases mu, and wakes the connection if there is something to send.
func (s *Session) unlockAndWake() {
	wake := s.receiver.Wake
	if s.awake || !s.isDue() {
		wake = nil
	}
	s.awake = s.awake || wake != nil
	s.mu.Unlock()
	if wake != nil {
		wake()
	}
}

// isDue reports whether a message can be sent now. Once as many are in flight as the client allows, it allows no
// message of QoS 0 either, to keep the order [MQTT-4.9.0-2].
func (q *queue) isDue() bool {
	return len(q.unsent) > 0 && len(q.sent.All) < int(cmp.Or(q.receiver.ReceiveMaximum, math.MaxUint16))
}

// offer queues a message, or counts why it is dropped.
func (s *Session) offer(m *Message, qos byte) {
	size := overhead + int64(len(m.Topic)+len(m.Properties)+len(m.Payload))
	s.mu.Lock()
	defer s.unlockAndWake()
	switch {
	case s.ended || s.receiver.Wake == nil && qos == 0:
		return
	case len(s.unsent)+len(s.sent.All) >= maxMessages || s.bytes+size > maxBytes:
		s.broker.drop(SessionFull)
		return
	case !s.broker.waitingBytes.Take(s.bytes, size, assured):
		s.broker.drop(TotalFull)
		return
	}
	s.broker.waiting.Add(1)
	s.bytes += size
	s.unsent = append(s.unsent, &waiting{Message: m, qos: qos, size: size})
	s.expires = s.expires || !m.Expires.IsZero()
}

// Sweep frees expired messages. Without it, they are freed when they would be sent.
func (s *Session) Sweep(now time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.expires {
		return
	}
	s.expires = false
	s.filterLocked(func(w *waiting) bool {
		over := w.isOver(now)
		if over {
			s.broker.drop(Expired)
		}
		s.expires = s.expires || !over && !w.Expires.IsZero()
		return !over
	})
}

// Acknowledge frees a message that the client has acknowledged. It ignores packet ids that
// are not in use.
func (s *Session) Acknowledge(packetID uint16) {
	s.mu.Lock()
	if w := s.sent.All[packetID]; w != nil {
		s.sent.Delete(packetID)
		s.freeLocked(w)
	}
	s.unlockAndWake()
}

// Append appends packets that are to be sent now to dst, at least one, until they have enough
// bytes. If more is true, the caller must call it again, since the connection is not woken for what is
// left.
func (s *Session) Append(dst []byte, enough int) (out []byte, more bool) {
	out = dst
	for len(out) == len(dst) || len(out)-len(dst) < enough {
		packet, ok := s.next()
		if !ok {
			return out, false
		}
		out = packet.Append(out)
	}
	return out, true
}

// next takes the next message to send. If there is none, the connection will be woken for the one after.
func (s *Session) next() (packet wire.Forward, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for s.isDue() {
		w, now := s.unsent[0], time.Now()
		allowed := s.askUnlocked(w.Topic)
		if len(s.unsent) == 0 || s.unsent[0] != w {
			continue // it has expired meanwhile
		}
		s.unsent[0] = nil
		s.unsent = s.unsent[1:]
		if s.taken++; s.taken > 8*len(s.unsent) {
			s.unsent, s.taken = slices.Clone(s.unsent), 0 // what is before the slice stays as long as that does
		}
		packet = w.packet(now)
		why := Reason("")
		switch {
		case !allowed:
			why = Forbidden
		case w.isOver(now):
			why = Expired
		case uint64(packet.Size()) > uint64(s.receiver.MaximumPacketSize):
			why = TooLarge
		case w.qos == 0:
			s.freeLocked(w)
			return packet, true
		default:
			packet.PacketID = s.sentLocked(w)
			return packet, true
		}
		s.freeLocked(w)
		s.broker.drop(why)
	}
	s.awake = false
	return packet, false
}

// askUnlocked calls mayRead without the lock. It is called with the lock held, and holds it again
// when it returns or panics.
func (s *Session) askUnlocked(topic string) bool {
	s.mu.Unlock()
	defer s.mu.Lock()
	return s.mayRead(topic)
}

// sentLocked notes that a message is sent, and returns its packet id: an unused one, unless it was sent before. There
// is one, since fewer messages are in flight than there are ids. Those that were sent before come first.
func (s *Session) sentLocked(w *waiting) uint16 {
	for w.packetID == 0 {
		if s.packetID++; s.sent.All[s.packetID] == nil {
			w.packetID = s.packetID
		}
	}
	s.sent.Set(w.packetID, w)
	s.sends++
	w.order = s.sends
	return w.packetID
}

// packet returns the message as it is sent, without its packet id.
func (w *waiting) packet(now time.Time) wire.Forward {
	packet := wire.Forward{Topic: w.Topic, QoS: w.qos, Duplicate: w.packetID != 0, Properties: w.Properties, Payload: w.Payload}
	if !w.Expires.IsZero() {
		left := w.Expires.Sub(now) + time.Second - 1
		packet.MessageExpiry = uint32(min(max(left/time.Second, 1), math.MaxUint32))
	}
	return packet
}
