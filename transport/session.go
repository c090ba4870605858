package transport

import (
	"context"
	"sync"

	"github.com/eclipse/paho.golang/packets"
	pahosession "github.com/eclipse/paho.golang/paho/session"
	"github.com/eclipse/paho.golang/paho/session/state"
)

// session is paho's session state, observed. Two things are to be seen only
// here: the acknowledgement of a publish that was sent without waiting for it,
// and the loss of the connection together with the server's reason, before
// anything reacts to it.
//
// Each connection has a session of its own. Nothing of ours outlives a
// connection, and paho v0.23.0 has a data race between a publish and the reuse
// of its state by the next connection.
type session struct {
	*state.State
	link *link
	conn *mqttConn

	mu      sync.Mutex
	waiting map[uint16]correlation // packet id → request
}

func newSession(l *link, conn *mqttConn) *session {
	return &session{State: state.NewInMemory(), link: l, conn: conn, waiting: make(map[uint16]correlation)}
}

// ConnectionLost passes on the end of the connection. paho may call it more than
// once, the first time with the server's DISCONNECT if there was one.
func (s *session) ConnectionLost(disconnect *packets.Disconnect) error {
	s.conn.lost(s.link, disconnect)
	return s.State.ConnectionLost(disconnect)
}

// AddToSession notes which request got which packet id.
func (s *session) AddToSession(ctx context.Context, packet pahosession.Packet, response chan<- packets.ControlPacket) error {
	if err := s.State.AddToSession(ctx, packet, response); err != nil {
		return err
	}
	if publish, ok := packet.(*packets.Publish); ok {
		s.mu.Lock()
		s.waiting[publish.PacketID] = correlation(publish.Properties.CorrelationData)
		s.mu.Unlock()
	}
	return nil
}

// PacketReceived reports acknowledgements.
func (s *session) PacketReceived(packet *packets.ControlPacket, publishes chan<- *packets.Publish) error {
	if ack, ok := packet.Content.(*packets.Puback); ok {
		s.mu.Lock()
		id, known := s.waiting[ack.PacketID]
		delete(s.waiting, ack.PacketID)
		s.mu.Unlock()
		if known {
			s.conn.acknowledgedPlainly(s.link, id, ack)
		}
	}
	return s.State.PacketReceived(packet, publishes)
}
