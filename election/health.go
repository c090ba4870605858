package election

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tenurelock/tenure/internal/loglimit"
	"github.com/tenurelock/tenure/internal/sleep"
)

// monitor calls the health check on its own schedule, and divides time into healthy and
// unhealthy periods. What this node does in a healthy period, campaigning or leading, runs
// under the context of the period.
type monitor struct {
	options *Options
	limit   loglimit.Limiter // of log lines about checks that fail
	logging atomic.Bool      // the Logger has one
	tasks   *sync.WaitGroup  // what Run waits for

	mu      sync.Mutex
	period  context.Context         // the present healthy period; nil while there is none
	end     context.CancelCauseFunc // of period
	vitals  vitals
	changed chan struct{} // closed when period begins or ends, and at the first result
}

// await returns the present healthy period: a context that ends with ctx, the context of
// run, or with a cause which matches ErrUnhealthy. If there is none it waits for the next, and calls
// waiting once with the reason when that is known. The error is the cause of ctx's end.
func (m *monitor) await(ctx context.Context, waiting func(cause error)) (context.Context, error) {
	reported := false
	for ctx.Err() == nil {
		if m.options.Health == nil {
			return ctx, nil // healthy forever
		}
		m.mu.Lock()
		period, cause, changed := m.period, m.vitals.cause, m.changed
		m.mu.Unlock()
		if period != nil {
			return period, nil
		}
		if cause != nil && !reported {
			reported = true
			waiting(cause)
		}
		select {
		case <-ctx.Done():
		case <-changed:
		}
	}
	return nil, context.Cause(ctx)
}

// run checks until ctx ends and the last check has returned.
func (m *monitor) run(ctx context.Context) {
	if m.options.Health == nil {
		return
	}
	m.checkOnce(ctx)
	for sleep.For(ctx, m.options.HealthEvery) {
		m.checkOnce(ctx)
	}
}

// checkOnce calls the check and reports the result, or a failure each time that the timeout
// passes. It returns when the check has returned, so that two calls do not overlap.
func (m *monitor) checkOnce(ctx context.Context) {
	timeout := m.options.HealthTimeout
	bounded, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	returned := call("the health check", func() error { return m.options.Health(bounded) })
	overdue := time.NewTimer(timeout)
	defer overdue.Stop()
	for late := false; ; {
		select {
		case err := <-returned:
			// The result of a late check is about the past.
			if !late && ctx.Err() == nil {
				m.report(ctx, err)
			}
			return
		case <-overdue.C:
			if ctx.Err() != nil {
				m.options.Logger.Error("Run has to end, and waits for the health check, which does not return")
			} else {
				m.report(ctx, fmt.Errorf("the health check has not returned in %v: %w", timeout, context.DeadlineExceeded))
			}
			late = true
			overdue.Reset(timeout)
		}
	}
}

// vitals say whether a node is healthy. They are a value: next is a pure function of a result.
type vitals struct {
	healthy bool
	cause   error // why it is not; nil before the first result
	failed  int   // checks in a row
}

// next returns the vitals after a check, of which so many in a row have to fail to make the node unhealthy.
func (v vitals) next(err error, failures int) vitals {
	if err == nil {
		return vitals{healthy: true}
	}
	v.failed = min(v.failed+1, failures)
	if !v.healthy || v.failed == failures {
		v.healthy, v.cause = false, fmt.Errorf("%w: %w", ErrUnhealthy, err)
	}
	return v
}

// report takes the result of one check: a period may begin or end.
func (m *monitor) report(ctx context.Context, err error) {
	if err != nil {
		m.log(ctx, err)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if err == nil {
		m.limit.Reset()
	}
	before := m.vitals
	m.vitals = before.next(err, m.options.HealthFailures)
	switch {
	case m.vitals.healthy && !before.healthy:
		m.period, m.end = context.WithCancelCause(ctx)
	case !m.vitals.healthy && before.healthy:
		m.end(m.vitals.cause)
		m.period = nil
	case m.vitals.cause == nil || before.cause != nil:
		return
	}
	close(m.changed)
	m.changed = make(chan struct{})
}

// log logs a check that failed, in a goroutine of its own: neither the end of a period nor the next
// check waits for a Logger. While the Logger has one, further ones are left out.
func (m *monitor) log(ctx context.Context, err error) {
	level := m.limit.Level(slog.LevelWarn, "")
	if !m.options.Logger.Enabled(ctx, level) || !m.logging.CompareAndSwap(false, true) {
		return
	}
	m.tasks.Go(func() {
		defer m.logging.Store(false)
		m.options.Logger.Log(ctx, level, "the health check failed", "error", err)
	})
}
