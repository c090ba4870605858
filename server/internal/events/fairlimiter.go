package events

import (
	"log/slog"
	"sync"
	"time"

	"github.com/tenurelock/tenure/internal/shown"
	"github.com/tenurelock/tenure/server/internal/logs"
)

const (
	// maxSources bounds how many sources have a limiter of their own.
	maxSources = 16
	// quietFor is after which time without a line a source gives its limiter up to another one.
	quietFor = time.Minute
	// newLines is how many lines of a source without a limiter count as lines of a new one, and maxSeen
	// for how many sources they are counted.
	newLines, maxSeen = 3, 1024
)

// fairLimiter writes one kind of line at a bounded rate for each source: a user, or a client that has
// none. So one that causes thousands of lines does not hide the lines of another. Sources
// beyond maxSources share two limiters: one for the first lines of each, so that a source which comes
// once has its line beside others that go on, and one for all that follows. Clients that do not authenticate
// may choose their ids, so one that has a new id for each line can still hide others. It is
// safe for concurrent use, and holds no lock while it writes to the log.
type fairLimiter struct {
	new func() *logs.Limiter

	mu      sync.Mutex
	first   *logs.Limiter
	others  *logs.Limiter
	sources map[string]*source
	seen    map[string]int // lines of sources without a limiter, since all have been in use
}

type source struct {
	limiter *logs.Limiter
	last    time.Time
}

func newFairLimiter(logger *slog.Logger, level slog.Level, message string) *fairLimiter {
	l := &fairLimiter{
		new:     func() *logs.Limiter { return logs.NewLimiter(logger, level, message) },
		sources: make(map[string]*source),
		seen:    make(map[string]int),
	}
	l.first, l.others = l.new(), l.new()
	return l
}

// log writes a line about a client of a user, or counts it.
func (l *fairLimiter) log(client, user string, attributes ...any) {
	l.limiterOf(client, user, time.Now()).Log(attributes...)
}

// limiterOf returns the limiter for a line about a client of a user.
func (l *fairLimiter) limiterOf(client, user string, now time.Time) *logs.Limiter {
	name := "client " + shown.Cut(client)
	if user != "" {
		name = "user " + shown.Cut(user)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	s := l.sources[name]
	if s == nil && len(l.sources) == maxSources {
		l.dropQuiet(now)
	}
	if s == nil && len(l.sources) < maxSources {
		s = &source{limiter: l.new()}
		l.sources[name] = s
		clear(l.seen)
	}
	if s == nil {
		return l.shared(name)
	}
	s.last = now
	return s.limiter
}

// shared returns the limiter for a line of a source that has none of its own.
func (l *fairLimiter) shared(name string) *logs.Limiter {
	if l.seen[name] >= newLines {
		return l.others
	}
	if len(l.seen) >= maxSeen {
		clear(l.seen)
	}
	l.seen[name]++
	return l.first
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
	l.first.Close()
	l.others.Close()
	for _, s := range l.sources {
		s.limiter.Close()
	}
}
