package transport

import (
	"cmp"
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/tenurelock/tenure/internal/loglimit"
)

// maxCalls is how many calls of functions of the program may wait. A peer causes some of them.
const maxCalls = 16 << 10

// Dispatch calls f soon, among the functions of the Trace and the lines of the Logger: one at a time, in order
// and in a goroutine of their own, which Close waits for. It drops the call while 16,384 others wait, and after
// Close. Leases call the functions of their options with it.
func (c *Client) Dispatch(f func()) { c.program.call(f) }

// Dispatched returns a logger whose handler gets its records as by Dispatch, and at once after Close: a tenure that
// could not be released is reported then, too. Only the methods Enabled, WithAttrs and WithGroup of the handler are
// always called at once, and must not block. A nil logger gives one that logs nothing.
func (c *Client) Dispatched(logger *slog.Logger) *slog.Logger { return c.program.logger(logger) }

// dispatcher calls the functions that a program gives a client and its leases: those of a Trace and the handler
// of a Logger. It calls one at a time, in order, and in a goroutine of its own, so nothing waits
// for one of them, however long it takes.
type dispatcher struct {
	tasks sync.WaitGroup

	mu      sync.Mutex
	queue   []func()
	running bool
	dropped int              // calls that found too many others waiting, and that the log does not have yet
	told    loglimit.Limiter // of that, while there is no end of calls
	log     *slog.Logger     // of the program; nil: none
	closed  bool
}

// call calls f later. It drops the call if too many others wait. After close it reports false.
func (d *dispatcher) call(f func()) (open bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	switch {
	case d.closed:
		return false
	case len(d.queue) >= maxCalls:
		d.dropped++
		return true
	}
	d.queue = append(d.queue, f)
	if !d.running {
		d.running = true
		d.tasks.Go(d.run)
	}
	return true
}

// run calls what waits, until nothing does.
func (d *dispatcher) run() {
	for f := d.next(); f != nil; f = d.next() {
		f()
	}
}

// next returns nil if no call waits, and then notes that the goroutine ends.
func (d *dispatcher) next() func() {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.dropped > 0 && d.log != nil && (len(d.queue) == 0 || d.told.Due("", time.Now())) {
		dropped := d.dropped
		d.dropped = 0
		return func() {
			d.log.Warn("dropped calls of the Trace and lines of this log: the functions of the program are too slow",
				"dropped", dropped)
		}
	}
	if len(d.queue) == 0 {
		d.queue, d.running = nil, false
		return nil
	}
	f := d.queue[0]
	d.queue = d.queue[1:]
	return f
}

// close takes no more calls, and returns when those that wait are done.
func (d *dispatcher) close() {
	d.mu.Lock()
	d.closed = true
	d.mu.Unlock()
	d.tasks.Wait()
}

// logger returns a logger that writes to the program's logger. Nil: it writes nothing.
func (d *dispatcher) logger(program *slog.Logger) *slog.Logger {
	if program == nil {
		return slog.New(slog.DiscardHandler)
	}
	d.mu.Lock()
	d.log = cmp.Or(d.log, program) // the client's, or else the first one of its leases
	d.mu.Unlock()
	return slog.New(handler{program.Handler(), d})
}

// handler is the handler of a program's Logger. The dispatcher calls it.
type handler struct {
	slog.Handler
	dispatcher *dispatcher
}

// Handle implements slog.Handler.
func (h handler) Handle(ctx context.Context, record slog.Record) error {
	record = record.Clone() // the caller may use it again
	if !h.dispatcher.call(func() { _ = h.Handler.Handle(ctx, record) }) {
		return h.Handler.Handle(ctx, record)
	}
	return nil
}

// WithAttrs implements slog.Handler.
func (h handler) WithAttrs(attrs []slog.Attr) slog.Handler {
	return handler{h.Handler.WithAttrs(attrs), h.dispatcher}
}

// WithGroup implements slog.Handler.
func (h handler) WithGroup(name string) slog.Handler {
	return handler{h.Handler.WithGroup(name), h.dispatcher}
}
