package attach

import (
	"context"
	"fmt"
	"time"

	"github.com/eclipse/paho.golang/packets"

	"github.com/tenurelock/tenure/internal/closed"
	"github.com/tenurelock/tenure/internal/mqtt"
	"github.com/tenurelock/tenure/internal/protocol"
	"github.com/tenurelock/tenure/resp3"
)

const (
	// keepAliveDelay is how much later than one and a half keep-alives a broker may disconnect a
	// silent client: mosquitto 2.0 checks every five seconds.
	keepAliveDelay = 10 * time.Second
	// probeTimeout is how long a client that subscribes to requests, perhaps a store, may take to reply.
	probeTimeout = time.Second
	// objectionTimeout is how long a store that claimed earlier may take to object.
	objectionTimeout = 200 * time.Millisecond
)

// silenceTimeout is how long to wait for a store that a retained message names and that does not answer: longer
// than the broker takes to disconnect it, and may send it requests. silent is when the broker may do so.
func silenceTimeout(silent time.Duration) time.Duration { return silent*4/3 + keepAliveDelay }

func (l *link) says(word string) string { return word + " " + l.store.instance }

// begin makes sure that no other store answers requests, and subscribes to them.
func (l *link) begin(ctx context.Context) error {
	if err := l.probe(ctx); err != nil {
		return err
	}
	if err := l.claim(ctx); err != nil {
		return err
	}
	l.mu.Lock()
	overtaken := !l.presence.answer()
	survived := l.presence.survived
	l.store.memory = l.presence.memory
	l.mu.Unlock()
	if overtaken {
		return l.overtaken()
	}
	if err := l.mayWrite(ctx); err != nil {
		return err
	}
	if err := l.announce(ctx, l.says(saysAnswers)); err != nil {
		return err
	}
	if !survived {
		// The broker was restarted, which ended all connections and with them the watches.
		l.store.clients.endWatches()
		l.store.queue.drain(l.store.unqueued)
	}
	if !closed.Is(l.store.ready) {
		l.store.engine.Begin() // until now another store may have granted leases
	}
	requests := packets.SubOptions{Topic: protocol.InvokeTopic, QoS: 1, RetainHandling: 2, RetainAsPublished: true}
	return l.subscribe(ctx, requests)
}

// probe sends a request, and returns ErrAnotherStore if it is answered: by any store, attached or
// part of the broker, of any maker.
func (l *link) probe(ctx context.Context) error {
	replyTo := protocol.ResponseTopic(l.clientID)
	if err := l.subscribe(ctx, packets.SubOptions{Topic: replyTo, QoS: 1}); err != nil {
		return err
	}
	readers, err := l.publish(ctx, &mqtt.Message{
		Topic:           protocol.InvokeTopic,
		Payload:         resp3.AppendCommand(nil, protocol.VerbGet, "is another store there?"),
		ResponseTopic:   replyTo,
		CorrelationData: []byte(l.store.instance[:16]),
		ContentType:     protocol.ContentType,
		MessageExpiry:   uint32(probeTimeout / time.Second),
		User: []mqtt.UserProperty{
			{Name: protocol.PropertySourceID, Value: l.clientID},
			{Name: protocol.PropertyProtocolVersion, Value: protocol.ProtocolVersion},
			{Name: protocol.PropertyPartition, Value: l.clientID},
		},
	})
	if err != nil || !readers {
		return err
	}
	timeout := time.NewTimer(probeTimeout)
	defer timeout.Stop()
	select {
	case <-l.answered:
		return finalError{fmt.Errorf("%w; stop that one first, or this one is not needed", ErrAnotherStore)}
	case <-ctx.Done():
		return errConnectionLost
	case <-timeout.C:
		return nil // a client subscribes to requests and does not answer them
	}
}

