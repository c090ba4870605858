package loglimit

import (
	"log/slog"
	"sync"
	"time"

	"github.com/tenurelock/tenure/internal/shown"
)

const (
	// maxSources bounds how many sources have Lines of their own.
	maxSources = 64
	// quietFor is after which time without a line a source gives its Lines up to another one.
	quietFor = time.Minute
)

// Fair are one kind of line of a log, at a bounded rate for each source: a user, or a client that has
// none. So one that causes thousands of lines does not hide the lines of another. Sources
// beyond maxSources share Lines. Clients that do not authenticate
// may choose their ids, so one that has a new id for each line can still hide others. It is
// safe for concurrent use, and holds no lock while it writes to the log.
type Fair struct {
	new func() *Lines

	mu      sync.Mutex
	others  *Lines
	sources map[string]*source
}

type source struct {
	lines *Lines
	last  time.Time
}

// NewFair returns the lines with a message. The caller must close them.
func NewFair(logger *slog.Logger, level slog.Level, message string) *Fair {
	l := &Fair{new: func() *Lines { return NewLines(logger, level, message) }, sources: make(map[string]*source)}
	l.others = l.new()
	return l
}

// Log writes a line about a client of a user, or counts it.
func (l *Fair) Log(client, user string, attributes ...any) {
	lines, quiet := l.linesOf(client, user, time.Now())
	for _, of := range quiet {
		of.Close()
	}
	lines.Log(attributes...)
}

// linesOf returns the Lines for a line about a client of a user, and those that others have given up.
func (l *Fair) linesOf(client, user string, now time.Time) (lines *Lines, quiet []*Lines) {
	name := "client " + shown.Cut(client)
	if user != "" {
		name = "user " + shown.Cut(user)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	s := l.sources[name]
	if s == nil && len(l.sources) == maxSources {
		quiet = l.dropQuiet(now)
	}
	if s == nil {
		if len(l.sources) == maxSources {
			return l.others, nil
		}
		s = &source{lines: l.new()}
		l.sources[name] = s
	}
	s.last = now
	return s.lines, quiet
}

// dropQuiet gives up the Lines of sources that have caused no line lately.
func (l *Fair) dropQuiet(now time.Time) (quiet []*Lines) {
	for name, s := range l.sources {
		if now.Sub(s.last) > quietFor {
			quiet = append(quiet, s.lines)
			delete(l.sources, name)
		}
	}
	return quiet
}

// Close writes the counts that are left.
func (l *Fair) Close() {
	l.others.Close()
	for _, s := range l.sources {
		s.lines.Close()
	}
}
