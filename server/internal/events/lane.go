package events

import (
	"context"
	"sync"

	"github.com/tenurelock/tenure/server/activity"
)

const (
	// maxQueued bounds the ordinary events that wait in a lane. maxRare is the room for those that each
	// log and each observer should have: others cannot fill it.
	maxQueued, maxRare = 8192, 1024
	// keptRoom is for how many events a lane keeps memory.
	keptRoom = 1024
)

// lane is the queue of events of one consumer. push is safe for concurrent use.
type lane struct {
	wake chan struct{}

	mu      sync.Mutex
	waiting []activity.Event
	rare    int    // of those that wait, in the room for rare ones
	leftOut uint64 // since the last that was queued
}

func newLane() *lane { return &lane{wake: make(chan struct{}, 1)} }

// push queues an event, or counts it if there is no room for it. It does not block, and calls nothing. A rare
// event that finds its room full takes the room of an ordinary one.
func (l *lane) push(e activity.Event, rare bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case rare && l.rare < maxRare:
		l.rare++
	case len(l.waiting)-l.rare >= maxQueued:
		l.leftOut++
		return
	}
	e.Lost, l.leftOut = l.leftOut, 0
	l.waiting = append(l.waiting, e)
	select {
	case l.wake <- struct{}{}:
	default:
	}
}

// take returns all events that wait. It takes the memory of the events that were taken before.
func (l *lane) take(spare []activity.Event) []activity.Event {
	clear(spare)
	l.mu.Lock()
	defer l.mu.Unlock()
	taken := l.waiting
	l.waiting, l.rare = spare[:0], 0
	return taken
}

// run passes events on until ctx ends, and then those that are left. It returns at the next event when
// givenUp is closed.
func (l *lane) run(ctx context.Context, givenUp <-chan struct{}, pass func(*activity.Event)) {
	var taken []activity.Event
	for running := true; running; {
		select {
		case <-l.wake:
		case <-ctx.Done():
			running = false
		}
		taken = l.take(taken)
		for i := range taken {
			select {
			case <-givenUp:
				return
			default:
			}
			pass(&taken[i])
		}
		if cap(taken) > keptRoom {
			taken = nil // a burst must not cost its memory for ever
		}
	}
}
