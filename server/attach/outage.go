package attach

import (
	"errors"
	"log/slog"
	"net"
	"time"
)

const (
	// outageRepeat and outageRepeatMax are how long an outage lasts before the log repeats why: first,
	// and at most.
	outageRepeat    = 30 * time.Second
	outageRepeatMax = 15 * time.Minute
)

// outage logs why a store is not attached: at once, when the reason changes, and now and then with the
// number of attempts. A store may try for days, ten times a minute. One goroutine uses it.
type outage struct {
	logger *slog.Logger
	broker string

	reason   string    // of the latest failure, see reasonOf; empty: the store is attached
	since    time.Time // of the first
	attempts int
	next     time.Time     // when the log repeats the reason
	pause    time.Duration // until then
}

// failed logs a failed attempt, or counts it.
func (o *outage) failed(err error) {
	now := time.Now()
	if o.attempts == 0 {
		o.since = now
	}
	o.attempts++
	reason := reasonOf(err)
	switch {
	case reason != o.reason:
		o.reason, o.pause = reason, outageRepeat
		o.logger.Warn("not attached; will try again", "broker", o.broker, "error", err)
	case !now.Before(o.next):
		o.pause = min(2*o.pause, outageRepeatMax)
		o.logger.Warn("still not attached; will try again", "broker", o.broker, "error", err,
			"attempts", o.attempts, "for", now.Sub(o.since).Round(time.Second))
	default:
		return
	}
	o.next = now.Add(o.pause)
}

// over logs that the store is attached, if it was not.
func (o *outage) over() {
	if o.attempts > 0 {
		o.logger.Warn("attached after an outage", "broker", o.broker, "attempts", o.attempts, "outage", time.Since(o.since).Round(time.Millisecond))
	}
	*o = outage{logger: o.logger, broker: o.broker}
}

// reasonOf returns the text of an error without what differs each time: the local port.
func reasonOf(err error) string {
	var operation *net.OpError
	if errors.As(err, &operation) && operation.Err != nil {
		return operation.Op + ": " + operation.Err.Error()
	}
	return err.Error()
}
