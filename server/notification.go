package server

import (
	"sync"

	mqtt "github.com/mochi-mqtt/server/v2"

	"github.com/tenurelock/tenure/internal/frame"
	"github.com/tenurelock/tenure/internal/protocol"
	"github.com/tenurelock/tenure/server/internal/envelope"
	"github.com/tenurelock/tenure/server/internal/logs"
	"github.com/tenurelock/tenure/statestore"
)

// news is a change that clients are told of. What is the same for all of them is encoded once,
// by the first that is told.
type sharedNotification struct {
	*statestore.Change
	encode     sync.Once
	properties []byte // as they lie on the wire
	payload    []byte
}

// deliver queues a notification for its client: straight to its connection, whether or not
// it subscribed to their topic. The engine calls it with its lock held: it must not block.
func (s *Server) deliver(notification statestore.Notification) {
	conn := s.connectionOf(notification.Client)
	if conn == nil {
		return
	}
	if s.latest == nil || s.latest.Change != notification.Change {
		s.latest = &sharedNotification{Change: notification.Change}
	}
	queued, crowded := conn.outbox.push(s.latest)
	if !queued {
		conn.abort() // forget, called when that has taken effect, says why
	}
	if crowded {
		s.backlogged.Store(true)
	}
}

// wake makes the goroutines write that have notifications to write. The engine calls it
// without its lock, after deliver.
func (s *Server) wake(notifications []statestore.Notification) {
	for _, notification := range notifications {
		if conn := s.connectionOf(notification.Client); conn != nil {
			conn.outbox.Wake()
		}
	}
}

// writesAtOnce is how often what waits in a session is written before others may write.
const writesAtOnce = 8

// writeWaiting writes what waits for a client: notifications, those that came together in
// one write, and the messages of its session. It takes turns like those who send: a thousand
// clients that are told of one change must not delay the requests of others.
func (s *Server) writeWaiting(cl *mqtt.Client, conn *connection) {
	defer s.recoverIn(conn)
	defer conn.writeTurn.End()
	conn.notifications = conn.outbox.take(conn.notifications)
	for _, notification := range conn.notifications {
		if conn.closed.Load() {
			return // a thousand long ones take their time, and the end of the connection waits for this
		}
		conn.writeTurn.Begin()
		s.notify(cl, conn, notification)
	}
	s.writeMessages(conn)
	conn.writeTurn.End()
	conn.flush()
}

// writeMessages writes what waits in the session of a client. The session may ask an
// Authorizer, so its packets are gathered without a lock of the connection.
func (s *Server) writeMessages(conn *connection) {
	room := heldRooms.Get().(*[heldRoom]byte)
	defer heldRooms.Put(room)
	more := true
	for n := 0; more && !conn.closed.Load(); n++ {
		if n == writesAtOnce {
			conn.outbox.Wake() // the others first
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

// keptTopic is how long a topic is at most that a connection keeps for the next notification.
const keptTopic = 4096

// notify holds a notification back, with QoS 0, and writes when that is enough.
func (s *Server) notify(cl *mqtt.Client, conn *connection, notification *sharedNotification) {
	defer conn.outbox.Release(int(envelope.NotificationCost(notification.Change))) // not before: it waited until then
	if conn.notifyTopic == "" || conn.watched != notification.Key {
		conn.watched, conn.notifyTopic = notification.Key, protocol.NotifyTopic(cl.ID, notification.Key)
	}
	if len(conn.notifyTopic) > keptTopic {
		defer func() { conn.watched, conn.notifyTopic = "", "" }() // it would stay while the client is idle
	}
	notification.encode.Do(func() { s.encode(notification) })
	message := frame.Forward{MQTT5: true, Topic: conn.notifyTopic, Properties: notification.properties, Payload: notification.payload}
	if limit := cl.Properties.Props.MaximumPacketSize; limit > 0 && uint64(message.Size()) > uint64(limit) {
		s.logger.Debug("a notification is larger than its client takes", "client", logs.Name(cl.ID), "bytes", message.Size())
		return
	}
	var total int
	conn.holdBack(func(held []byte) []byte {
		held, err := message.Append(held)
		if err != nil {
			s.logger.Debug("a notification was not delivered", "client", logs.Name(cl.ID), "error", logs.Error(err))
		}
		total = len(held)
		return held
	})
	if total >= heldEnough || conn.writeTurn.Spent() {
		conn.writeTurn.End()
		conn.flush()
	}
}

// encode encodes what is the same for all clients that are told of a change.
func (s *Server) encode(notification *sharedNotification) {
	notification.properties, _ = propertiesOf(&frame.Message{ // they are short
		ContentType: protocol.ContentType,
		User: []frame.UserProperty{
			{Name: protocol.PropertyTimestamp, Value: notification.Version.String()},
			{Name: protocol.PropertyProtocolVersion, Value: protocol.ProtocolVersion},
			{Name: protocol.PropertyStore, Value: s.engine.Identity()},
		},
	})
	notification.payload = notification.Append(nil, s.options.Dialect)
}
