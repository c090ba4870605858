// Package logbuffer keeps, for a test, what a program writes while the test already reads it.
package logbuffer

import (
	"log/slog"
	"strings"
	"sync"
)

// Buffer collects what several goroutines write, such as a log or the output of a process. The zero
// value is empty. Its methods are safe for concurrent use. It must not be copied.
type Buffer struct {
	mu   sync.Mutex
	text strings.Builder
}

// Write implements io.Writer. It takes all of p and returns no error.
func (b *Buffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.Write(p)
}

// String returns all that was written so far.
func (b *Buffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.String()
}

// Logger returns a logger that writes to the buffer, from level info on.
func (b *Buffer) Logger() *slog.Logger { return slog.New(slog.NewTextHandler(b, nil)) }
