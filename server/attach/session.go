package attach

import (
	"context"
	"sync"

	"github.com/eclipse/paho.golang/packets"
	pahosession "github.com/eclipse/paho.golang/paho/session"
	"github.com/eclipse/paho.golang/paho/session/state"
)

// session is paho's session state, observed: only here the acknowledgement of
// a message can be seen that was sent without waiting for it. There is one for each
// connection, so that nothing outlives it.
type session struct {
	*state.State
	unread func(pendingNotification) // nobody subscribes to its topic

	mu     sync.Mutex
	unsure map[uint16]pendingNotification // sent and not acknowledged, by packet id
	// withheld are messages with withheldTopic that wait to be acknowledged, see queueProbe.
	withheldTopic string // empty: none is withheld
	withheld      []*packets.Publish
}

// notificationKey is the key of a context's value, by which AddToSession learns what a
// packet is about.
type notificationKey struct{}

func newSession(unread func(pendingNotification)) *session {
	return &session{State: state.NewInMemory(), unread: unread, unsure: make(map[uint16]pendingNotification)}
}

// AddToSession notes which notification got which packet id.
func (s *session) AddToSession(ctx context.Context, packet pahosession.Packet, response chan<- packets.ControlPacket) error {
	if err := s.State.AddToSession(ctx, packet, response); err != nil {
		return err
	}
	publish, isPublish := packet.(*packets.Publish)
	if notification, ok := ctx.Value(notificationKey{}).(pendingNotification); ok && isPublish {
		s.mu.Lock()
		s.unsure[publish.PacketID] = notification
		s.mu.Unlock()
	}
	return nil
}

// PacketReceived looks at acknowledgements.
func (s *session) PacketReceived(packet *packets.ControlPacket, publishes chan<- *packets.Publish) error {
	if ack, ok := packet.Content.(*packets.Puback); ok {
		s.mu.Lock()
		notification, known := s.unsure[ack.PacketID]
		delete(s.unsure, ack.PacketID)
		s.mu.Unlock()
		if known && ack.ReasonCode == packets.PubackNoMatchingSubscribers {
			s.unread(notification)
		}
	}
	return s.State.PacketReceived(packet, publishes)
}
