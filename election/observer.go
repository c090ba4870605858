package election

import (
	"log/slog"
	"sync"
)

// observerQueue calls the observer with each transition, one at a time and in order. A
// goroutine does that while any are queued. One goroutine adds.
type observerQueue struct {
	observer func(Transition)
	logger   *slog.Logger
	tasks    *sync.WaitGroup // of Run, which waits for the goroutine

	mu         sync.Mutex
	queue      []queuedTransition // the observer has not got them yet
	delivering bool               // the goroutine runs
}

type queuedTransition struct {
	Transition
	delivered chan struct{} // closed when the observer has returned
}

// add queues a transition and returns at once. The channel is closed when the observer has
// returned. A Standby replaces a Standby at the end of the queue, so the queue stays
// short however often the cause changes while the observer is slow.
func (q *observerQueue) add(transition Transition) (delivered <-chan struct{}) {
	next := queuedTransition{transition, make(chan struct{})}
	if q.observer == nil {
		close(next.delivered)
		return next.delivered
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	if last := len(q.queue) - 1; last >= 0 && transition.Phase == Standby && q.queue[last].Phase == Standby {
		q.queue[last].Transition = transition
		return q.queue[last].delivered
	}
	q.queue = append(q.queue, next)
	if !q.delivering {
		q.delivering = true
		q.tasks.Go(q.deliver)
	}
	return next.delivered
}

// deliver empties the queue. A panic in the observer is logged.
func (q *observerQueue) deliver() {
	for {
		q.mu.Lock()
		if len(q.queue) == 0 {
			q.delivering = false
			q.mu.Unlock()
			return
		}
		next := q.queue[0]
		q.queue = q.queue[1:]
		q.mu.Unlock()
		// call runs the observer in a goroutine of its own: the observer could end this one.
		if err := <-call(observerFunction, func() error { q.observer(next.Transition); return nil }); err != nil {
			q.logger.Error("the observer failed", "error", err)
		}
		close(next.delivered)
	}
}
