package loglimit

import (
	"log/slog"
	"maps"
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
	sources map[string]*Lines
}

// NewFair returns the lines with a message. The caller must close them.
func NewFair(logger *slog.Logger, level slog.Level, message string) *Fair {
	l := &Fair{new: func() *Lines { return NewLines(logger, level, message) }, sources: make(map[string]*Lines)}
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
	lines = l.sources[name]
	if lines == nil && len(l.sources) == maxSources {
		maps.DeleteFunc(l.sources, func(_ string, of *Lines) bool {
			gone := now.Sub(of.last) > quietFor
			if gone {
				quiet = append(quiet, of)
			}
			return gone
		})
	}
	if lines == nil && len(l.sources) == maxSources {
		return l.others, nil
	}
	if lines == nil {
		lines = l.new()
		l.sources[name] = lines
	}
	lines.last = now
	return lines, quiet
}

// Close writes the counts that are left.
func (l *Fair) Close() {
	l.others.Close()
	for _, lines := range l.sources {
		lines.Close()
	}
}
