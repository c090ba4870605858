package election

import (
	"context"
	"errors"
	"time"

	"github.com/tenurelock/tenure/lease"
)

// standby is one call of Options.Standby.
type standby struct {
	stop context.CancelFunc // ends the context of the function
	done chan struct{}      // closed when the function has returned
}

// startStandby calls Options.Standby, if there is one. The caller must call stop.
func (r *run) startStandby(ctx context.Context) standby {
	ctx, cancel := context.WithCancel(ctx)
	s := standby{stop: cancel, done: make(chan struct{})}
	if r.options.Standby == nil {
		close(s.done)
		return s
	}
	returned := call("the standby function", func() error { return r.options.Standby(ctx) })
	r.tasks.Go(func() {
		defer close(s.done)
		err := <-returned
		if stopped := ctx.Err() != nil && errors.Is(err, context.Canceled); err != nil && !stopped {
			r.options.Logger.Error("the standby function failed", "lease", r.lease.Name(), "error", err)
		}
	})
	return s
}

// finish stops the function and waits for it before a term starts. ctx ends with the tenure.
// The error says why the term cannot start.
func (s standby) finish(ctx context.Context, tenure *lease.Tenure) error {
	s.stop()
	return awaitInTenure(ctx, s.done, tenure, errStandbyRuns)
}

// awaitInTenure waits for a function of the program until ctx ends, but no longer than the
// tenure lasts without a renewal: then it returns late. The other nodes wait for this one,
// which renews the tenure, to lead or to release the lease.
func awaitInTenure(ctx context.Context, done <-chan struct{}, tenure *lease.Tenure, late error) error {
	select {
	case <-done:
		return nil
	default:
	}
	patience := time.NewTimer(tenure.Remaining())
	defer patience.Stop()
	select {
	case <-done:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-patience.C:
		return late
	}
}
