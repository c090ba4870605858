package logs

import (
	"context"
	"log/slog"
	"slices"
	"sync"
	"time"
)

const (
	// Burst is how many lines a Limiter writes at once.
	Burst = 10
	// Interval is how often it writes a line after that.
	Interval = time.Second
)

// Limiter writes one kind of line to a log: Burst lines at once, then one in each Interval. That
// one has the attributes of the latest line, and says how many were left out since the line
// before. Close writes the count of the rest.
//
// Its methods are safe for concurrent use. They do not hold a lock while they write to the log.
type Limiter struct {
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

// NewLimiter returns a Limiter for a message. The caller must close it.
func NewLimiter(logger *slog.Logger, level slog.Level, message string) *Limiter {
	return &Limiter{logger: logger, level: level, message: message, credit: Burst, earned: time.Now()}
}

// Log writes the message with attributes, or counts it. It retains the attributes until they are
// written. After Close it does nothing.
func (l *Limiter) Log(attributes ...any) {
	if !l.logger.Enabled(context.Background(), l.level) {
		return
	}
	if l.admit(attributes) {
		l.logger.Log(context.Background(), l.level, l.message, attributes...)
	}
}

// admit reports whether a line may be written now; otherwise it counts the line.
func (l *Limiter) admit(attributes []any) bool {
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
func (l *Limiter) earn() {
	now := time.Now()
	grown := int(min(now.Sub(l.earned)/Interval, Burst))
	if l.credit += grown; l.credit >= Burst {
		l.credit, l.earned = Burst, now
		return
	}
	l.earned = l.earned.Add(time.Duration(grown) * Interval)
}

// report writes one line for all that were left out.
func (l *Limiter) report() {
	defer l.pending.Done()
	l.mu.Lock()
	l.earn()
	l.credit = max(0, l.credit-1)
	left, latest := l.left, l.latest
	l.left, l.latest = 0, nil
	l.mu.Unlock()
	l.write(left, latest)
}

func (l *Limiter) write(left int, attributes []any) {
	if left == 0 {
		return
	}
	if left > 1 {
		attributes = append(slices.Clip(attributes), "omitted", left-1)
	}
	l.logger.Log(context.Background(), l.level, l.message, attributes...)
}

// Close writes the last count, and returns when no goroutine of the Limiter writes any more.
func (l *Limiter) Close() {
	l.mu.Lock()
	l.closed = true
	timer := l.timer
	l.mu.Unlock()
	if timer != nil && timer.Stop() {
		l.report()
	}
	l.pending.Wait()
}
