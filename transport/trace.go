package transport

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"
)

// Trace is a set of functions that a Client calls, for metrics, spans and logs. Each may be nil,
// and several clients may share one Trace. Without a Trace a client allocates nothing for it.
//
// The functions are called later, in a goroutine of their own, one at a time and in order, among the lines
// of the Logger and what leases of the client call. The client waits for none of them. They should not
// block: while 1,024 calls wait, others are dropped. So a counter of a metric can lack calls: the log says
// how many were dropped. None may call Close, which waits for all of them, and after which none is called.
type Trace struct {
	// Request is called when a request has ended, in any way: once for each call of Set, Get,
	// GetWith, Del or VDel, also where an option made no sense and nothing was sent. A repetition
	// because of a wrong clock is part of it. A watch makes requests of its own, with the verb
	// KEYNOTIFY. ctx is the context of the caller, with its values. It may have ended, and the caller may
	// have its result long since.
	Request func(ctx context.Context, info RequestInfo)
	// Connected is called when there is a connection.
	Connected func(ConnectionStatus)
	// ConnectFailed is called after each attempt to connect that failed, and for each refusal of
	// the client's subscription. The client tries again after a pause, or ends. Only a client
	// from Dial calls it.
	ConnectFailed func(ConnectionStatus)
	// Lost is called when a connection ends: once for each call of Connected, unless one of them was
	// dropped. The Err of the status says why: ErrClosed, ErrSessionTakenOver, the DISCONNECT of the
	// broker, the loss of the connection, or its replacement by one with another Will. It is never nil.
	Lost func(ConnectionStatus)
}

// RequestInfo describes a request that has ended.
type RequestInfo struct {
	// Verb is the command: SET, GET, DEL, VDEL or KEYNOTIFY.
	Verb string
	// Key is the key. It is any bytes, and there may be as many keys as the store has: it is no
	// label for a metric.
	Key string
	// Began is when the method was called.
	Began time.Time
	// Duration is the time from Began to the result. It contains the wait for a connection, and
	// the wait while as many requests are under way as the broker takes.
	Duration time.Duration
	// Err is the error that the caller gets, without the verb and the key. Nil: a success.
	// [OutcomeText] returns its class.
	Err error
}

// OutcomeText returns the class of a method's error, which may be nil, as a label of metrics:
//
//	ok                the store applied the request, or answered it
//	condition_failed  the condition was not met (ErrConditionFailed)
//	refused           the store refused the request (*RefusedError), or the broker (*RejectedError)
//	not_sent          the request was not sent (ErrNotSent)
//	unknown           there was no reply that says what happened (ErrOutcomeUnknown)
//	failed            any other error, such as ErrClosed or an option that makes no sense
func OutcomeText(err error) string {
	var refused *RefusedError
	var rejected *RejectedError
	switch {
	case err == nil:
		return "ok"
	case errors.Is(err, ErrConditionFailed):
		return "condition_failed"
	case errors.Is(err, ErrOutcomeUnknown):
		return "unknown"
	case errors.Is(err, ErrNotSent):
		return "not_sent"
	case errors.As(err, &refused), errors.As(err, &rejected):
		return "refused"
	}
	return "failed"
}

// LossText returns a short name for the end of a connection, such as "network", as a label of
// metrics: "client_closed" for ErrClosed, "session_taken_over" for ErrSessionTakenOver, "broker" for
// a *ConnectionError, "will_changed" where the client replaced the connection, and "network" for
// all others. err is the Err of the status that Trace.Lost got.
func LossText(err error) string {
	var ended *ConnectionError
	switch {
	case errors.Is(err, ErrClosed):
		return "client_closed" // as lease.CauseText
	case errors.Is(err, ErrSessionTakenOver):
		return "session_taken_over"
	case errors.As(err, &ended):
		return "broker"
	case errors.Is(err, errConnectionReplaced):
		return "will_changed"
	}
	return "network"
}

const (
	// maxCalls is how many calls of functions of the program may wait. A peer causes some of them.
	maxCalls = 1024
	// maxPaired is the same for calls that would be missed for good: those that begin or end something.
	maxPaired = 16 * maxCalls
)

// Dispatch calls f soon, among the functions of the Trace and the lines of the Logger: one at a time, in order
// and in a goroutine of their own, which Close waits for. It drops the call while 1,024 others wait, and after
// Close. A call that is one of a pair, without which a gauge would be wrong for good, is dropped while 16,384 wait.
// Leases call the functions of their options with it.
func (c *Client) Dispatch(f func(), paired bool) {
	most := maxCalls
	if paired {
		most = maxPaired
	}
	c.program.call(f, most)
}

// Dispatched returns a logger whose handler gets its records as by Dispatch, and at once after Close: a tenure that
// could not be released is reported then, too. Only the methods Enabled, WithAttrs and WithGroup of the handler are
// always called at once, and must not block. A nil logger gives one that logs nothing.
func (c *Client) Dispatched(logger *slog.Logger) *slog.Logger { return c.program.logger(logger) }

// dispatcher calls the functions that a program gives a client and its leases: those of a Trace and the handler
// of a Logger. It calls one at a time, in order, and in a goroutine of its own, so nothing waits
// for one of them, however long it takes, and none can end a goroutine of the client.
type dispatcher struct {
	tasks sync.WaitGroup

	mu      sync.Mutex
	queue   []func()
	running bool
	dropped int          // calls that found too many others waiting, and that the log does not have yet
	log     *slog.Logger // of the program; nil: none
	closed  bool
}

// call calls f later. It drops the call if so many others wait. After close it reports false.
func (d *dispatcher) call(f func(), most int) (open bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	switch {
	case d.closed:
		return false
	case len(d.queue) >= most:
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
	finished := false
	defer func() {
		if !finished { // f called runtime.Goexit, or panics, which ends the process
			d.tasks.Go(d.run)
		}
	}()
	for f := d.next(); f != nil; f = d.next() {
		f()
	}
	finished = true
}

// next returns nil if no call waits, and then notes that the goroutine ends.
func (d *dispatcher) next() func() {
	d.mu.Lock()
	defer d.mu.Unlock()
	if len(d.queue) == 0 && d.dropped > 0 && d.log != nil {
		dropped := d.dropped
		d.dropped = 0
		return func() {
			d.log.Warn("dropped calls of the Trace and lines of this log: the functions of the program are too slow", "dropped", dropped)
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

// logger returns a logger that writes to that of the program. Nil: it writes nothing.
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
	if !h.dispatcher.call(func() { _ = h.Handler.Handle(ctx, record) }, maxCalls) {
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
