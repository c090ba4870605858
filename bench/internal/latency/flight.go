package latency

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tenurelock/tenure/bench/internal/async"
)

// arrival is a renewal that no goroutine waits for. It is used again for later ones: an open loop that
// makes a goroutine or garbage for each would measure itself.
type arrival struct {
	call   async.Call
	number int64 // of the present renewal
	known  bool  // to its flight
}

// freeList has the arrivals that may leave again.
type freeList struct {
	mu   sync.Mutex // guards free
	free []*arrival
}

func (f *freeList) put(a *arrival) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.free = append(f.free, a)
}

// take returns an arrival, or nil if there is none: the latest one, which is in a cache of the processor.
func (f *freeList) take() *arrival {
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

// flight has the renewals of one loop that are under way, with one bound for all.
type flight struct {
	ctx      context.Context // ends with the bound, or with the cause of end
	end      context.CancelCauseFunc
	underWay atomic.Int64
	working  sync.WaitGroup // has one for each that is under way
	release  func()         // frees the timer of the bound

	mu  sync.Mutex // guards all
	all []*arrival // all that have left at least once
}

// newFlight returns a flight that lasts for bound at most. The caller has to call wait, and then end.
func newFlight(ctx context.Context, bound time.Duration) *flight {
	f := &flight{}
	ctx, f.release = context.WithTimeout(ctx, bound)
	f.ctx, f.end = context.WithCancelCause(ctx)
	return f
}

// depart begins a renewal. The Done of its call has to call landed.
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

// wait returns when all renewals have landed. When the flight has ended, it cancels those that are under
// way, and returns the cause. From its call on only a Done may begin renewals.
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
