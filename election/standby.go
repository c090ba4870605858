package election

import (
	"context"
	"errors"
	"time"

	"github.com/tenurelock/tenure/lease"
)

// standby is one call of Options.Standby. The zero standby has returned.
type standby struct {
	cancel context.CancelFunc
	done   chan struct{} // closed when the function has returned; nil if it was not called
}

// startStandby calls Options.Standby, if there is one. The caller must call stop and wait.
func (e *Elector) startStandby(ctx context.Context) standby {
	if e.options.Standby == nil {
		return standby{}
	}
	ctx, cancel := context.WithCancel(ctx)
	s := standby{cancel: cancel, done: make(chan struct{})}
	returned := call(standbyFunction, func() error { return e.options.Standby(ctx) })
	go func() {
		defer close(s.done)
		err := <-returned
		if ctx.Err() != nil && errors.Is(err, context.Canceled) {
			return // it returned because its context ended
		}
		if err != nil {
			e.options.Logger.Error("the standby function failed", "election", e.lease.Name(), "error", err)
		}
	}()
	return s
}

// stop ends the context of the function.
func (s standby) stop() {
	if s.cancel != nil {
		s.cancel()
	}
}

// wait waits until the function has returned.
func (s standby) wait() {
	if s.done != nil {
		<-s.done
	}
}

// returned reports whether the function has returned.
func (s standby) returned() bool {
	if s.done == nil {
		return true
	}
	select {
	case <-s.done:
		return true
	default:
		return false
	}
}

// finish stops the function and waits for it before a term starts. ctx ends with the tenure.
// The error says why the term cannot start.
//
// The tenure is renewed meanwhile, so the wait is bounded: a node that neither leads nor
// releases the lease would be worse than a dead one.
func (s standby) finish(ctx context.Context, tenure *lease.Tenure) error {
	s.stop()
	if !s.returned() {
		patience := time.NewTimer(tenure.Remaining())
		defer patience.Stop()
		select {
		case <-s.done:
		case <-ctx.Done():
		case <-patience.C:
			return errStandbyRuns
		}
	}
	return context.Cause(ctx)
}
