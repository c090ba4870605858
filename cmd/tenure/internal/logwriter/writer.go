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
// one goroutine only.
type Writer struct {
	to    io.Writer
	bound int
	wake  chan struct{} // room for one
	flush chan chan struct{}
	stop  chan struct{}
	ended chan struct{}

	mu      sync.Mutex
	queue   []byte
	dropped int // lines dropped since the last queued one
	closed  bool
}

// New returns a Writer to an underlying writer. At most bound bytes wait in its queue, beside
// those that are being written. The Writer must be closed.
func New(to io.Writer, bound int) *Writer {
	w := &Writer{
		to:    to,
		bound: bound,
		wake:  make(chan struct{}, 1),
		flush: make(chan chan struct{}),
		stop:  make(chan struct{}),
		ended: make(chan struct{}),
	}
	go w.run()
	return w
}

// Write queues a line, whole or not at all, and returns len(line) and nil in either case: a
// log has no better place to report its own errors. After Close it drops every line. It does
// not keep line.
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

// noteDropped queues a line that gives the number of dropped lines. mu is locked.
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
		var flushed chan struct{}
		select {
		case <-w.wake:
		case flushed = <-w.flush:
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
			_, _ = w.to.Write(batch) // there is nowhere to report an error to
		}
		if flushed != nil {
			close(flushed)
		}
		if stopping {
			return
		}
		spare = batch
	}
}

// Flush waits until the lines that were queued before are written, no longer than patience, and reports
// whether they are.
func (w *Writer) Flush(patience time.Duration) bool {
	bound := time.NewTimer(patience)
	defer bound.Stop()
	flushed := make(chan struct{})
	select {
	case w.flush <- flushed:
	case <-w.ended:
		return true
	case <-bound.C:
		return false
	}
	select {
	case <-flushed:
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
