package events

import (
	"log/slog"
	"time"

	"github.com/tenurelock/tenure/server/activity"
	"github.com/tenurelock/tenure/server/internal/logs"
)

const (
	// maxSources bounds how many sources have a limiter of their own.
	maxSources = 16
	// quietFor is after which time without a line a source gives its limiter up to another one.
	quietFor = time.Minute
)

// fairLimiter writes one kind of line at a bounded rate for each source: the user of an event, or its
// client if that has none. So one that causes thousands of lines does not hide those of another. Sources
// beyond maxSources share one limiter. It is not safe for concurrent use.
type fairLimiter struct {
	new     func() *logs.Limiter
	others  *logs.Limiter
	sources map[string]*source
}

type source struct {
	limiter *logs.Limiter
	last    time.Time
}

func newFairLimiter(logger *slog.Logger, level slog.Level, message string) *fairLimiter {
	l := &fairLimiter{
		new:     func() *logs.Limiter { return logs.NewLimiter(logger, level, message) },
		sources: make(map[string]*source),
	}
	l.others = l.new()
	return l
}

// log writes a line about an event, or counts it.
func (l *fairLimiter) log(e *activity.Event, attributes ...any) {
	name, now := "client "+e.Client, time.Now()
	if e.User != "" {
		name = "user " + e.User
	}
	s := l.sources[name]
	if s == nil && len(l.sources) == maxSources {
		l.dropQuiet(now)
	}
	if s == nil && len(l.sources) < maxSources {
		s = &source{limiter: l.new()}
		l.sources[name] = s
	}
	if s == nil {
		l.others.Log(attributes...)
		return
	}
	s.last = now
	s.limiter.Log(attributes...)
}

// dropQuiet gives up the limiters of sources that have caused no line lately.
func (l *fairLimiter) dropQuiet(now time.Time) {
	for name, s := range l.sources {
		if now.Sub(s.last) > quietFor {
			s.limiter.Close()
			delete(l.sources, name)
		}
	}
}

// close writes the counts that are left, and ends what the limiters run.
func (l *fairLimiter) close() {
	l.others.Close()
	for _, s := range l.sources {
		s.limiter.Close()
	}
}
