package election

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/tenurelock/tenure/hlc"
	"github.com/tenurelock/tenure/lease"
)

// observerQueue has the transitions that the Logger and the observer get, one at a time and in
// order. A goroutine of Run calls them while any are queued: neither may hold up a node that holds
// the lease. One goroutine adds.
type observerQueue struct {
	logged string // the latest phase that was logged, with its cause; only deliver uses it

	mu         sync.Mutex
	queue      []queuedTransition // the observer has not got them yet
	delivering bool               // the goroutine runs
}

type queuedTransition struct {
	Transition
	delivered chan struct{} // closed when the observer has returned
}

// add queues a transition and returns at once. The channel is closed when the Logger and the observer
// have returned. A Standby replaces a Standby at the end of the queue, so the queue stays
// short however often the cause changes while the observer is slow.
func (r *run) add(transition Transition) (delivered <-chan struct{}) {
	next := queuedTransition{transition, make(chan struct{})}
	if r.options.Observer == nil && !r.options.Logger.Enabled(context.Background(), slog.LevelInfo) {
		close(next.delivered)
		return next.delivered
	}
	q := &r.observer
	q.mu.Lock()
	defer q.mu.Unlock()
	if last := len(q.queue) - 1; last >= 0 && transition.Phase == Standby && q.queue[last].Phase == Standby {
		q.queue[last].Transition = transition
		return q.queue[last].delivered
	}
	q.queue = append(q.queue, next)
	if !q.delivering {
		q.delivering = true
		r.tasks.Go(r.deliver)
	}
	return next.delivered
}

// deliver empties the queue. A panic in the observer is logged.
func (r *run) deliver() {
	for q := &r.observer; ; {
		q.mu.Lock()
		if len(q.queue) == 0 {
			q.delivering = false
			q.mu.Unlock()
			return
		}
		next := q.queue[0]
		q.queue = q.queue[1:]
		q.mu.Unlock()
		r.log(next.Transition)
		if r.options.Observer != nil {
			// call runs the observer in a goroutine of its own: the observer could end this one.
			if err := <-call("the observer", func() error { r.options.Observer(next.Transition); return nil }); err != nil {
				r.options.Logger.Error("the observer failed", "lease", r.lease.Name(), "error", err)
			}
		}
		close(next.delivered)
	}
}

// enter sets the phase and queues it for the observer. It does not wait for the observer:
// the channel is closed when that has returned.
func (r *run) enter(phase Phase, token hlc.Token, cause error) (delivered <-chan struct{}) {
	transition := Transition{Phase: phase, At: time.Now(), Token: token, Cause: cause}
	r.set(func() {
		r.status = Status{Phase: phase, Since: transition.At, Term: r.status.Term, Token: token, Cause: cause}
	})
	return r.add(transition)
}

// log logs whether this node leads, and why not, once for each change. Package lease logs which
// holder a node waits for.
func (r *run) log(transition Transition) {
	text := map[Phase]string{Standby: "standing by", Active: "leading", Draining: "no longer leading"}[transition.Phase]
	attributes := []any{"lease", r.lease.Name()}
	if transition.Phase == Active {
		attributes = append(attributes, "token", transition.Token.String())
	}
	if transition.Cause != nil {
		attributes = append(attributes, "cause", transition.Cause)
	}
	if line := fmt.Sprint(text, attributes); text != "" && line != r.observer.logged {
		r.observer.logged = line
		r.options.Logger.Info(text, attributes...)
	}
}

// standBy enters Standby and waits for the observer: no other node waits for this one then.
func (r *run) standBy(cause error) { <-r.enter(Standby, hlc.Token{}, cause) }

// enterAndWait enters a phase that comes before the leader function, and waits for the
// observer. The error says why the term cannot go on.
func (r *run) enterAndWait(ctx context.Context, tenure *lease.Tenure, phase Phase, token hlc.Token) error {
	return awaitInTenure(ctx, r.enter(phase, token, nil), tenure, errObserverRuns)
}
