// Package loglimit bounds how many lines a log gets of what happens again and again.
//
//   - A [Limiter] says when a failure of the program itself is worth a line: the first time, and then with
//     growing pauses.
//   - [Lines] are of what peers cause: a burst, then one a second, and the rest is counted.
//   - [Fair] are such lines with a bound for each source.
package loglimit

import (
	"cmp"
	"log/slog"
	"sync"
	"time"
)

const (
	// MinPause is the pause after the first line about a failure. It doubles with each line.
	MinPause = time.Second
	// MaxPause is the longest pause.
	MaxPause = time.Minute
	// maxKinds is how many kinds of failure a Limiter tells apart. The rest count as one.
	maxKinds = 8
)

// Limiter is about the failures of one thing. The zero value is ready to use. It is safe for
// concurrent use.
type Limiter struct {
	// Min and Max replace MinPause and MaxPause if they are not 0.
	Min, Max time.Duration

	mu    sync.Mutex
	kinds []kind // at most maxKinds, the last of which may be all others
}

type kind struct {
	name   string
	logged time.Time
	pause  time.Duration // from logged to the next line
}

// Due reports whether to log a failure now. name is the same for failures that differ in a number
// only. Each name has pauses of its own, so two failures in turns are no flood either.
func (l *Limiter) Due(name string, now time.Time) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	for i := range l.kinds {
		k := &l.kinds[i]
		if k.name != name && i < maxKinds-1 {
			continue
		}
		if now.Sub(k.logged) < k.pause {
			return false
		}
		k.logged, k.pause = now, min(2*k.pause, cmp.Or(l.Max, MaxPause))
		return true
	}
	l.kinds = append(l.kinds, kind{name, now, cmp.Or(l.Min, MinPause)})
	return true
}

// Level returns the level for a failure that happens now: level if it is due, and Debug otherwise.
func (l *Limiter) Level(level slog.Level, name string) slog.Level {
	if l.Due(name, time.Now()) {
		return level
	}
	return slog.LevelDebug
}

// Reset forgets all failures: what was wrong is over.
func (l *Limiter) Reset() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.kinds = l.kinds[:0]
}
