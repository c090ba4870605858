package transport

import (
	"context"
	"errors"
	"time"
)

// Trace is a set of functions that a Client calls, for metrics, spans and logs. Each may be nil,
// and several clients may share one Trace. Without a Trace a client allocates nothing for it.
//
// The functions are called later, in a goroutine of their own, one at a time and in order, among the lines
// of the Logger and what leases of the client call. The client waits for none of them. They should not
// block: while 16,384 calls wait, others are dropped. So a counter of a metric can lack calls: the log says
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
