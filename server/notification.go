package server

import (
	"sync/atomic"

	mqtt "github.com/mochi-mqtt/server/v2"

	"github.com/tenurelock/tenure/internal/frame"
	"github.com/tenurelock/tenure/internal/protocol"
	"github.com/tenurelock/tenure/server/internal/logs"
	"github.com/tenurelock/tenure/statestore"
)

// startOutbox makes sure that notifications reach a client: straight to its
// connection, whether or not it subscribed to their topic.
func (s *Server) startOutbox(cl *mqtt.Client) {
	if conn, ok := cl.Net.Conn.(*connection); ok {
		conn.outbox.start(func(notifications []statestore.Notification) { s.notify(cl, conn, notifications) })
	}
}

// notify sends notifications with QoS 0, those that came together in one write: who
// renews a thousand leases, and follows their keys, is told of each renewal.
func (s *Server) notify(cl *mqtt.Client, conn *connection, notifications []statestore.Notification) {
	var sent, bytes int64
	for _, notification := range notifications {
		if conn.closed.Load() {
			return // a thousand long ones take their time, and somebody waits for this to end
		}
		message := frame.Message{
			Topic:       protocol.NotifyTopic(cl.ID, notification.Key),
			ContentType: protocol.ContentType,
			User: []frame.UserProperty{
				{Name: protocol.PropertyTimestamp, Value: notification.Version.String()},
				{Name: protocol.PropertyProtocolVersion, Value: protocol.ProtocolVersion},
				{Name: protocol.PropertyStore, Value: s.engine.Identity()},
			},
			Payload: notification.Append(nil, s.options.Dialect),
		}
		if isTooLarge(cl, &message) {
			s.logger.Debug("a notification is larger than its client takes", "client", logs.Name(cl.ID), "bytes", message.Size())
			continue
		}
		conn.holdBack(func(held []byte) []byte {
			before := len(held)
			held, err := message.Append(held)
			if err != nil {
				s.logger.Debug("a notification was not delivered", "client", logs.Name(cl.ID), "error", logs.Error(err))
				return held
			}
			sent++
			bytes += int64(len(held) - before)
			return held
		})
	}
	conn.flush()
	info := s.broker.Info
	atomic.AddInt64(&info.PacketsSent, sent)
	atomic.AddInt64(&info.MessagesSent, sent)
	atomic.AddInt64(&info.BytesSent, bytes)
}
