package server

import (
	"sync"
	"sync/atomic"

	"github.com/eclipse/paho.golang/packets"

	"github.com/tenurelock/tenure/internal/mqtt"
	"github.com/tenurelock/tenure/internal/protocol"
	"github.com/tenurelock/tenure/server/internal/envelope"
	"github.com/tenurelock/tenure/server/internal/fairqueue"
	"github.com/tenurelock/tenure/server/internal/logs"
	"github.com/tenurelock/tenure/server/internal/wire"
	"github.com/tenurelock/tenure/statestore"
)

// sharedNotification is a change of which one client is notified, or several.
type sharedNotification struct {
	*statestore.Change
	dialect statestore.Dialect // in which it is written
	// several is set once a second client gets the notification in this dialect; nil: there is none yet. The clients
	// share its encoding. A first client that has not seen it encodes the same once more.
	several atomic.Pointer[sharedEncoding]
}

// sharedEncoding has the parts of a notification that are the same for all clients, as they lie on the
// wire. They are encoded once, when the first of them is written.
type sharedEncoding struct {
	encode              sync.Once
	properties, payload []byte
}

// deliver queues a notification for the connection of its client, whether or not the client has
// subscribed to the topic. The engine calls it with its lock held, so it must not block.
func (s *Server) deliver(notification statestore.Notification) {
	conn := s.connectionOf(notification.Client)
	if conn == nil {
		return
	}
	latest := s.latest[notification.Dialect]
	switch {
	case latest == nil || latest.Change != notification.Change:
		latest = &sharedNotification{Change: notification.Change, dialect: notification.Dialect}
		s.latest[notification.Dialect] = latest
	case latest.several.Load() == nil:
		latest.several.Store(new(sharedEncoding))
	}
	queued, behind := conn.outbox.notify(latest)
	if !queued {
		conn.slow.Store(true)
		conn.abort() // endConnection, which follows, logs the reason
	}
	if behind {
		s.behind.Store(conn.outbox)
	}
}

// letRead lets a client read whose outbox is filling up. The engine, and the goroutine that reads a connection,
// call it without a lock. Replies wait meanwhile, so it does not wait for a client that does not read.
func (s *Server) letRead() {
	if o := s.behind.Swap(nil); o != nil {
		o.letRead()
	}
}

// writesAtOnce is how many writes of messages a connection may make before others may write.
const writesAtOnce = 8

// writeWaiting writes what waits for a client, as much as possible in one write: replies and notifications, and
// then the messages of its session. It is called in a turn of Server.writers: notifying a thousand clients of one
// change must not delay the requests of others.
func (s *Server) writeWaiting(conn *connection) {
	o := conn.outbox
	write := func() {
		o.turn.End()
		conn.flush()
		o.task.Yield()
	}
	_ = conn.guard(o.turn, func() error {
		conn.writePackets(startedWrites, o.turn, write)
		s.writeMessages(conn, write)
		write()
		return nil
	})
}

// packetsAtOnce is how many packets are encoded before a turn may end: those that one request causes leave together.
const packetsAtOnce = 8

// writePackets adds the packets that wait to those that are held back, in turns, and calls write when these are
// enough and more follow. It returns how many bytes of them are still held back. If another goroutine writes, it
// does nothing.
func (c *connection) writePackets(by writer, turn *fairqueue.Place, write func()) (held int) {
	left := c.outbox.take(by)
	if len(left) == 0 {
		return 0
	}
	defer func() { c.outbox.release(left...) }() // if the connection ends, perhaps in a panic
	for n := 1; len(left) > 0 && !c.closed.Load(); n++ {
		turn.Begin()
		held += left[0].write(c, turn)
		c.outbox.release(left[0])
		left = left[1:]
		if len(left) > 0 && (held >= heldEnough || n%packetsAtOnce == 0 && turn.Spent()) {
			write()
			held = 0
		}
	}
	return held
}

// writeMessages writes the messages that wait in the session of a client. It gathers the packets
// without a lock of the connection, because the session may call an Authorizer.
func (s *Server) writeMessages(conn *connection, write func()) {
	if !conn.outbox.takeMessages() {
		return
	}
	room := heldRooms.Get().(*[heldRoom]byte)
	defer heldRooms.Put(room)
	more := true
	for n := 0; more && !conn.closed.Load(); n++ {
		if n == writesAtOnce {
			conn.outbox.Wake() // goes on when the others have written
			return
		}
		conn.outbox.turn.Begin()
		var gathered []byte
		gathered, more = conn.session.Append(conn.outbox, room[:0], heldEnough)
		if len(gathered) == 0 {
			return
		}
		conn.holdBack(func(held []byte) []byte { return append(held, gathered...) })
		write()
	}
}

func (n *sharedNotification) free() (isReply bool) { return false }

func (n *sharedNotification) size() int64 { return envelope.NotificationCost(n.Change) }

// write adds the notification, with QoS 0, to the packets that are held back.
func (n *sharedNotification) write(conn *connection, _ *fairqueue.Place) (added int) {
	s := conn.server
	message := s.encodeNotification(conn.identity.Client, n)
	defer message.free()
	if conn.gate.TooLarge(message.Size()) {
		s.logger.Debug("a notification is larger than its client takes", "client", logs.Name(conn.identity.Client), "bytes", message.Size())
		return 0
	}
	return conn.holdBack(func(held []byte) []byte {
		held, err := message.Append(held)
		if err != nil {
			s.logger.Debug("a notification was not delivered", "client", logs.Name(conn.identity.Client), "error", logs.Error(err))
		}
		return held
	})
}

// encodeNotification returns a notification to a client, to be freed after use. Each renewal of a
// watched key causes one, mostly to the holder alone: that allocates nothing.
func (s *Server) encodeNotification(id string, notification *sharedNotification) *encodedPublish {
	e := encodedPublishes.Get().(*encodedPublish)
	e.topic = protocol.AppendNotifyTopic(e.topic[:0], id, notification.Key)
	e.Forward = wire.Forward{MQTT5: true, TopicBytes: e.topic}
	shared := notification.several.Load()
	if shared == nil {
		e.properties, e.payload = s.appendNotification(e.properties[:0], e.payload[:0], notification)
		e.Properties, e.Payload = e.properties, e.payload
		return e
	}
	shared.encode.Do(func() {
		const overhead = 128 // of the version, and of the payload
		room := make([]byte, 0, len(s.notificationProperties)+len(notification.Value)+2*overhead)
		properties := len(s.notificationProperties) + overhead
		shared.properties, shared.payload = s.appendNotification(room[:0:properties], room[properties:properties], notification)
	})
	e.Properties, e.Payload = shared.properties, shared.payload
	return e
}

// appendNotification appends the parts of a notification that are the same for all clients.
func (s *Server) appendNotification(properties, payload []byte, notification *sharedNotification) (_, _ []byte) {
	var room [64]byte // for the usual node ids
	properties = append(properties, s.notificationProperties...)
	properties = mqtt.AppendUserProperty(properties, protocol.PropertyTimestamp, notification.Version.Append(room[:0]))
	return properties, notification.Append(payload, notification.dialect)
}

// encodeNotificationProperties returns the encoded properties that all notifications of a store have.
func encodeNotificationProperties(identity string) []byte {
	properties := mqtt.AppendProperty(nil, packets.PropContentType, protocol.ContentType)
	properties = mqtt.AppendUserProperty(properties, protocol.PropertyProtocolVersion, protocol.ProtocolVersion)
	return mqtt.AppendUserProperty(properties, protocol.PropertyStore, identity)
}
