package doctor

import (
	"context"
	"errors"
	"fmt"
	"math"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tenurelock/tenure/internal/mqtt"
)

const (
	// storeWindow is how many messages an attached store lets a broker have in flight. The doctor lets it
	// have as many, so that it sees what a store sees.
	storeWindow = math.MaxUint16
	// burstSize is about the size of a request with its properties, since a broker may bound its queues in
	// bytes.
	burstSize = 256
	// burstTime bounds each of the two parts of a burst: sending, and collecting.
	burstTime = 5 * time.Second
	// burstQuiet is how long no message may come before no more are expected.
	burstQuiet = 500 * time.Millisecond
	queueCure  = "raise the limits of the broker: in mosquitto.conf set_tcp_nodelay true, max_inflight_messages 0 " +
		"and max_queued_messages 10000, see docs/attach.md"
)

// burst is what comes back of many messages of a client to itself. The client acknowledges none before all
// are sent. A broker reads the packets of one connection in order, so it has to queue the whole burst.
type burst struct {
	topic    string
	arrived  atomic.Int64
	received chan struct{} // has an item after a message has arrived

	mu          sync.Mutex
	withholding bool     // acknowledgements wait
	withheld    []uint16 // the packet identifiers
}

// take counts a message, and acknowledges it or withholds that.
func (b *burst) take(p *mqtt.Publish, acknowledge func(id uint16)) {
	b.arrived.Add(1)
	select {
	case b.received <- struct{}{}:
	default:
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.withholding {
		b.withheld = append(b.withheld, p.PacketID)
	} else {
		acknowledge(p.PacketID)
	}
}

func (b *burst) withhold() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.withholding = true
}

// release acknowledges the messages that were withheld, in their order.
func (b *burst) release(acknowledge func(id uint16)) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, id := range b.withheld {
		acknowledge(id)
	}
	b.withholding, b.withheld = false, nil
}

// message returns a message of the burst. The broker forgets it soon if it cannot deliver it.
func (b *burst) message() *mqtt.Message {
	expiry := uint32(2 * burstTime / time.Second)
	return &mqtt.Message{Topic: b.topic, Payload: make([]byte, burstSize), MessageExpiry: expiry}
}

// await waits until want messages have arrived, or no more arrive, or ctx or the connection ends.
func (s *session) await(ctx context.Context, want int64) {
	timer := time.NewTimer(burstQuiet)
	defer timer.Stop()
	for s.burst.arrived.Load() < want {
		select {
		case <-s.burst.received:
			timer.Reset(burstQuiet)
		case <-timer.C:
			return
		case <-ctx.Done():
			return
		case <-s.ended:
			return
		}
	}
}

// sendBurst sends messages until there are want in all, one of which has been sent and received already. It
// returns how many it sent and how many of them came back. The error says why it sent fewer, or cannot tell how
// many came back. sending bounds the sending.
func (s *session) sendBurst(ctx, sending context.Context, want int64) (sent, arrived int64, err error) {
	s.burst.withhold()
	message := s.burst.message()
	for sent = 1; sent < want; sent++ {
		if err = s.client.PublishAsync(sending, message, func(*mqtt.Puback) {}); err != nil {
			err = fmt.Errorf("only %d of %d messages could be sent in time: %w", sent, want, err)
			break
		}
	}
	s.burst.release(s.client.Acknowledge)
	collecting, stop := context.WithTimeout(ctx, burstTime)
	defer stop()
	s.await(collecting, sent)
	arrived = s.burst.arrived.Load()
	if err == nil && arrived < sent && collecting.Err() != nil {
		return arrived, arrived, fmt.Errorf("only %d of %d messages came back in time", arrived, sent)
	}
	return sent, arrived, err
}

// examineQueue looks whether a broker would throw away requests when many clients send at once: with
// messages of this client to itself. A server of Tenure's own needs no such look.
func (d *doctor) examineQueue(ctx context.Context, s *session) {
	const name = "queue"
	want, topic := int64(d.options.Burst), s.burst.topic
	switch {
	case want <= 0:
		d.add(skipped(name, "not tried, because of --burst 0"))
		return
	case d.options.ReadOnly:
		d.add(skipped(name, "no burst of messages was sent, because of --read-only"))
		return
	}
	sending, cancel := context.WithTimeout(ctx, burstTime)
	defer cancel()
	if err := s.subscribe(sending, topic); err != nil {
		d.add(skipped(name, fmt.Sprintf("this client may not subscribe to %s, so the broker's queue cannot be measured: %v",
			topic, err)))
		return
	}
	defer s.unsubscribe(ctx, topic)
	_, err := s.client.Publish(sending, s.burst.message())
	if err == nil {
		if s.await(sending, 1); s.burst.arrived.Load() == 0 {
			err = errors.New("the message did not come back")
		}
	}
	if err != nil {
		d.add(skipped(name, fmt.Sprintf("this client may not send itself messages on %s, so the broker's queue cannot be "+
			"measured: %v", topic, err)))
		return
	}
	began := time.Now()
	sent, arrived, err := s.sendBurst(ctx, sending, want)
	switch {
	case ctx.Err() != nil || s.isOver():
		d.add(warning(name, fmt.Sprintf("the connection ended during a burst of %d messages", want), queueCure))
	case arrived < sent:
		d.add(warning(name, fmt.Sprintf("the broker loses requests when many clients send at once: of %d messages it threw "+
			"away %d", sent, sent-arrived), queueCure))
	case err != nil:
		d.add(warning(name, fmt.Sprintf("it cannot be told whether the broker loses requests when many clients send at "+
			"once: %v", err), queueCure))
	default:
		took := time.Since(began).Round(time.Millisecond)
		d.add(ok(name, fmt.Sprintf("the broker kept a burst of %d messages, in %v", sent, took)))
	}
}
