package attach

import (
	"context"
	"errors"
	"time"

	"github.com/eclipse/paho.golang/packets"
)

// SpareHoldOff is the hold-off of a store with Options.Wait that has none of its own: the default
// TTL of a lease.
const SpareHoldOff = 10 * time.Second

// sparePoll is how often a spare asks whether the other store still answers. One that is attached
// says on presenceTopic that it is gone, or its broker does; one of another make does not.
const sparePoll = 5 * time.Second

// Waiting returns a channel that is closed when the store stands by for the first time, because
// another store answers: see Options.Wait.
func (s *Store) Waiting() <-chan struct{} { return s.waiting }

// mayWait reports whether the store is to stand by after err. It may not if it has answered
// requests itself: the store that took its place began without its data, so its data is void.
func (s *Store) mayWait(err error) bool {
	return s.options.Wait && !s.begun && errors.Is(err, ErrAnotherStore)
}

// standBy connects to the broker as a spare, and returns nil when the other store seems to be gone.
// The error says why it cannot tell.
func (s *Store) standBy(ctx context.Context) error {
	s.waitingOnce.Do(func() {
		s.logger.Warn("standing by: another store answers on this broker; when it is gone, so is its data, and this store begins empty",
			"broker", s.broker.Host, "hold-off", s.options.Store.HoldOff)
		close(s.waiting)
	})
	return s.connect(ctx, true)
}

// awaitVacancy returns nil when no store seems to answer.
func (l *link) awaitVacancy(ctx context.Context) error {
	// Listen before asking, so that no farewell is missed in between.
	if err := l.subscribe(ctx, packets.SubOptions{Topic: presenceTopic, QoS: 1, RetainHandling: 2}); err != nil {
		return err
	}
	poll := time.NewTicker(sparePoll)
	defer poll.Stop()
	for {
		if err := l.probe(ctx); !errors.Is(err, ErrAnotherStore) {
			return err
		}
		select {
		case <-poll.C:
		case <-l.gone:
			return nil
		case <-ctx.Done():
			return errConnectionLost
		}
	}
}
