package election

import (
	"log/slog"
	"sync"
)

// announcer tells the observer of transitions, one at a time and in order, in a goroutine
// that lasts while there is something to tell. Its methods are called by one goroutine.
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

// tell returns at once, and a channel that is closed when the observer has returned.
// Of Standbys that follow one another the latest replaces those that the observer was not
// told yet: while it is slow, what keeps the node from the lease may change any number of
// times.
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

// run tells what is in the queue. An observer that panics is reported.
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
