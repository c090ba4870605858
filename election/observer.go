package election

import (
	"log/slog"
	"sync"
)

// announcer calls the observer with each transition, one at a time and in order, in a
// goroutine that lasts while any are queued. Its methods are called by one goroutine.
type announcer struct {
	observer func(Transition)
	logger   *slog.Logger
	tasks    *sync.WaitGroup // of Run, which waits for the goroutine

	mu      sync.Mutex
	queue   []announcement // not told yet
	telling bool           // the goroutine runs
}

type announcement struct {
	Transition
	told chan struct{} // closed when the observer has returned
}

// tell queues a transition and returns at once; the channel is closed when the observer has
// returned. A Standby replaces a Standby that is last in the queue, so that the queue stays
// short however often the cause changes while the observer is slow.
func (a *announcer) tell(transition Transition) (told <-chan struct{}) {
	next := announcement{transition, make(chan struct{})}
	if a.observer == nil {
		close(next.told)
		return next.told
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if last := len(a.queue) - 1; last >= 0 && transition.Phase == Standby && a.queue[last].Phase == Standby {
		a.queue[last].Transition = transition
		return a.queue[last].told
	}
	a.queue = append(a.queue, next)
	if !a.telling {
		a.telling = true
		a.tasks.Go(a.run)
	}
	return next.told
}

// run empties the queue. A panic of the observer is logged.
func (a *announcer) run() {
	for {
		a.mu.Lock()
		if len(a.queue) == 0 {
			a.telling = false
			a.mu.Unlock()
			return
		}
		next := a.queue[0]
		a.queue = a.queue[1:]
		a.mu.Unlock()
		// In a goroutine of its own, since it could end ours.
		if err := <-call(observerFunction, func() error { a.observer(next.Transition); return nil }); err != nil {
			a.logger.Error("the observer failed", "error", err)
		}
		close(next.told)
	}
}
