// Package priority is a priority queue whose items know their places in it. So an item in the middle
// leaves, or moves when its order has changed, without a search: both take a time that grows with the
// logarithm of the length.
//
// It is container/heap with types. Functions, and not methods of the items, give the order and the place,
// so one type can be in two queues with two orders.
package priority

import "container/heap"

// Queue holds pointers to T. [New] makes one; a nil Queue is empty, and only Push panics on it. It is not
// safe for concurrent use. No method allocates, except Push where the queue gets longer than it ever was.
type Queue[T any] struct{ items items[T] }

// New returns an empty queue. before reports whether a leaves before b. place returns the variable in
// which an item keeps its place: the queue sets it, to -1 when the item has left. Two queues that share
// items need two such variables. Neither function may call the queue.
func New[T any](before func(a, b *T) bool, place func(*T) *int) *Queue[T] {
	return &Queue[T]{items[T]{before: before, place: place}}
}

// Len returns how many items there are.
func (q *Queue[T]) Len() int {
	if q == nil {
		return 0
	}
	return len(q.items.all)
}

// First returns the item that leaves first, or nil if there is none.
func (q *Queue[T]) First() *T {
	if q.Len() == 0 {
		return nil
	}
	return q.items.all[0]
}

// Has reports whether an item is in this queue.
func (q *Queue[T]) Has(item *T) bool {
	if q == nil {
		return false
	}
	at := *q.items.place(item)
	return 0 <= at && at < len(q.items.all) && q.items.all[at] == item
}

// Push adds an item, which must not be in the queue.
func (q *Queue[T]) Push(item *T) { heap.Push(&q.items, item) }

// Pop removes and returns the item that leaves first, or returns nil if there is none.
func (q *Queue[T]) Pop() *T {
	if q.Len() == 0 {
		return nil
	}
	return heap.Pop(&q.items).(*T)
}

// Remove removes an item, if it is in the queue.
func (q *Queue[T]) Remove(item *T) {
	if q.Has(item) {
		heap.Remove(&q.items, *q.items.place(item))
	}
}

// Fix puts an item in its place after its order has changed, if it is in the queue.
func (q *Queue[T]) Fix(item *T) {
	if q.Has(item) {
		heap.Fix(&q.items, *q.items.place(item))
	}
}

// Init puts all items in their places, after the order of any number of them has changed.
func (q *Queue[T]) Init() {
	if q != nil {
		heap.Init(&q.items)
	}
}

// Items returns the items, in no order. The slice is the queue's own: it must not be changed, and it is
// valid until the queue changes.
func (q *Queue[T]) Items() []*T {
	if q == nil {
		return nil
	}
	return q.items.all
}

// items implements heap.Interface.
type items[T any] struct {
	all    []*T
	before func(a, b *T) bool
	place  func(*T) *int
}

func (i *items[T]) Len() int           { return len(i.all) }
func (i *items[T]) Less(a, b int) bool { return i.before(i.all[a], i.all[b]) }

func (i *items[T]) Swap(a, b int) {
	i.all[a], i.all[b] = i.all[b], i.all[a]
	*i.place(i.all[a]), *i.place(i.all[b]) = a, b
}

func (i *items[T]) Push(item any) {
	*i.place(item.(*T)) = len(i.all)
	i.all = append(i.all, item.(*T))
}

func (i *items[T]) Pop() any {
	last := len(i.all) - 1
	item := i.all[last]
	i.all[last] = nil // it may be garbage from now on
	i.all = i.all[:last]
	*i.place(item) = -1
	return item
}
