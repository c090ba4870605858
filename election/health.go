package election

import (
	"context"
	"fmt"

	"github.com/tenurelock/tenure/internal/sleep"
)

// The health check divides time into healthy and unhealthy periods. What this node does in a healthy
// period, campaigning or leading, runs under the context of the period. That ends with the context of
// Run, or with a cause that matches ErrUnhealthy.

// awaitHealthy waits for a healthy period. If there is none, it enters Standby with the
// reason when that is known, and waits for the next. The error is the cause of ctx's end.
func (r *run) awaitHealthy(ctx context.Context) error {
	for ctx.Err() == nil {
		if r.healthy != nil && r.healthy.Err() == nil {
			return nil
		}
		if r.healthy != nil {
			r.standBy(context.Cause(r.healthy))
		}
		select {
		case <-ctx.Done():
		case r.healthy = <-r.periods:
		}
	}
	return context.Cause(ctx)
}

// checkHealth calls the check until ctx ends, and sends each period when it begins. If the first check
// fails, it sends a period that is over. It returns when the last check has returned.
func (r *run) checkHealth(ctx context.Context) {
	if r.options.Health == nil {
		r.periods <- ctx // healthy forever
		return
	}
	var latest struct {
		period context.Context // nil: no check has come to its end
		end    context.CancelCauseFunc
	}
	for more := true; more; more = sleep.For(ctx, r.options.HealthEvery) {
		returned, err := r.check(ctx)
		begins := latest.period == nil || err == nil && latest.period.Err() != nil
		if begins {
			latest.period, latest.end = context.WithCancelCause(ctx)
		}
		if err != nil && latest.period.Err() == nil {
			latest.end(fmt.Errorf("%w: %w", ErrUnhealthy, err))
			r.options.Logger.Warn("the health check failed", "error", err)
		}
		if begins {
			select {
			case <-r.periods: // it is over
			default:
			}
			r.periods <- latest.period
		}
		<-returned // two calls do not overlap, and the result of a late one is about the past
	}
}

// check calls the check once, and waits for it until HealthTimeout has passed or ctx ends. The channel
// is closed when it has returned.
func (r *run) check(ctx context.Context) (returned <-chan error, err error) {
	ctx, cancel := context.WithTimeout(ctx, r.options.HealthTimeout)
	defer cancel()
	returned = r.call("the health check", false, func() error { return r.options.Health(ctx) })
	select {
	case err = <-returned:
	case <-ctx.Done():
		err = fmt.Errorf("the health check has not returned in %v: %w", r.options.HealthTimeout, context.Cause(ctx))
	}
	return returned, err
}
