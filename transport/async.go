package transport

import (
	"bytes"
	"context"
	"errors"
	"time"

	"github.com/tenurelock/tenure/internal/async"
	"github.com/tenurelock/tenure/internal/protocol"
)

// BeginSet is [Client.Set] without a wait. It returns at once, also where there is no connection,
// or where as many requests are under way as the broker takes: the request waits for those until
// its Deadline. It does not keep value. The result goes to the Done of call.
//
// Only the packages of this module can use it. A Trace is called in a goroutine of the client,
// perhaps after Done, with a context that has no values.
func (c *Client) BeginSet(call *async.Call, key string, value []byte, options SetOptions) {
	value = bytes.Clone(value)
	c.run(call, protocol.VerbSet, key, func(ctx context.Context) (result async.Result) {
		result.Version, result.Err = c.set(ctx, key, value, options)
		return result
	})
}

// BeginGet is [Client.GetWith] without a wait, as BeginSet is Set.
func (c *Client) BeginGet(call *async.Call, key string, options GetOptions) {
	c.run(call, protocol.VerbGet, key, func(ctx context.Context) async.Result {
		entry, err := c.get(ctx, key, options)
		return async.Result{Exists: entry.Exists, Value: entry.Value, Version: entry.Version, Err: err}
	})
}

// errGoexit: a Conn of the program, or a function that it calls, ended the goroutine of a request.
var errGoexit = errors.New("a function of the program ended the goroutine of the request")

// run makes a request for call in a goroutine of its own: its Conn can only wait.
func (c *Client) run(call *async.Call, verb, key string, request func(context.Context) async.Result) {
	began, done := c.begin(), call.Done
	ctx, cancel := context.WithCancelCause(context.Background())
	call.Attach(running(cancel))
	bounded, stop := context.WithDeadline(ctx, call.Deadline)
	started := c.Go(func(life context.Context) {
		defer cancel(nil)
		defer stop()
		defer context.AfterFunc(life, func() { cancel(context.Cause(life)) })()
		result := async.Result{Err: unknown(errGoexit)}
		defer func() {
			err := result.Err
			result.Err = operationError(verb, key, err)
			done(result)
			c.traceRequest(context.Background(), began, verb, key, err)
		}()
		result = request(bounded)
	})
	if !started {
		stop()
		cancel(nil)
		done(async.Result{Err: operationError(verb, key, notSent(ErrClosed))})
	}
}

// running is a request in a goroutine of its own; it ends with its context.
type running context.CancelCauseFunc

// Cancel implements async.Request.
func (r running) Cancel(cause error) { r(cause) }

// traceRequest traces a request that began at began.
func (c *Client) traceRequest(ctx context.Context, began time.Time, verb, key string, err error) {
	if c.trace.Request != nil {
		c.trace.Request(ctx, RequestInfo{Verb: verb, Key: key, Began: began, Duration: time.Since(began), Err: err})
	}
}
