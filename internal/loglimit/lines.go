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

// Lines are one kind of line of a log: Burst of them at once, then one in each Interval. That
// one has the attributes of the latest line, and says how many were left out since the line
// before. Close writes the count of the rest.
//
// Its methods are safe for concurrent use. They do not hold a lock while they write to the log.
type Lines struct {
	logger  *slog.Logger
	level   slog.Level
	message string

	mu      sync.Mutex
	credit  int       // lines that may be written now
	earned  time.Time // when the credit last grew
	left    int       // lines left out since the last written one
	latest  []any     // the attributes of the last of them
	timer   *time.Timer
	pending sync.WaitGroup // 1 while the timer or its function runs
	closed  bool
}

// NewLines returns the Lines with a message. The caller must close them.
func NewLines(logger *slog.Logger, level slog.Level, message string) *Lines {
	return &Lines{logger: logger, level: level, message: message, credit: Burst, earned: time.Now()}
}

// Log writes the message with attributes, or counts it. It retains the attributes until they are
// written. After Close it does nothing.
func (l *Lines) Log(attributes ...any) {
	if !l.logger.Enabled(context.Background(), l.level) {
		return
	}
	if l.admit(attributes) {
		l.logger.Log(context.Background(), l.level, l.message, attributes...)
	}
}

// admit reports whether a line may be written now; otherwise it counts the line.
func (l *Lines) admit(attributes []any) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return false
	}
	l.earn()
	if l.credit > 0 && l.left == 0 {
		l.credit--
		return true
	}
	l.left++
	l.latest = attributes
	if l.left == 1 {
		l.pending.Add(1)
		l.timer = time.AfterFunc(time.Until(l.earned.Add(Interval)), l.report)
	}
	return false
}

// earn adds the credit for the time that has passed. It is called with mu locked.
func (l *Lines) earn() {
	now := time.Now()
	grown := int(min(now.Sub(l.earned)/Interval, Burst))
	if l.credit += grown; l.credit >= Burst {
		l.credit, l.earned = Burst, now
		return
	}
	l.earned = l.earned.Add(time.Duration(grown) * Interval)
}

// report writes one line for all that were left out.
func (l *Lines) report() {
	defer l.pending.Done()
	l.mu.Lock()
	l.earn()
	l.credit = max(0, l.credit-1)
	left, latest := l.left, l.latest
	l.left, l.latest = 0, nil
	l.mu.Unlock()
	l.write(left, latest)
}

func (l *Lines) write(left int, attributes []any) {
	if left == 0 {
		return
	}
	if left > 1 {
		attributes = append(slices.Clip(attributes), "omitted", left-1)
	}
	l.logger.Log(context.Background(), l.level, l.message, attributes...)
}

// Close writes the last count, and returns when no goroutine of the Lines writes any more.
func (l *Lines) Close() {
	l.mu.Lock()
	l.closed = true
	timer := l.timer
	l.mu.Unlock()
	if timer != nil && timer.Stop() {
		l.report()
	}
	l.pending.Wait()
}
