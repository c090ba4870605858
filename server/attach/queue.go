package attach

import (
	"context"
	"sync"

	"github.com/tenurelock/tenure/internal/wake"
)

// queue is what waits to be sent, in order. It is safe for concurrent use.
type queue[T any] struct {
	wake chan struct{} // has an item after one was added

	mu    sync.Mutex
	items []T
}

func newQueue[T any]() *queue[T] { return &queue[T]{wake: make(chan struct{}, 1)} }

func (q *queue[T]) push(item T) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.items = append(q.items, item)
	wake.Up(q.wake)
}

// pop removes the oldest item, and keeps no memory for it.
func (q *queue[T]) pop() (first T, ok bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if len(q.items) == 0 {
		q.items = nil
		return first, false
	}
	var none T
	first, q.items[0] = q.items[0], none
	q.items = q.items[1:]
	return first, true
}

// drain removes all items, and calls do with each.
func (q *queue[T]) drain(do func(T)) {
	for item, ok := q.pop(); ok; item, ok = q.pop() {
		do(item)
	}
}

// serve calls do with each item, in order, until ctx ends.
func (q *queue[T]) serve(ctx context.Context, do func(T)) {
	for ctx.Err() == nil {
		if item, ok := q.pop(); ok {
			do(item)
			continue
		}
		select {
		case <-ctx.Done():
		case <-q.wake:
		}
	}
}
