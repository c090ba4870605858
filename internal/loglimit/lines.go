package loglimit

import (
	"context"
	"log/slog"
	"slices"
	"sync"
	"time"
)

const (
	// Burst is how many Lines are written at once.
	Burst = 10
	// Interval is how often one is written after that.
	Interval = time.Second
)

// Lines are one kind of line of a log: Burst of them at once, then one in each Interval, which says how
// many were left out since the line before. Close writes the count of the rest.
//
// Its methods are safe for concurrent use. They do not hold a lock while they write to the log.
type Lines struct {
	logger  *slog.Logger
	level   slog.Level
	message string
	last    time.Time // when a Fair used it last, which guards it

	mu      sync.Mutex
	credit  int       // lines that may be written now
	earned  time.Time // when the credit last grew
	omitted int       // lines left out since the last written one
}

// NewLines returns the Lines with a message. The caller must close them.
func NewLines(logger *slog.Logger, level slog.Level, message string) *Lines {
	return &Lines{logger: logger, level: level, message: message, credit: Burst, earned: time.Now()}
}

// Log writes the message with attributes, or counts it.
func (l *Lines) Log(attributes ...any) {
	if !l.logger.Enabled(context.Background(), l.level) {
		return
	}
	omitted, ok := l.admit()
	if omitted > 0 {
		attributes = append(slices.Clip(attributes), "omitted", omitted)
	}
	if ok {
		l.logger.Log(context.Background(), l.level, l.message, attributes...)
	}
}

// admit reports whether a line may be written now, and how many were left out before it; otherwise it counts the line.
func (l *Lines) admit() (omitted int, ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	grown := time.Since(l.earned) / Interval
	l.credit = int(min(time.Duration(l.credit)+grown, Burst))
	l.earned = l.earned.Add(grown * Interval)
	if l.credit == 0 {
		l.omitted++
		return 0, false
	}
	omitted = l.omitted
	l.credit, l.omitted = l.credit-1, 0
	return omitted, true
}

// Close writes the last count.
func (l *Lines) Close() {
	l.mu.Lock()
	omitted := l.omitted
	l.omitted = 0
	l.mu.Unlock()
	if omitted > 0 {
		l.logger.Log(context.Background(), l.level, l.message, "omitted", omitted)
	}
}
