package logs

import (
	"fmt"
	"io"
	"sync"
	"time"
)

// A Writer passes on what is written to it, in a goroutine of its own. Write never waits:
// what finds no room is dropped and counted, and a line says so once there is room again.
// A pipe that is not read therefore delays the log, and no part of the program.
//
// Methods are safe for concurrent use.
type Writer struct {
	to    io.Writer
	bound int
	wake  chan struct{} // room for one
	stop  chan struct{}
	ended chan struct{}

	mu      sync.Mutex
	queue   []byte
	dropped int // writes, since the last that was queued
	closed  bool
}

// NewWriter returns a Writer with room for so many bytes beside those that are being
// written. It must be closed.
func NewWriter(to io.Writer, bound int) *Writer {
	w := &Writer{
		to:    to,
		bound: bound,
		wake:  make(chan struct{}, 1),
		stop:  make(chan struct{}),
		ended: make(chan struct{}),
	}
	go w.run()
	return w
}

// Write queues a line, whole or not at all. It reports success in either case: a log has no
// better place to complain. After Close everything is dropped.
func (w *Writer) Write(line []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	switch {
	case w.closed:
		return len(line), nil
	case len(w.queue)+len(line) > w.bound:
		w.dropped++
		return len(line), nil
	}
	w.noteDropped()
	w.queue = append(w.queue, line...)
	select {
	case w.wake <- struct{}{}:
	default:
	}
	return len(line), nil
}

// noteDropped queues a line about those that were dropped. It is called with mu locked.
func (w *Writer) noteDropped() {
	if w.dropped > 0 {
		w.queue = fmt.Appendf(w.queue, "%d lines of the log were dropped here: it was not read in time\n", w.dropped)
		w.dropped = 0
	}
}

func (w *Writer) run() {
	defer close(w.ended)
	var spare []byte
	for {
		stopping := false
		select {
		case <-w.wake:
		case <-w.stop:
			stopping = true
		}
		w.mu.Lock()
		if stopping {
			w.noteDropped()
		}
		batch := w.queue
		w.queue = spare[:0]
		w.mu.Unlock()
		if len(batch) > 0 {
			_, _ = w.to.Write(batch) // a log that cannot be written is lost
		}
		if stopping {
			return
		}
		spare = batch
	}
}

// Close writes what is queued, and gives up after patience. It reports whether all of it
// was written: if not, a goroutine is left that waits for the reader, since a write to a
// pipe cannot be interrupted. Only the first Close has an effect.
func (w *Writer) Close(patience time.Duration) bool {
	w.mu.Lock()
	if !w.closed {
		w.closed = true
		close(w.stop)
	}
	w.mu.Unlock()
	bound := time.NewTimer(patience)
	defer bound.Stop()
	select {
	case <-w.ended:
		return true
	case <-bound.C:
		return false
	}
}
