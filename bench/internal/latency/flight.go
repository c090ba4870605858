package latency

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tenurelock/tenure/internal/async"
)

// arrival is a renewal that no goroutine waits for. It is used again for later ones: an open loop that
// makes a goroutine or garbage for each would measure itself.
type arrival struct {
	call   async.Call
	number int64 // of the present renewal
	known  bool  // to its flight
}

// arrivals are those that may leave again.
type arrivals struct {
	mu   sync.Mutex // guards free
	free []*arrival
}

func (f *arrivals) put(a *arrival) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.free = append(f.free, a)
}

// take returns nil if there is none. The latest that was put comes first: it is in the cache.
func (f *arrivals) take() *arrival {
	f.mu.Lock()
	defer f.mu.Unlock()
	last := len(f.free) - 1
	if last < 0 {
		return nil
	}
	a := f.free[last]
	f.free = f.free[:last]
	return a
}

// flight is the renewals of one loop, with one bound for all.
type flight struct {
	ctx      context.Context // ends with the bound, or with the cause of end
	end      context.CancelCauseFunc
	underWay atomic.Int64
	working  sync.WaitGroup // has one for each that is under way
	release  func()

	mu  sync.Mutex // guards all
	all []*arrival // that have left at least once
}

// newFlight returns a flight that ends after a time. The caller calls end, and wait before that.
func newFlight(ctx context.Context, bound time.Duration) *flight {
	f := &flight{}
	ctx, f.release = context.WithTimeout(ctx, bound)
	f.ctx, f.end = context.WithCancelCause(ctx)
	return f
}

// depart begins a renewal. The Done of its call is to call landed.
func (f *flight) depart(a *arrival, begin func(*async.Call)) {
	if !a.known {
		a.known = true
		f.mu.Lock()
		f.all = append(f.all, a)
		f.mu.Unlock()
	}
	f.underWay.Add(1)
	f.working.Add(1)
	begin(&a.call)
	if f.ctx.Err() != nil { // the flight may have ended before there was something to cancel
		a.call.Cancel(context.Cause(f.ctx))
	}
}

func (f *flight) landed() {
	f.underWay.Add(-1)
	f.working.Done()
}

// wait waits until all renewals have landed, or canceled them when the flight has ended. It returns why
// the flight has ended, or nil. After its call only a Done may begin renewals.
func (f *flight) wait() error {
	defer f.release()
	stop := context.AfterFunc(f.ctx, func() {
		f.mu.Lock()
		defer f.mu.Unlock()
		for _, a := range f.all {
			a.call.Cancel(context.Cause(f.ctx))
		}
	})
	defer stop()
	f.working.Wait() // bounded: the end of the flight cancels what is under way, and ctx has a bound
	return context.Cause(f.ctx)
}
