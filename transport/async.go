package transport

import (
	"context"
	"errors"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/tenurelock/tenure/internal/async"
	"github.com/tenurelock/tenure/internal/protocol"
	"github.com/tenurelock/tenure/resp3"
)

// BeginSet is [Client.Set] without a wait. It returns at once, also where there is no connection,
// or where as many requests are under way as the broker takes: the request waits for those until
// its Deadline, in place of a Timeout of options. It does not keep value. The result goes to the Done of call.
//
// Only the packages of this module can use it. A Trace is called in a goroutine of the client,
// before Done, with a context that has no values. While the client is being closed, Done does not wait
// for it; what begins after that is not traced.
func (c *Client) BeginSet(call *async.Call, key string, value []byte, options SetOptions) {
	b := &begun{client: c, call: call, verb: protocol.VerbSet, key: key, began: c.begin()}
	call.Attach(b)
	payload, err := appendSet(nil, key, value, options)
	if err == nil && !c.asksProgram {
		b.request.Timestamp, err = c.tick()
	}
	if err != nil {
		b.end(answer{}, notSent(err))
		return
	}
	b.request.Payload = payload
	b.request.FencingToken = tokenText(options.FencingToken)
	b.request.Binding = options.Binding
	b.request.Persist, b.request.Urgent = options.Persist, options.Urgent
	b.start()
}

// BeginGet is [Client.GetWith] without a wait, as BeginSet is Set.
func (c *Client) BeginGet(call *async.Call, key string, options GetOptions) {
	b := &begun{client: c, call: call, verb: protocol.VerbGet, key: key, began: c.begin()}
	call.Attach(b)
	b.request.Payload = resp3.AppendCommand(nil, protocol.VerbGet, key)
	b.request.Binding, b.request.Urgent = options.Binding, options.Urgent
	b.start()
}

// begun is a request that BeginSet or BeginGet began.
//
// It has no goroutine: the one that reads from the connection, or the timer of the link, ends it. It
// gets one with a Conn of the program, which can only wait, and where a clock of the program is asked,
// which may block.
type begun struct {
	client    *Client
	call      *async.Call
	verb, key string
	began     time.Time
	limit     time.Time // the Deadline, or when the client's RequestTimeout is over if that comes first
	request   Request
	repeated  bool // the store refused the first timestamp

	// Cancel runs at any time.
	canceled atomic.Pointer[error]                   // nil: it has not been called
	exchange atomic.Pointer[exchange]                // the latest; nil before the first
	waiting  atomic.Pointer[context.CancelCauseFunc] // ends the goroutine; nil while there is none
}

// Cancel implements async.Request.
func (b *begun) Cancel(cause error) {
	if b.canceled.CompareAndSwap(nil, &cause) {
		b.cancel(cause)
	}
}

func (b *begun) cancel(cause error) {
	if e := b.exchange.Load(); e != nil {
		b.client.mqtt.cancel(e, cause)
	}
	if cancel := b.waiting.Load(); cancel != nil {
		(*cancel)(cause)
	}
}

// recheck cancels what began while Cancel looked for it.
func (b *begun) recheck() {
	if cause := b.canceled.Load(); cause != nil {
		b.cancel(*cause)
	}
}

func (b *begun) start() {
	b.limit = time.Now().Add(b.client.timeout)
	for _, earlier := range []time.Time{b.call.Deadline, b.request.Binding.Until} {
		if !earlier.IsZero() && earlier.Before(b.limit) {
			b.limit = earlier
		}
	}
	b.send()
}

// send sends the request for the first time, or again. The call may have ended when it returns.
func (b *begun) send() {
	if b.client.mqtt == nil || b.client.asksProgram || b.request.Binding.While != nil || !time.Now().Before(b.limit) {
		b.wait()
		return
	}
	c := b.client.mqtt
	e := newExchange(context.Background(), b.request)
	e.deadline, e.begun = b.limit, b
	b.exchange.Store(e)
	switch {
	case c.tryPost(e) != nil:
	case e.request.Binding.Err() != nil:
		e.end(Reply{}, e.request.Binding.Err()) // no later connection can be the right one
	default:
		c.wait(e)
	}
	b.recheck()
}

// finished gets the reply. It runs where the connection is read.
func (b *begun) finished(reply Reply, err error) {
	c := b.client
	var answer answer
	if err != nil {
		c.unanswered(err)
	} else {
		answer, err = c.understand(b.request, reply)
	}
	if err != nil && !b.repeated && c.adapt(err) {
		var unusable error
		if b.request.Timestamp, unusable = c.tick(); unusable == nil {
			b.repeated = true
			b.send()
			return
		}
	}
	b.end(answer, err)
}

// errGoexit: a Conn of the program, or a function that it calls, ended the goroutine of a request.
var errGoexit = errors.New("a function of the program ended the goroutine of the request")

// wait sends the request in a goroutine of its own.
func (b *begun) wait() {
	c := b.client
	ctx, cancel := context.WithCancelCause(context.Background())
	b.waiting.Store(&cancel)
	b.recheck()
	started := c.Go(func(life context.Context) {
		defer cancel(nil)
		bounded, stop := context.WithDeadline(ctx, b.limit)
		defer stop()
		defer context.AfterFunc(life, func() { cancel(context.Cause(life)) })()
		var result answer
		err := unknown(errGoexit)
		defer func() { b.end(result, err) }()
		if c.asksProgram && b.verb == protocol.VerbSet {
			timestamp, unusable := c.tick()
			if unusable != nil {
				err = notSent(unusable)
				return
			}
			b.request.Timestamp = timestamp
		}
		if b.repeated {
			result, err = c.exchange(bounded, time.Time{}, b.request)
		} else {
			result, err = c.do(bounded, 0, b.request)
		}
	})
	if !started {
		cancel(nil)
		b.end(answer{}, notSent(ErrClosed))
	}
}

// end passes the result on.
func (b *begun) end(reply answer, err error) {
	b.call.Attach(nil) // a Call that waits for its next request must not keep this one
	result := async.Result{Version: reply.version}
	if err == nil {
		if b.verb == protocol.VerbSet {
			err = reply.ofSet()
		} else {
			var entry Entry
			entry, err = reply.ofGet()
			result.Exists, result.Value, result.Version = entry.Exists, entry.Value, entry.Version
		}
	}
	result.Err = operationError(b.verb, b.key, err)
	b.client.traceRequest(context.Background(), b.began, b.verb, b.key, err)
	b.call.Done(result)
}

// log writes a line to the client's log. A peer can cause each of them as often as it likes: a text that comes
// again and again is worth a warning with growing pauses, and otherwise has level Debug.
func (c *Client) log(level slog.Level, text string, args ...any) {
	if level > slog.LevelDebug {
		level = c.warnings.Level(level, text)
	}
	c.logger.Log(context.Background(), level, text, args...)
}

// traceRequest traces a request that began at began.
func (c *Client) traceRequest(ctx context.Context, began time.Time, verb, key string, err error) {
	if c.trace.Request != nil {
		c.trace.Request(ctx, RequestInfo{Verb: verb, Key: key, Began: began, Duration: time.Since(began), Err: err})
	}
}
