package loglimit

import (
	"log/slog"
	"sync"
	"time"

	"github.com/tenurelock/tenure/internal/shown"
)

const (
	// maxSources bounds how many sources have Lines of their own.
	maxSources = 16
	// quietFor is after which time without a line a source gives its Lines up to another one.
	quietFor = time.Minute
	// newLines is how many lines of a source without Lines count as lines of a new one, and maxSeen
	// for how many sources they are counted.
	newLines, maxSeen = 3, 1024
)

// Fair are one kind of line of a log, at a bounded rate for each source: a user, or a client that has
// none. So one that causes thousands of lines does not hide the lines of another. Sources
// beyond maxSources share two Lines: one for the first lines of each, so that a source which comes
// once has its line beside others that go on, and one for all that follows. Clients that do not authenticate
// may choose their ids, so one that has a new id for each line can still hide others. It is
// safe for concurrent use, and holds no lock while it writes to the log.
type Fair struct {
	new func() *Lines

	mu      sync.Mutex
	first   *Lines
	others  *Lines
	sources map[string]*source
	seen    map[string]int // lines of sources without Lines, since all have been in use
}

type source struct {
	lines *Lines
	last  time.Time
}

// NewFair returns the lines with a message. The caller must close them.
func NewFair(logger *slog.Logger, level slog.Level, message string) *Fair {
	l := &Fair{
		new:     func() *Lines { return NewLines(logger, level, message) },
		sources: make(map[string]*source),
		seen:    make(map[string]int),
	}
	l.first, l.others = l.new(), l.new()
	return l
}

// Log writes a line about a client of a user, or counts it.
func (l *Fair) Log(client, user string, attributes ...any) {
	l.linesOf(client, user, time.Now()).Log(attributes...)
}

// linesOf returns the Lines for a line about a client of a user.
func (l *Fair) linesOf(client, user string, now time.Time) *Lines {
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
		s = &source{lines: l.new()}
		l.sources[name] = s
		clear(l.seen)
	}
	if s == nil {
		return l.shared(name)
	}
	s.last = now
	return s.lines
}

// shared returns the Lines for a line of a source that has none of its own.
func (l *Fair) shared(name string) *Lines {
	if l.seen[name] >= newLines {
		return l.others
	}
	if len(l.seen) >= maxSeen {
		clear(l.seen)
	}
	l.seen[name]++
	return l.first
}

// dropQuiet gives up the Lines of sources that have caused no line lately.
func (l *Fair) dropQuiet(now time.Time) {
	for name, s := range l.sources {
		if now.Sub(s.last) > quietFor {
			s.lines.Close()
			delete(l.sources, name)
		}
	}
}

// Close writes the counts that are left, and ends what the Lines run.
func (l *Fair) Close() {
	l.first.Close()
	l.others.Close()
	for _, s := range l.sources {
		s.lines.Close()
	}
}
