package doctor

import (
	"context"
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/eclipse/paho.golang/paho"

	"github.com/tenurelock/tenure/internal/queueprobe"
)

// storeWindow is how many messages an attached store lets a broker have in flight. The doctor lets it
// have as many, so that it sees what a store sees.
const storeWindow = math.MaxUint16

// examineQueue looks whether a broker would throw away requests when many clients send at once: with
// messages of this client to itself. A server of Tenure's own needs no such look.
func (d *doctor) examineQueue(ctx context.Context, s *session) {
	const name = "queue"
	want := int64(d.options.Burst)
	switch {
	case want <= 0:
		d.add(skipped(name, "not tried, because of --burst 0"))
		return
	case d.options.ReadOnly:
		d.add(skipped(name, "no burst of messages was sent, because of --read-only"))
		return
	}
	sending, cancel := context.WithTimeout(ctx, queueprobe.MaxTime)
	defer cancel()
	connection, lost := context.WithCancel(ctx)
	defer lost()
	defer context.AfterFunc(connection, cancel)()
	ended := make(chan struct{})
	defer func() { lost(); <-ended }()
	go func() { // connection ends with the client
		defer close(ended)
		select {
		case <-s.client.Done():
			lost()
		case <-connection.Done():
		}
	}()
	if err := s.subscribe(sending, s.probe.Topic()); err != nil {
		d.add(skipped(name, fmt.Sprintf("this client may not subscribe to %s, so the broker's queue cannot be measured: %v", s.probe.Topic(), err)))
		return
	}
	defer func() {
		leaving, cancel := d.step(ctx)
		defer cancel()
		_, _ = s.client.Unsubscribe(leaving, &paho.Unsubscribe{Topics: []string{s.probe.Topic()}}) // it ends with the connection
	}()
	_, err := s.client.Publish(sending, s.probe.Message())
	if err == nil {
		if s.probe.Await(sending, 1); s.probe.Arrived() == 0 {
			err = errors.New("the message did not come back")
		}
	}
	if err != nil {
		d.add(skipped(name, fmt.Sprintf("this client may not send itself messages on %s, so the broker's queue cannot be measured: %v", s.probe.Topic(), err)))
		return
	}
	began := time.Now()
	sent, arrived, err := s.probe.Burst(sending, connection, s.client, s.state, want)
	switch {
	case connection.Err() != nil:
		d.add(warning(name, fmt.Sprintf("the connection ended during a burst of %d messages", want), queueprobe.Cure))
	case arrived < sent:
		d.add(warning(name, fmt.Sprintf("the broker loses requests when many clients send at once: of %d messages it threw away %d", sent, sent-arrived), queueprobe.Cure))
	case err != nil:
		d.add(warning(name, fmt.Sprintf("it cannot be told whether the broker loses requests when many clients send at once: %v", err), queueprobe.Cure))
	default:
		d.add(ok(name, fmt.Sprintf("the broker kept a burst of %d messages, in %v", sent, time.Since(began).Round(time.Millisecond))))
	}
}
