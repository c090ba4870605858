package attach

import (
	"errors"
	"log/slog"
	"net"
	"time"

	"github.com/tenurelock/tenure/internal/loglimit"
)

const (
	// outageRepeat and outageRepeatMax are how long an outage lasts before the log repeats why: first,
	// and at most.
	outageRepeat    = 30 * time.Second
	outageRepeatMax = 15 * time.Minute
)

// outage logs why a store is not attached: at once, when the reason is another one, and now and then with the
// number of attempts. A store may try for days, ten times a minute. One goroutine uses it.
type outage struct {
	logger *slog.Logger
	broker string

	lines    loglimit.Limiter
	since    time.Time // of the first failure
	attempts int
}

func newOutage(logger *slog.Logger, broker string) *outage {
	return &outage{logger: logger, broker: broker, lines: loglimit.Limiter{Min: outageRepeat, Max: outageRepeatMax}}
}

// failed logs a failed attempt, or counts it.
func (o *outage) failed(err error) {
	now := time.Now()
	if o.attempts++; o.attempts == 1 {
		o.since = now
	}
	if o.lines.Due(reasonOf(err), now) {
		o.logger.Warn("not attached; will try again", "broker", o.broker, "error", err,
			"attempts", o.attempts, "for", now.Sub(o.since).Round(time.Second))
	}
}

// over logs that the store is attached, if it was not.
func (o *outage) over() {
	if o.attempts > 0 {
		o.logger.Warn("attached after an outage", "broker", o.broker, "attempts", o.attempts,
			"outage", time.Since(o.since).Round(time.Millisecond))
	}
	o.attempts = 0
	o.lines.Reset()
}

// reasonOf returns the text of an error without what differs each time: the local port.
func reasonOf(err error) string {
	var operation *net.OpError
	if errors.As(err, &operation) && operation.Err != nil {
		return operation.Op + ": " + operation.Err.Error()
	}
	return err.Error()
}
