// Package queueprobe finds out how many messages a broker queues for one client: whether it would throw
// away requests when that many clients send at once.
//
// The client sends a burst to a topic of its own, and acknowledges what comes back only when the whole
// burst is sent. A broker reads the packets of one connection in order, so it has to queue the whole
// burst. The doctor of the command probes with it.
package queueprobe

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/eclipse/paho.golang/packets"
	"github.com/eclipse/paho.golang/paho"
	"github.com/eclipse/paho.golang/paho/session/state"
)

const (
	// MessageSize is about the size of a request with its properties, since a broker may bound its
	// queues in bytes.
	MessageSize = 256
	// MaxTime bounds each of the two parts of a burst: sending, and collecting.
	MaxTime = 5 * time.Second
	// quiet is how long no message may come before no more are expected.
	quiet = 500 * time.Millisecond
	// Cure is what an operator of the broker can do.
	Cure = "raise the limits of the broker: in mosquitto.conf set_tcp_nodelay true, max_inflight_messages 0 and max_queued_messages 10000, see docs/attach.md"
)

// Probe counts the messages of a burst. Its methods are safe for concurrent use.
type Probe struct {
	topic    string
	arrived  atomic.Int64
	received chan struct{} // has an item after a message has arrived
}

// New returns a probe on a topic that belongs to the client, and to which it has subscribed before
// Burst.
func New(topic string) *Probe { return &Probe{topic: topic, received: make(chan struct{}, 1)} }

// Topic returns the topic.
func (p *Probe) Topic() string { return p.topic }

// Count counts a message that arrived on the topic. The client calls it for each.
func (p *Probe) Count() {
	p.arrived.Add(1)
	select {
	case p.received <- struct{}{}:
	default:
	}
}

// Arrived returns how many messages were counted.
func (p *Probe) Arrived() int64 { return p.arrived.Load() }

// Message returns a message of a burst. The broker forgets it soon if it cannot deliver it.
func (p *Probe) Message() *paho.Publish {
	expiry := uint32(2 * MaxTime / time.Second)
	return &paho.Publish{
		QoS: 1, Topic: p.topic, Payload: make([]byte, MessageSize),
		Properties: &paho.PublishProperties{MessageExpiry: &expiry},
	}
}

// Await waits until want messages have arrived, or no more arrive, or ctx ends.
func (p *Probe) Await(ctx context.Context, want int64) {
	timer := time.NewTimer(quiet)
	defer timer.Stop()
	for p.arrived.Load() < want {
		select {
		case <-p.received:
			timer.Reset(quiet)
		case <-timer.C:
			return
		case <-ctx.Done():
			return
		}
	}
}

// Burst sends messages until there are want in all, one of which the caller has sent and received already:
// some brokers drop it silently if the client may not read the topic. It returns how many it sent and how
// many of them came back. The error says why it sent fewer, or cannot tell how many came back. ctx bounds
// the sending; connection is done when the connection is lost. The client must have been made with
// session.
func (p *Probe) Burst(ctx, connection context.Context, client *paho.Client, session *Session, want int64) (sent, arrived int64, err error) {
	session.withhold(p.topic)
	for sent = 1; sent < want; sent++ {
		if _, err = client.PublishWithOptions(ctx, p.Message(), paho.PublishOptions{Method: paho.PublishMethod_AsyncSend}); err != nil {
			err = fmt.Errorf("only %d of %d messages could be sent in time: %w", sent, want, err)
			break
		}
	}
	session.release()
	collect, stop := context.WithTimeout(connection, MaxTime)
	defer stop()
	p.Await(collect, sent)
	arrived = p.arrived.Load()
	if err == nil && arrived < sent && collect.Err() != nil {
		return arrived, arrived, fmt.Errorf("only %d of %d messages came back in time", arrived, sent)
	}
	return sent, arrived, err
}

// Session is the session state of a paho client in memory. It can withhold acknowledgements. It is safe
// for concurrent use.
type Session struct {
	*state.State

	mu       sync.Mutex
	topic    string // whose messages are not acknowledged; empty: none
	withheld []*packets.Publish
}

// NewSession returns the state of a new session.
func NewSession() *Session { return &Session{State: state.NewInMemory()} }

// withhold makes acknowledgements of messages on a topic wait for release.
func (s *Session) withhold(topic string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.topic = topic
}

// release sends the withheld acknowledgements, in order, and ends withhold.
func (s *Session) release() {
	for {
		s.mu.Lock()
		batch := s.withheld
		s.withheld = nil
		if len(batch) == 0 {
			s.topic = ""
			s.mu.Unlock()
			return
		}
		s.mu.Unlock()
		for _, message := range batch {
			_ = s.State.Ack(message) // if it fails, so does the connection
		}
	}
}

// Ack acknowledges a message, unless that is withheld. paho calls it.
func (s *Session) Ack(message *packets.Publish) error {
	s.mu.Lock()
	if s.topic != "" && message.Topic == s.topic && message.QoS > 0 {
		s.withheld = append(s.withheld, message)
		s.mu.Unlock()
		return nil
	}
	s.mu.Unlock()
	return s.State.Ack(message)
}
