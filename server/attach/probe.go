package attach

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/eclipse/paho.golang/paho"

	"github.com/tenurelock/tenure/internal/protocol"
	"github.com/tenurelock/tenure/internal/queueprobe"
)

const (
	defaultProbeMessages = 5000
	// maxProbeMessages bounds Options.ProbeMessages: a probe sends at most about 20 MB.
	maxProbeMessages = 60_000
	// probeNoteTopic has a retained message for the stores to come: how many messages the broker has
	// kept. It is with the broker, because it is about the broker: a store that takes the place of
	// another one, on any machine and with any data, begins without a probe.
	probeNoteTopic = protocol.Service + "/store/queue-probe"
	saysKept       = "kept " // and a number
	// probeNoteLasts is how long the note does: settings change. A broker without persistence forgets it
	// when it is restarted, with other settings perhaps.
	probeNoteLasts = 30 * 24 * time.Hour
)

// queueProbe is the probe of a link, and what an earlier store has found out.
type queueProbe struct {
	*queueprobe.Probe
	kept atomic.Int64 // by the note of an earlier probe
}

// hear takes a message on probeNoteTopic.
func (p *queueProbe) hear(text string) {
	if number, ok := strings.CutPrefix(text, saysKept); ok {
		if kept, err := strconv.ParseInt(number, 10, 64); err == nil {
			p.kept.Store(kept)
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
		log.Warn("cannot tell whether the broker loses requests when many clients send at once: the connection ended during the probe", "hint", queueprobe.Cure)
	case arrived < sent:
		log.Warn("the broker loses requests when many clients send at once: it threw away messages of a burst from the store to itself", "sent", sent, "lost", sent-arrived, "hint", queueprobe.Cure)
	case err != nil:
		log.Warn("cannot tell whether the broker loses requests when many clients send at once", "error", err, "sent", sent, "hint", queueprobe.Cure)
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
	ctx, cancel := context.WithTimeout(ctx, queueprobe.MaxTime)
	defer cancel()
	defer context.AfterFunc(l.ctx, cancel)()
	p := l.probing
	// A store that may not read the note probes.
	_ = l.subscribe(ctx, paho.SubscribeOptions{Topic: probeNoteTopic, QoS: 1})
	if err := l.subscribe(ctx, paho.SubscribeOptions{Topic: p.Topic(), QoS: 1}); err != nil {
		return 0, 0, err
	}
	defer func() {
		// If this fails, the subscription ends with the connection.
		leaving, cancel := context.WithTimeout(l.ctx, stepTimeout)
		defer cancel()
		_, _ = l.client.Unsubscribe(leaving, &paho.Unsubscribe{Topics: []string{p.Topic(), probeNoteTopic}})
	}()
	// First a single message: some brokers drop it silently if the store may not read the topic.
	if _, err := l.publish(ctx, p.Message()); err != nil {
		return 0, 0, err
	}
	if p.Await(ctx, 1); p.Arrived() == 0 {
		return 0, 0, fmt.Errorf("the broker does not send the store what it publishes to %s: its rules must let a store read that topic", p.Topic())
	}
	if p.kept.Load() >= int64(want) { // the note came before the answer to the later subscription
		return 0, 0, nil
	}
	l.store.logger.Info("probing the broker with a burst of messages; the store answers requests afterwards", "messages", want)
	return p.Burst(ctx, l.ctx, l.client, l.session.Session, int64(want))
}
