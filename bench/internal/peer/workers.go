package peer

import (
	"context"
	"sync"
	"sync/atomic"
	"time"
)

// Workers performs an operation for each of times, from as many goroutines as may be in flight, and
// sets how long each took. It returns the first error, when all goroutines have ended.
func Workers(ctx context.Context, inFlight int, times []time.Duration, operation func(ctx context.Context, worker int) (time.Duration, error)) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var next atomic.Int64
	var working sync.WaitGroup
	for worker := range min(inFlight, len(times)) {
		working.Go(func() {
			for ctx.Err() == nil {
				i := next.Add(1) - 1
				if i >= int64(len(times)) {
					return
				}
				took, err := operation(ctx, worker)
				if err != nil {
					cancel(err)
					return
				}
				times[i] = took
			}
		})
	}
	working.Wait() // bounded: operations end with ctx
	return context.Cause(ctx)
}
