package attach

import (
	"context"
	"sync"

	"github.com/tenurelock/tenure/server/internal/envelope"
	"github.com/tenurelock/tenure/statestore"
)

// maxQueued bounds the notifications that wait for the broker, in bytes.
const maxQueued = 64 << 20

// pendingNotification is a notification that waits for the broker or its acknowledgement.
type pendingNotification struct {
	statestore.Notification
	queued uint64 // when, by clientLRU.count
}

// notificationQueue is the queue of notifications to the broker, for all clients. It is safe for
// concurrent use.
type notificationQueue struct {
	wake chan struct{}

	mu      sync.Mutex
	waiting []pendingNotification
	bytes   int64 // of waiting
}

func newNotificationQueue() *notificationQueue {
	return &notificationQueue{wake: make(chan struct{}, 1)}
}

// push queues a notification. It reports false if too many wait, and drops it then.
func (q *notificationQueue) push(notification pendingNotification) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	cost := envelope.NotificationCost(notification.Change)
	if q.bytes+cost > maxQueued {
		return false
	}
	q.bytes += cost
	q.waiting = append(q.waiting, notification)
	signalOne(q.wake)
	return true
}

// take removes the oldest notification.
func (q *notificationQueue) take() (pendingNotification, bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	first, ok := pop(&q.waiting)
	if ok {
		q.bytes -= envelope.NotificationCost(first.Change)
	}
	return first, ok
}

// pop removes the first item of a queue, and keeps no memory for it.
func pop[T any](queue *[]T) (first T, ok bool) {
	if len(*queue) == 0 {
		*queue = nil
		return first, false
	}
	var none T
	first, (*queue)[0] = (*queue)[0], none
	*queue = (*queue)[1:]
	return first, true
}

// forEach calls do with each item of a queue, in order, until ctx ends. wake has an item after one was added.
func forEach[T any](ctx context.Context, wake <-chan struct{}, next func() (T, bool), do func(T)) {
	for ctx.Err() == nil {
		if item, ok := next(); ok {
			do(item)
			continue
		}
		select {
		case <-ctx.Done():
		case <-wake:
		}
	}
}

// clear removes all.
func (q *notificationQueue) clear() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.waiting, q.bytes = nil, 0
}
