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
	queues  map[S][]chan struct{} // the waiting callers of each source, in order
	sources []S                   // those of queues, in the order of their turns
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
	turn := make(chan struct{})
	if !f.begin(source, turn) {
		return nil, ErrFull
	}
	select {
	case <-turn:
	case <-ctx.Done():
		if f.giveUp(source, turn) {
			return nil, context.Cause(ctx)
		}
	}
	release = sync.OnceFunc(f.next)
	if ctx.Err() != nil { // the turn began at the same time
		release()
		return nil, context.Cause(ctx)
	}
	return release, nil
}

// begin begins a turn, which closes its channel, or queues it. It reports false if too many wait.
func (f *Fair[S]) begin(source S, turn chan struct{}) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	queue, known := f.queues[source]
	switch {
	case f.busy < f.running:
		f.busy++
		close(turn)
		return true
	case f.waits >= f.waiting || len(queue) >= f.each(source):
		return false
	case !known:
		f.sources = append(f.sources, source)
	}
	f.queues[source] = append(queue, turn)
	f.waits++
	return true
}

// next ends a turn, and begins a turn of the source that has waited longest for one.
func (f *Fair[S]) next() {
	f.mu.Lock()
	defer f.mu.Unlock()
	for len(f.sources) > 0 {
		source := f.sources[0]
		f.sources = f.sources[1:]
		queue := f.queues[source]
		if len(queue) > 1 {
			f.queues[source] = queue[1:]
			f.sources = append(f.sources, source)
		} else {
			delete(f.queues, source)
		}
		if len(queue) > 0 { // else all have given up
			f.waits--
			close(queue[0])
			return
		}
	}
	f.busy--
}

// giveUp removes a caller from its queue. It reports false if the turn has begun already.
func (f *Fair[S]) giveUp(source S, turn chan struct{}) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	queue := f.queues[source]
	at := slices.Index(queue, turn)
	if at >= 0 {
		f.queues[source] = slices.Delete(queue, at, at+1)
		f.waits--
	}
	return at >= 0
}

// Waiting returns how many callers wait.
func (f *Fair[S]) Waiting() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.waits
}
