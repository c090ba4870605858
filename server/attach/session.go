package attach

import (
	"context"
	"sync"

	"github.com/eclipse/paho.golang/packets"
	pahosession "github.com/eclipse/paho.golang/paho/session"
	"github.com/eclipse/paho.golang/paho/session/state"
)

// session is the session state of paho. paho v0.23.0 has no other way to see the acknowledgement of
// a message for which the sender does not wait. Each connection has its own.
type session struct {
	*state.State
	unread func(pendingNotification) // called for a notification without a subscriber

	mu             sync.Mutex
	unacknowledged map[uint16]pendingNotification // by packet id
}

// notificationKey is the key of the context's value that tells AddToSession which notification a
// packet carries.
type notificationKey struct{}

func newSession(unread func(pendingNotification)) *session {
	return &session{State: state.NewInMemory(), unread: unread, unacknowledged: make(map[uint16]pendingNotification)}
}

// AddToSession notes the notification of a packet id.
func (s *session) AddToSession(ctx context.Context, packet pahosession.Packet, response chan<- packets.ControlPacket) error {
	if err := s.State.AddToSession(ctx, packet, response); err != nil {
		return err
	}
	publish, isPublish := packet.(*packets.Publish)
	if notification, ok := ctx.Value(notificationKey{}).(pendingNotification); ok && isPublish {
		s.mu.Lock()
		s.unacknowledged[publish.PacketID] = notification
		s.mu.Unlock()
	}
	return nil
}

// PacketReceived calls unread for a notification that had no subscriber.
func (s *session) PacketReceived(packet *packets.ControlPacket, publishes chan<- *packets.Publish) error {
	if ack, ok := packet.Content.(*packets.Puback); ok {
		s.mu.Lock()
		notification, known := s.unacknowledged[ack.PacketID]
		delete(s.unacknowledged, ack.PacketID)
		s.mu.Unlock()
		if known && ack.ReasonCode == packets.PubackNoMatchingSubscribers {
			s.unread(notification)
		}
	}
	return s.State.PacketReceived(packet, publishes)
}
