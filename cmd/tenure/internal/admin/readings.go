package admin

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"sync"
	"time"

	"github.com/tenurelock/tenure/internal/sleep"
)

const (
	// readingRest is how long no reading is made after one, as a multiple of the time that it took:
	// whatever clients ask, readings take a tenth of one processor. maxRest bounds the rest, because
	// on a busy machine a reading takes long and costs little.
	readingRest = 9
	maxRest     = time.Second
)

// reading is what the page shows at one time. Requests share it, and do not change it.
type reading struct {
	now   time.Time
	state State
	store Store
	// texts of the state as JSON, if a request asked for them: see view.read.
	answer, event []byte
}

// form is what a request needs of a reading, beside the state.
type form uint8

const (
	asState  form = 0
	asAnswer form = 1 << iota // reading.answer
	asEvent                   // reading.event
)

var errStopping = errors.New("this process stops")

// readings makes readings, one at a time. Each request gets one that was begun after the request
// came, and all that wait get the same one: ten readers cost as much as one.
type readings struct {
	read   func(now time.Time, forms form) (*reading, error)
	ending <-chan struct{}

	mu   sync.Mutex
	next *nextReading  // the one that has not begun; nil: no request waits for it
	wake chan struct{} // has room for one; next is not nil
}

// nextReading is a reading that requests wait for. What is left of it is set when done is closed.
type nextReading struct {
	forms   form
	done    chan struct{}
	reading *reading
	err     error
}

func newReadings(read func(time.Time, form) (*reading, error), ending <-chan struct{}) *readings {
	return &readings{read: read, ending: ending, wake: make(chan struct{}, 1)}
}

// fresh returns a reading that begins now or later. It waits for that until ctx or the server ends.
func (r *readings) fresh(ctx context.Context, forms form) (*reading, error) {
	next := r.join(forms)
	select {
	case <-next.done:
		return next.reading, next.err
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	case <-r.ending:
		return nil, errStopping
	}
}

func (r *readings) join(forms form) *nextReading {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.next == nil {
		r.next = &nextReading{done: make(chan struct{})}
		r.wake <- struct{}{} // there is room: run takes it before it takes next
	}
	r.next.forms |= forms
	return r.next
}

// run makes readings while requests wait for one, until ctx ends.
func (r *readings) run(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-r.wake:
		}
		r.mu.Lock()
		next := r.next
		r.next = nil
		r.mu.Unlock()
		begun := time.Now()
		next.reading, next.err = r.attempt(begun, next.forms)
		close(next.done)
		if !sleep.For(ctx, min(readingRest*time.Since(begun), maxRest)) {
			return
		}
	}
}

// attempt makes one reading. A fault in it must not end the store that runs in this process.
func (r *readings) attempt(now time.Time, forms form) (made *reading, err error) {
	defer func() {
		if fault := recover(); fault != nil {
			err = fmt.Errorf("the state could not be read: panic: %v\n%s", fault, debug.Stack())
		}
	}()
	return r.read(now, forms)
}
