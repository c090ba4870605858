package server

import (
	"sync"

	"github.com/tenurelock/tenure/statestore"
)

// maxOutbox is how many notifications may wait for one client to read them. A
// client that falls further behind is disconnected: it will connect again, watch
// again and read again, and so miss nothing, whereas dropping a notification
// would leave it with a state that is no longer true.
const maxOutbox = 1024

// outbox is the queue of notifications for one connection.
type outbox struct {
	wake chan struct{}
	done chan struct{}
	task sync.WaitGroup

	mu      sync.Mutex
	started bool
	closed  bool
	full    bool // has been, once
	queue   []statestore.Notification
}

func newOutbox() *outbox {
	return &outbox{wake: make(chan struct{}, 1), done: make(chan struct{})}
}

// push queues a notification. It reports false when the queue is full, and says when it
// begins to be.
func (o *outbox) push(notification statestore.Notification) (queued, crowded bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.closed {
		return true, false
	}
	if len(o.queue) >= maxOutbox {
		o.full = true
		return false, true
	}
	o.queue = append(o.queue, notification)
	select {
	case o.wake <- struct{}{}:
	default:
	}
	return true, len(o.queue) > maxOutbox/2
}

// overflowed reports whether a push ever failed.
func (o *outbox) overflowed() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.full
}

// start makes a goroutine write what is queued, in order, until close. Only the first call
// has an effect. What write gets is good until it returns.
func (o *outbox) start(write func([]statestore.Notification)) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.started || o.closed {
		return
	}
	o.started = true
	o.task.Go(func() {
		var taken []statestore.Notification
		for {
			select {
			case <-o.done:
				return
			case <-o.wake:
			}
			taken = o.take(taken)
			write(taken)
		}
	})
}

// take returns what is queued, and queues from now on in the room of what was written.
func (o *outbox) take(written []statestore.Notification) []statestore.Notification {
	clear(written)
	o.mu.Lock()
	defer o.mu.Unlock()
	taken := o.queue
	o.queue = written[:0]
	return taken
}

// close ends the goroutine and waits for it. The socket must be closed before,
// so that a write under way returns.
func (o *outbox) close() {
	o.mu.Lock()
	o.closed, o.queue = true, nil
	close(o.done)
	o.mu.Unlock()
	o.task.Wait()
}
