// Package async has the requests of a transport.Client that no goroutine waits for. A process with
// ten thousand leases has a renewal under way for many of them, and neither a goroutine nor a timer
// nor a context for each.
//
// The package is internal because such a request is easy to use wrongly: what it calls runs where a
// connection is read, and delays all that arrives.
package async

import (
	"sync"
	"time"

	"github.com/tenurelock/tenure/hlc"
)

// Call is one request at a time. BeginSet and BeginGet of a transport.Client start it. The fields
// are set before, and not changed until Done is called.
type Call struct {
	// Deadline is when the client gives the request up, if it has no result by then. It is never
	// sent later. The error then matches context.DeadlineExceeded. The RequestTimeout of the client
	// bounds the request too.
	Deadline time.Time
	// Done is called exactly once for each start, in any goroutine: the one that reads from the
	// connection, one of a timer, or the one that starts the request or cancels it. It must not
	// block, must not log, and must not call a function of the program. A lock that it takes
	// must not be held by a caller of BeginSet, BeginGet or Cancel. From its call on the Call can
	// be used again; Done may do so itself.
	Done func(Result)

	mu      sync.Mutex
	request Request // the one under way, or an earlier one
}

// Result is what a request returns.
type Result struct {
	// Exists and Value are the content of the key after BeginGet. Value is a copy of its own.
	Exists bool
	Value  []byte
	// Version is the version that Client.Set or Client.Get would return, also with ErrConditionFailed.
	Version hlc.Timestamp
	// Err is the error that Client.Set or Client.Get would return; nil: a success.
	Err error
}

// Request is what a client has under way for a Call.
type Request interface {
	// Cancel gives the request up because of cause. It does nothing if the request has a
	// result.
	Cancel(cause error)
}

// Cancel gives the request up because of cause, which must not be nil. Done follows, at once or
// later: with an error that matches transport.ErrNotSent or transport.ErrOutcomeUnknown and wraps
// cause, or with the result if that came at the same moment. Cancel does nothing if no request is
// under way. It is safe for concurrent use, but a request that starts at the same time may be
// canceled or not.
func (c *Call) Cancel(cause error) {
	if request := c.Request(); request != nil {
		request.Cancel(cause)
	}
}

// Request returns the request that Cancel would cancel now, or nil if none is under way. A caller that
// cancels it later cannot meet the request after it.
func (c *Call) Request() Request {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.request
}

// Attach makes Cancel cancel request from now on. A client calls it before it starts the request.
func (c *Call) Attach(request Request) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.request = request
}

// Watcher hears of the changes of one watched key, without a goroutine that waits for them.
// Its methods are called one at a time, with a lock of the client held, and mostly where the connection is
// read. They must not block, and must neither call the client nor a function of the program.
type Watcher interface {
	// Changed is called with each state of the key that a Watch of package transport would have offered.
	// It must not keep or change value.
	Changed(exists bool, value []byte)
	// Ended is called when the watch ends by itself, once, with what Err of a Watch returns then.
	Ended(err error)
}
