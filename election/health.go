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
	cause   error                   // why there is none; nil before the first result
	failed  int                     // checks in a row
	changed chan struct{}           // closed when period begins or ends, and at the first result
}

// await returns the present healthy period: a context that ends with ctx, the context of
// run, or with a cause which matches ErrUnhealthy. If there is none it waits for the next, and calls
// waiting once with the reason when that is known. The error is the cause of ctx's end.
func (m *monitor) await(ctx context.Context, waiting func(cause error)) (context.Context, error) {
	if m.options.Health == nil {
		return ctx, nil // healthy forever
	}
	reported := false
	for {
		m.mu.Lock()
		period, cause, changed := m.period, m.cause, m.changed
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
			return nil, context.Cause(ctx)
		case <-changed:
		}
	}
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

// report takes the result of one check: a period may begin or end.
func (m *monitor) report(ctx context.Context, err error) {
	if err != nil {
		m.log(ctx, err)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if err == nil {
		m.failed, m.cause = 0, nil
		m.limit.Reset()
		if m.period == nil {
			m.period, m.end = context.WithCancelCause(ctx)
			m.changeLocked()
		}
		return
	}
	m.failed++
	if m.period != nil && m.failed < m.options.HealthFailures {
		return
	}
	known := m.cause != nil
	m.cause = fmt.Errorf("%w: %w", ErrUnhealthy, err)
	if m.period != nil {
		m.end(m.cause)
		m.period = nil
	}
	if !known {
		m.changeLocked()
	}
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

func (m *monitor) changeLocked() {
	close(m.changed)
	m.changed = make(chan struct{})
}
