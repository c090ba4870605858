// Package waitingroom lets a few run at once, and the others wait in fair turns.
//
// What a server must do before it knows a client, such as comparing a password, is work
// that anyone can ask for. A [Room] bounds how much of it runs at the same time, how many
// wait for it, and how many of these come from one source. Sources take turns: a client
// waits for at most one turn of each other source for each turn of its own source, however
// many a source has waiting.
//
//	leave, err := room.Enter(ctx, source)
//	if err != nil {
//		return err // full, or ctx is over
//	}
//	defer leave()
//
// It does not interrupt what runs, and it does not know sources apart: what a source is
// its user says, such as the network that an address belongs to.
package waitingroom

import (
	"context"
	"errors"
	"sync"
)

// ErrFull says that too many wait already.
var ErrFull = errors.New("too many wait already")

// Room is described in the package comment. S names a source. Its methods are safe for
// concurrent use. It has no goroutines.
type Room[S comparable] struct {
	running, waiting int // bounds
	each             func(S) int

	mu      sync.Mutex
	busy    int
	waits   int
	queues  map[S]*queue
	sources []S // those with a queue, in the order of their turns
}

// queue is what waits of one source, in the order in which it came. It is never empty.
type queue struct{ turns []chan struct{} }

// New returns a Room in which as many run at once as running says, which is 1 at least. As
// many as waiting says may wait for that, and of one source as many as each says of it.
func New[S comparable](running, waiting int, each func(source S) int) *Room[S] {
	return &Room[S]{running: max(1, running), waiting: waiting, each: each, queues: make(map[S]*queue)}
}

// Enter waits until it is the caller's turn, and returns a function that ends the turn. It
// returns ErrFull at once where too many wait, and the cause of ctx if that ends before
// the turn has come.
func (r *Room[S]) Enter(ctx context.Context, source S) (leave func(), err error) {
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	turn, err := r.queue(source)
	if err != nil {
		return nil, err
	}
	if turn == nil {
		return sync.OnceFunc(r.next), nil
	}
	select {
	case <-turn:
		if ctx.Err() != nil { // both had come
			r.next()
			return nil, context.Cause(ctx)
		}
	case <-ctx.Done():
		if r.giveUp(source, turn) {
			return nil, context.Cause(ctx)
		}
		r.next() // the turn came at the same time
		return nil, context.Cause(ctx)
	}
	return sync.OnceFunc(r.next), nil
}

// queue takes a place, or returns nil if it is the caller's turn already.
func (r *Room[S]) queue(source S) (turn chan struct{}, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.busy < r.running {
		r.busy++
		return nil, nil
	}
	q := r.queues[source]
	waits := 0
	if q != nil {
		waits = len(q.turns)
	}
	if r.waits >= r.waiting || waits >= r.each(source) {
		return nil, ErrFull
	}
	if q == nil {
		q = new(queue)
		r.queues[source] = q
		r.sources = append(r.sources, source)
	}
	turn = make(chan struct{})
	q.turns = append(q.turns, turn)
	r.waits++
	return turn, nil
}

// next ends a turn and begins that of the source that has waited longest for one.
func (r *Room[S]) next() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.sources) == 0 {
		r.busy--
		return
	}
	source := r.sources[0]
	r.sources = r.sources[1:]
	q := r.queues[source]
	turn := q.turns[0]
	q.turns = q.turns[1:]
	r.waits--
	if len(q.turns) == 0 {
		delete(r.queues, source)
	} else {
		r.sources = append(r.sources, source)
	}
	close(turn)
}

// giveUp takes back a place, and reports false if its turn has come already.
func (r *Room[S]) giveUp(source S, turn chan struct{}) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	q := r.queues[source]
	if q == nil {
		return false
	}
	for i := range q.turns {
		if q.turns[i] != turn {
			continue
		}
		q.turns = append(q.turns[:i], q.turns[i+1:]...)
		r.waits--
		if len(q.turns) == 0 {
			delete(r.queues, source)
			for i := range r.sources {
				if r.sources[i] == source {
					r.sources = append(r.sources[:i], r.sources[i+1:]...)
					break
				}
			}
		}
		return true
	}
	return false
}

// Waiting returns how many wait.
func (r *Room[S]) Waiting() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.waits
}
