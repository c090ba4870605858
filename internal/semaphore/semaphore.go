// Package semaphore has a counting semaphore that is fair among sources.
//
// Any client can make a server do the work that comes before authentication, such as comparing a
// password. A [Fair] bounds how much of this work runs at the same time, how many callers wait
// for it, and how many of these come from one source. Sources take turns: for each turn of its own
// source, a caller waits for at most one turn of each other source, however many callers these have.
//
//	release, err := semaphore.Acquire(ctx, source)
//	if err != nil {
//		return err // full, or ctx is over
//	}
//	defer release()
//
// It does not interrupt callers. The caller decides what a source is, for example the network of
// an address.
package semaphore

import (
	"context"
	"errors"
	"slices"
	"sync"
)

// ErrFull is the error of Acquire if too many callers wait.
var ErrFull = errors.New("too many wait already")

// Fair is a semaphore as the package comment describes it. S identifies a source. Its methods are
// safe for concurrent use. It has no goroutines.
type Fair[S comparable] struct {
	running, waiting int // bounds
	each             func(S) int

	mu      sync.Mutex
	busy    int
	waits   int
	queues  map[S][]chan struct{} // the waiting callers of each source, in order; none is empty
	sources []S                   // with waiting callers, in the order of their turns
}

// New returns a Fair that as many callers may hold at once as running says, at least 1. As many more
// may wait for it as waiting says, and of one source at most each(source).
func New[S comparable](running, waiting int, each func(source S) int) *Fair[S] {
	return &Fair[S]{running: max(1, running), waiting: waiting, each: each, queues: make(map[S][]chan struct{})}
}

// Acquire waits for the caller's turn, and returns a function that ends the turn; only its first
// call has an effect. Acquire returns ErrFull at once if too many callers wait, and the cause
// of ctx if ctx ends before the turn.
func (f *Fair[S]) Acquire(ctx context.Context, source S) (release func(), err error) {
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	turn, err := f.queue(source)
	if err != nil {
		return nil, err
	}
	if turn == nil {
		return sync.OnceFunc(f.next), nil
	}
	select {
	case <-turn:
	case <-ctx.Done():
		if f.giveUp(source, turn) {
			return nil, context.Cause(ctx)
		}
	}
	if ctx.Err() != nil { // the turn began at the same time
		f.next()
		return nil, context.Cause(ctx)
	}
	return sync.OnceFunc(f.next), nil
}

// queue queues the caller, or returns nil if it is the caller's turn already.
func (f *Fair[S]) queue(source S) (turn chan struct{}, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.busy < f.running {
		f.busy++
		return nil, nil
	}
	waits := len(f.queues[source])
	if f.waits >= f.waiting || waits >= f.each(source) {
		return nil, ErrFull
	}
	if waits == 0 {
		f.sources = append(f.sources, source)
	}
	turn = make(chan struct{})
	f.queues[source] = append(f.queues[source], turn)
	f.waits++
	return turn, nil
}

// next ends a turn, and begins a turn of the source that has waited longest for one.
func (f *Fair[S]) next() {
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(f.sources) == 0 {
		f.busy--
		return
	}
	source := f.sources[0]
	f.sources = f.sources[1:]
	turn := f.queues[source][0]
	if f.removeLocked(source, 0) > 0 {
		f.sources = append(f.sources, source)
	}
	close(turn)
}

// giveUp removes a caller from its queue. It reports false if the turn has begun already.
func (f *Fair[S]) giveUp(source S, turn chan struct{}) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	at := slices.Index(f.queues[source], turn)
	if at < 0 {
		return false
	}
	if f.removeLocked(source, at) == 0 {
		f.sources = slices.DeleteFunc(f.sources, func(other S) bool { return other == source })
	}
	return true
}

// removeLocked removes a caller from the queue of its source, and returns how many remain there.
func (f *Fair[S]) removeLocked(source S, at int) (left int) {
	f.waits--
	queue := slices.Delete(f.queues[source], at, at+1)
	f.queues[source] = queue
	if len(queue) == 0 {
		delete(f.queues, source)
	}
	return len(queue)
}

// Waiting returns how many callers wait.
func (f *Fair[S]) Waiting() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.waits
}
