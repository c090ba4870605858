// Package logwriter decouples a program from the reader of its log.
//
// A log often goes to a pipe. When the program at the other end stops reading, each write
// blocks, and soon every goroutine that logs blocks with it. A [Writer] queues lines and
// writes them in a goroutine of its own, so that a full pipe delays only the log. Lines that
// find the queue full are dropped and counted.
//
// It does not order the lines of different Writers, and it does not keep what it drops.
package logwriter

import (
	"fmt"
	"io"
	"sync"
	"time"
)

// A Writer writes lines to a file or pipe from a goroutine of its own. Write never blocks: a
// line that finds the queue full is dropped and counted, and the next line that fits is
// preceded by one that gives the count.
//
// Methods are safe for concurrent use. The methods of the underlying writer are called from
// one goroutine at a time.
type Writer struct {
	to    io.Writer
	bound int

	mu      sync.Mutex
	queue   []byte
	dropped int // lines dropped since the last queued one
	closed  bool
	idle    chan struct{} // closed when all is written; nil while nothing is under way
}

// New returns a Writer to an underlying writer. At most bound bytes wait in its queue, beside
// those that are being written. The Writer must be closed.
func New(to io.Writer, bound int) *Writer { return &Writer{to: to, bound: bound} }

// Write queues a line, whole or not at all, and returns len(line) and nil in either case: a
// log has no better place to report its own errors. After Close it drops every line. It does
// not keep line.
func (w *Writer) Write(line []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	switch {
	case w.closed:
	case len(w.queue)+len(line) > w.bound:
		w.dropped++
	default:
		w.noteDropped()
		w.queue = append(w.queue, line...)
		w.drain()
	}
	return len(line), nil
}

// noteDropped queues a line that gives the number of dropped lines. mu is locked.
func (w *Writer) noteDropped() {
	if w.dropped > 0 {
		w.queue = fmt.Appendf(w.queue, "%d lines of the log were dropped here: it was not read in time\n", w.dropped)
		w.dropped = 0
	}
}

// drain starts the goroutine that writes the queue, unless it runs. It ends when the queue is empty, and Close
// waits for that. mu is locked.
func (w *Writer) drain() {
	if w.idle != nil {
		return
	}
	idle := make(chan struct{})
	w.idle = idle
	go func() {
		defer close(idle)
		for batch := w.next(); len(batch) > 0; batch = w.next() {
			_, _ = w.to.Write(batch) // there is nowhere to report an error to
		}
	}()
}

// next returns what is to be written next; nothing: the goroutine ends.
func (w *Writer) next() []byte {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.closed {
		w.noteDropped()
	}
	batch := w.queue
	w.queue = nil
	if len(batch) == 0 {
		w.idle = nil
	}
	return batch
}

// Flush waits until nothing waits to be written, no longer than patience, and reports whether that is so.
func (w *Writer) Flush(patience time.Duration) bool {
	w.mu.Lock()
	idle := w.idle
	w.mu.Unlock()
	if idle == nil {
		return true
	}
	bound := time.NewTimer(patience)
	defer bound.Stop()
	select {
	case <-idle:
		return true
	case <-bound.C:
		return false
	}
}

// Close writes the queued lines and waits for that no longer than patience. It reports
// whether they were all written. If not, one goroutine stays blocked in its write, because a
// write to a pipe cannot be interrupted. Later calls only wait again.
func (w *Writer) Close(patience time.Duration) bool {
	w.mu.Lock()
	w.closed = true
	if w.dropped > 0 {
		w.drain()
	}
	w.mu.Unlock()
	return w.Flush(patience)
}
