// Package async makes requests that their caller does not wait for. Each has a goroutine, as the
// renewals of tenures have.
package async

import (
	"context"
	"sync"
)

// Call is one request at a time.
type Call struct {
	// Done is called once for each Start, in the goroutine of the request. From its call on the Call can be
	// used again; Done may do so itself.
	Done func(Result)

	mu     sync.Mutex
	cancel context.CancelCauseFunc // of the request under way, or of an earlier one
}

// Result is what a request returned.
type Result struct {
	// Err is nil after a success.
	Err error
}

// Start calls request in a goroutine.
func (c *Call) Start(request func(context.Context) error) {
	ctx, cancel := context.WithCancelCause(context.Background())
	c.mu.Lock()
	c.cancel = cancel
	c.mu.Unlock()
	go func() {
		defer cancel(nil)
		c.Done(Result{request(ctx)})
	}()
}

// Cancel ends the context of the request under way because of cause.
func (c *Call) Cancel(cause error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.cancel != nil {
		c.cancel(cause)
	}
}
