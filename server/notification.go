package server

import (
	"sync"
	"sync/atomic"
	"time"

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
	queued, backlogged := conn.outbox.push(latest)
	if !queued {
		conn.slow.Store(true)
		conn.abort() // endConnection, which follows, logs the reason
	}
	if backlogged {
		s.backlogged.Store(conn.outbox)
	}
}

// wake wakes the goroutines that write these notifications. The engine calls it without its lock,
// after deliver.
func (s *Server) wake(notifications []statestore.Notification) {
	for _, notification := range notifications {
		if conn := s.connectionOf(notification.Client); conn != nil {
			conn.outbox.Wake()
		}
	}
}

// wakeOthers is wake for the notifications that a request of a connection has caused, except for those
// of the connection itself: the goroutine that reads it writes them. Most notifications are of a holder
// that renews its lease, which it watches: so they leave together with the reply, and wake no goroutine.
// The goroutine that reads the connection calls wakeOthers.
func (s *Server) wakeOthers(conn *connection, notifications []statestore.Notification) {
	for _, notification := range notifications {
		switch to := s.connectionOf(notification.Client); to {
		case nil:
		case conn:
			conn.notified = true
		default:
			to.outbox.Wake()
		}
	}
}

const (
	// backlogPause is a pause in which nothing is queued while an outbox is filling up, and
	// backlogPauses how many there are at most while it is being written.
	backlogPause  = time.Millisecond
	backlogPauses = 5
)

// letWrite waits for a moment while an outbox is filling up and is being written. All notifications of
// a commit are queued at once, and a burst of requests is applied faster than the goroutines that write
// are scheduled, and than the kernel takes more: without a pause, a client would seem slow that is not.
// The engine, and the goroutine that reads a connection, call letWrite without a lock. Replies wait
// meanwhile, so it does not wait for a client that does not read.
func (s *Server) letWrite() {
	o := s.backlogged.Swap(nil)
	if o == nil {
		return
	}
	if !o.isRead() {
		return
	}
	waiting := o.waiting()
	for range backlogPauses {
		time.Sleep(backlogPause)
		before := waiting
		if waiting = o.waiting(); waiting <= o.limit/4 || waiting >= before {
			return
		}
	}
}

// writesAtOnce is how many writes of messages a connection may make before others may write.
const writesAtOnce = 8

// writeWaiting writes what waits for a client: replies and notifications, as many as possible in one
// write, and then the messages of its session. It does so in turns: notifying a thousand clients of one
// change must not delay the requests of others.
func (s *Server) writeWaiting(conn *connection) {
	defer s.recoverIn(conn)
	defer conn.writeTurn.End()
	s.writeReplies(conn)
	s.writeNotifications(conn, conn.writeTurn)
	s.writeMessages(conn)
	conn.writeTurn.End()
	conn.flush()
}

// writeNotifications adds the notifications that wait to the packets that are held back, and writes when
// these are enough. It ends in a turn, if it had anything to do.
func (s *Server) writeNotifications(conn *connection, turn *fairqueue.Place) {
	conn.notifications = conn.outbox.take(conn.notifications)
	for _, notification := range conn.notifications {
		if conn.closed.Load() {
			return // the end of the connection waits for this, and a thousand long ones take long
		}
		turn.Begin()
		s.notify(conn, turn, notification)
	}
	clear(conn.notifications) // an idle client must not keep their values
}

// writeMessages writes the messages that wait in the session of a client. It gathers the packets
// without a lock of the connection, because the session may call an Authorizer.
func (s *Server) writeMessages(conn *connection) {
	room := heldRooms.Get().(*[heldRoom]byte)
	defer heldRooms.Put(room)
	more := true
	for n := 0; more && !conn.closed.Load(); n++ {
		if n == writesAtOnce {
			conn.outbox.Wake() // goes on when the others have written
			return
		}
		conn.writeTurn.Begin()
		var gathered []byte
		gathered, more = conn.session.Append(conn.outbox, room[:0], heldEnough)
		if len(gathered) == 0 {
			return
		}
		conn.holdBack(func(held []byte) []byte { return append(held, gathered...) })
		conn.writeTurn.End()
		conn.flush()
	}
}

// notify adds a notification, with QoS 0, to the packets that are held back, and writes when these
// are enough.
func (s *Server) notify(conn *connection, turn *fairqueue.Place, notification *sharedNotification) {
	defer conn.outbox.Release(int(envelope.NotificationCost(notification.Change))) // only now: until here it waited
	message := s.encodeNotification(conn.identity.Client, notification)
	defer message.free()
	if conn.gate.TooLarge(message.Size()) {
		s.logger.Debug("a notification is larger than its client takes", "client", logs.Name(conn.identity.Client), "bytes", message.Size())
		return
	}
	var total int
	conn.holdBack(func(held []byte) []byte {
		held, err := message.Append(held)
		if err != nil {
			s.logger.Debug("a notification was not delivered", "client", logs.Name(conn.identity.Client), "error", logs.Error(err))
		}
		total = len(held)
		return held
	})
	if total >= heldEnough || turn.Spent() {
		turn.End()
		conn.flush()
	}
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
