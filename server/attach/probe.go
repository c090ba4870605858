package attach

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/eclipse/paho.golang/packets"
	"github.com/eclipse/paho.golang/paho"

	"github.com/tenurelock/tenure/internal/protocol"
)

const (
	defaultProbeMessages = 5000
	// maxProbeMessages bounds Options.ProbeMessages: a probe sends at most about 20 MB.
	maxProbeMessages = 60_000
	// probeMessageSize is about the size of a request with its properties, since a broker
	// may bound its queues in bytes.
	probeMessageSize = 256
	// queueProbeTime bounds each part of a probe, and queueProbeQuiet the wait for the next of its
	// messages.
	queueProbeTime  = 5 * time.Second
	queueProbeQuiet = 500 * time.Millisecond
	// probeNoteTopic has a retained message for the stores to come: how many messages the broker has
	// kept. It is with the broker, because it is about the broker: a store that takes the place of
	// another one, on any machine and with any data, begins without a probe.
	probeNoteTopic = protocol.Service + "/store/queue-probe"
	saysKept       = "kept " // and a number
	// probeNoteLasts is how long the note does: settings change. A broker without persistence forgets it
	// when it is restarted, with other settings perhaps.
	probeNoteLasts = 30 * 24 * time.Hour
	// queueHint is what an operator of the broker can do.
	queueHint = "raise the limits of the broker: in mosquitto.conf set_tcp_nodelay true, max_inflight_messages 0 and max_queued_messages 10000, see docs/attach.md"
)

// queueProbe finds out how many messages the broker queues for this store. It sends a burst to a
// topic of the store's own, and acknowledges what comes back only when the whole burst is sent. A
// broker reads the packets of one connection in order, so it has to queue the whole burst, as it
// must when so many clients send at once.
type queueProbe struct {
	topic    string
	kept     atomic.Int64 // by the note of an earlier probe
	arrived  atomic.Int64
	received chan struct{} // has an item after a message has arrived
}

// count counts a message of the probe.
func (p *queueProbe) count() {
	p.arrived.Add(1)
	signalOne(p.received)
}

// hear takes a message on probeNoteTopic.
func (p *queueProbe) hear(text string) {
	if number, ok := strings.CutPrefix(text, saysKept); ok {
		if kept, err := strconv.ParseInt(number, 10, 64); err == nil {
			p.kept.Store(kept)
		}
	}
}

// await waits until want messages have arrived, or no more arrive.
func (p *queueProbe) await(ctx context.Context, want int64) {
	quiet := time.NewTimer(queueProbeQuiet)
	defer quiet.Stop()
	for p.arrived.Load() < want {
		select {
		case <-p.received:
			quiet.Reset(queueProbeQuiet)
		case <-quiet.C:
			return
		case <-ctx.Done():
			return
		}
	}
}

// probeQueue logs a warning if the broker would lose requests, or if that cannot be found out. It
// does so once for each store, before the store subscribes to requests, which the burst could
// displace. It sends no burst to a broker that has kept one before: on a slow connection that takes
// seconds, in which holders cannot renew.
func (l *link) probeQueue(ctx context.Context) {
	want := l.store.options.ProbeMessages
	if want < 0 || l.store.probed {
		return
	}
	l.store.probed = true // once, even if the broker closes the connection because of it
	log := l.store.logger
	sent, arrived, err := l.burst(ctx, want)
	switch {
	case err == nil && sent == 0:
		log.Debug("the broker has kept a burst of messages before", "messages", l.probing.kept.Load())
	case ctx.Err() != nil || l.ctx.Err() != nil && arrived == 0:
		log.Warn("cannot tell whether the broker loses requests when many clients send at once: the connection ended during the probe", "hint", queueHint)
	case arrived < sent:
		log.Warn("the broker loses requests when many clients send at once: it threw away messages of a burst from the store to itself", "sent", sent, "lost", sent-arrived, "hint", queueHint)
	case err != nil:
		log.Warn("cannot tell whether the broker loses requests when many clients send at once", "error", err, "sent", sent, "hint", queueHint)
	default:
		log.Debug("the broker kept a burst of messages", "sent", sent)
		l.note(sent)
	}
}