// mayWrite returns an error if the broker does not let the store publish to clients. The broker
// would drop replies silently, since they have QoS 0.
func (l *link) mayWrite(ctx context.Context) error {
	absent := l.clientID + "-absent"
	for _, topic := range []string{protocol.ResponseTopic(absent), protocol.NotifyTopic(absent, "")} {
		if _, err := l.publish(ctx, &mqtt.Message{Topic: topic}); err != nil {
			return err
		}
	}
	return nil
}

// claim announces that this store wants to answer requests, and returns nil when it may.
func (l *link) claim(ctx context.Context) error {
	if err := l.subscribe(ctx, packets.SubOptions{Topic: presenceTopic, QoS: 1}); err != nil {
		return err
	}
	l.mu.Lock()
	l.claims = true
	l.mu.Unlock()
	if err := l.announce(ctx, l.says(saysClaims)); err != nil {
		return err
	}
	echo := time.NewTimer(stepTimeout)
	defer echo.Stop()
	timeout := time.NewTimer(l.store.silence(l.client.Silence))
	defer timeout.Stop()
	var undisputed <-chan time.Time // receives when every objection to our claim would have come; nil: not claimed yet
	certain := false
	for {
		l.mu.Lock()
		free, stage := l.presence.free(), l.presence.stage
		l.mu.Unlock()
		if free && certain {
			return nil
		}
		if stage != claiming && undisputed == nil {
			undisputed = time.After(l.store.objectionWait)
		}
		select {
		case <-l.changed:
		case <-undisputed:
			certain = true
		case <-l.superseded:
			return l.overtaken()
		case <-ctx.Done():
			return errConnectionLost
		case <-echo.C:
			if stage == claiming {
				return finalError{fmt.Errorf("the broker does not send the store what it publishes on %s: its rules must let a "+
					"store read and write that topic", presenceTopic)}
			}
		case <-timeout.C:
			l.store.options.Logger.Warn("the store that answered on this broker before is silent; taking over")
			return nil
		}
	}
}

// overtaken returns the error of a store that has yielded before it answered.
func (l *link) overtaken() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.presence.successor != "" {
		return finalError{fmt.Errorf("%w: its leases and changes are not in this data. Begin with an empty journal, and a "+
			"hold-off of the longest TTL in use. If no other store has answered, remove the retained message on %s and start "+
			"again", ErrStaleData, presenceTopic)}
	}
	return finalError{errOvertaken}
}

// announce publishes a text on presenceTopic.
func (l *link) announce(ctx context.Context, text string) error {
	_, err := l.publish(ctx, &mqtt.Message{Retain: true, Topic: presenceTopic, Payload: []byte(text)})
	return err
}

// publish sends a message with QoS 1 and reports whether it had a subscriber.
func (l *link) publish(ctx context.Context, message *mqtt.Message) (readers bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, stepTimeout)
	defer cancel()
	ack, err := l.client.Publish(ctx, message)
	if ack == nil {
		return false, fmt.Errorf("publish to %s: %w", message.Topic, err)
	}
	return ack.ReasonCode != packets.PubackNoMatchingSubscribers,
		refused(ack.ReasonCode, err, "message", message.Topic, "write there")
}

func (l *link) subscribe(ctx context.Context, subscription packets.SubOptions) error {
	ctx, cancel := context.WithTimeout(ctx, stepTimeout)
	defer cancel()
	suback, err := l.client.Subscribe(ctx, subscription)
	if suback == nil {
		return fmt.Errorf("subscribe to %s: %w", subscription.Topic, err)
	}
	return refused(suback.Reasons[0], err, "subscription", subscription.Topic, "read that topic")
}

// refused returns the error for an answer of the broker; nil if err is nil.
func refused(code byte, err error, what, topic, right string) error {
	if err == nil {
		return nil
	}
	return finalUnless(code, fmt.Errorf(
		"the broker refuses a %s to %s (MQTT reason code 0x%02X): its rules must let a store %s",
		what, topic, code, right))
}