// note leaves a note that the broker has kept a burst of messages. If that fails, the next store probes.
func (l *link) note(kept int64) {
	ctx, cancel := context.WithTimeout(l.ctx, stepTimeout)
	defer cancel()
	expiry := uint32(probeNoteLasts / time.Second)
	_, err := l.publish(ctx, &paho.Publish{
		QoS: 1, Retain: true, Topic: probeNoteTopic, Payload: fmt.Append(nil, saysKept, kept),
		Properties: &paho.PublishProperties{MessageExpiry: &expiry},
	})
	if err != nil {
		l.store.logger.Debug("the result of the probe was not noted on the broker", "error", err)
	}
}

// burst sends up to want messages, and returns how many it sent and how many of them came back: none if
// the broker has kept as many before. The error says why it sent fewer, or cannot tell how many came
// back.
func (l *link) burst(ctx context.Context, want int) (sent, arrived int64, err error) {
	ctx, cancel := context.WithTimeout(ctx, queueProbeTime)
	defer cancel()
	defer context.AfterFunc(l.ctx, cancel)()
	p := l.probing
	// A store that may not read the note probes.
	_ = l.subscribe(ctx, paho.SubscribeOptions{Topic: probeNoteTopic, QoS: 1})
	if err := l.subscribe(ctx, paho.SubscribeOptions{Topic: p.topic, QoS: 1}); err != nil {
		return 0, 0, err
	}
	defer func() {
		// If this fails, the subscription ends with the connection.
		leaving, cancel := context.WithTimeout(l.ctx, stepTimeout)
		defer cancel()
		_, _ = l.client.Unsubscribe(leaving, &paho.Unsubscribe{Topics: []string{p.topic, probeNoteTopic}})
	}()
	expiry := uint32(2 * queueProbeTime / time.Second) // so that no message stays in the broker
	message := func() *paho.Publish {
		return &paho.Publish{
			QoS: 1, Topic: p.topic, Payload: make([]byte, probeMessageSize),
			Properties: &paho.PublishProperties{MessageExpiry: &expiry},
		}
	}
	// First a single message: some brokers drop it silently if the store may not read the topic.
	if _, err := l.publish(ctx, message()); err != nil {
		return 0, 0, err
	}
	if p.await(ctx, 1); p.arrived.Load() == 0 {
		return 0, 0, fmt.Errorf("the broker does not send the store what it publishes to %s: its rules must let a store read that topic", p.topic)
	}
	if p.kept.Load() >= int64(want) { // the note came before the answer to the later subscription
		return 0, 0, nil
	}
	l.store.logger.Info("probing the broker with a burst of messages; the store answers requests afterwards", "messages", want)
	l.session.withhold(p.topic)
	for sent = 1; sent < int64(want); sent++ {
		if _, err = l.client.PublishWithOptions(ctx, message(), paho.PublishOptions{Method: paho.PublishMethod_AsyncSend}); err != nil {
			err = fmt.Errorf("only %d of %d messages could be sent in time: %w", sent, want, err)
			break
		}
	}
	l.session.release()
	collect, stop := context.WithTimeout(l.ctx, queueProbeTime)
	defer stop()
	p.await(collect, sent)
	arrived = p.arrived.Load()
	if err == nil && arrived < sent && collect.Err() != nil {
		return arrived, arrived, fmt.Errorf("only %d of %d messages came back in time", arrived, sent)
	}
	return sent, arrived, err
}

// withhold makes acknowledgements of messages on a topic wait for release.
func (s *session) withhold(topic string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.withheldTopic = topic
}

// release sends the withheld acknowledgements, in order, and ends withhold.
func (s *session) release() {
	for {
		s.mu.Lock()
		batch := s.withheld
		s.withheld = nil
		if len(batch) == 0 {
			s.withheldTopic = ""
			s.mu.Unlock()
			return
		}
		s.mu.Unlock()
		for _, message := range batch {
			_ = s.State.Ack(message) // if it fails, so does the connection
		}
	}
}

// Ack acknowledges a message, unless that is withheld.
func (s *session) Ack(message *packets.Publish) error {
	s.mu.Lock()
	if s.withheldTopic != "" && message.Topic == s.withheldTopic && message.QoS > 0 {
		s.withheld = append(s.withheld, message)
		s.mu.Unlock()
		return nil
	}
	s.mu.Unlock()
	return s.State.Ack(message)
}
