package election

import (
	"errors"
	"fmt"
)

// Why a term ended, or a node stays out. Test the cause of a context, or
// Transition.Cause, with errors.Is; it can also be one of package lease.
var (
	// ErrResigned is why a term ended that was resigned.
	ErrResigned = errors.New("resigned")
	// ErrReturned is why a term ended whose function returned by itself.
	ErrReturned = errors.New("the function of the leader returned")
	// ErrUnhealthy is why a term ended, or why a node does not campaign, whose
	// health check fails. The check's error is part of the cause.
	ErrUnhealthy = errors.New("unhealthy")
	// ErrYielded is what a [*YieldError] matches.
	ErrYielded = errors.New("yielded to a preferred node")
	// ErrCrashed is why a node with Options.FailBackAfter does not campaign when it
	// starts: the lease is held in its own name, by the process before it (or by
	// another of that name).
	ErrCrashed = errors.New("the process before this one ended without releasing the lease")
	// ErrNotReady is why a node gave the lease back, or does not campaign, whose
	// Options.Standby or Options.Observer does not return. The text says which.
	ErrNotReady = errors.New("not ready to lead")
)

var (
	errStandbyRuns  = fmt.Errorf("%w: the standby function has not returned", ErrNotReady)
	errObserverRuns = fmt.Errorf("%w: the observer has not returned", ErrNotReady)
)

// ErrRunning is what Run returns while another Run of the same Elector is under
// way.
var ErrRunning = errors.New("election: this elector is running already")

// YieldError is why a term ended whose leader handed over to a preferred node.
type YieldError struct {
	// To is the client id of the node that asked.
	To string
	// Rank is that node's rank.
	Rank int
}

// Error names the node and its rank.
func (e *YieldError) Error() string { return fmt.Sprintf("yielded to %q of rank %d", e.To, e.Rank) }

// Is matches ErrYielded.
func (e *YieldError) Is(target error) bool { return target == ErrYielded }

// PanicError is the error of a function that panicked. It counts like an error
// that the function returned.
type PanicError struct {
	// Function says which function it was, in words.
	Function string
	// Value is what was given to panic; nil for a call of runtime.Goexit.
	Value any
	// Stack is the stack of the panic, for people.
	Stack []byte
}

// Error returns the function, the value and the stack.
func (e *PanicError) Error() string {
	if e.Value == nil {
		return e.Function + " ended its goroutine"
	}
	return fmt.Sprintf("%s panicked: %v\n%s", e.Function, e.Value, e.Stack)
}

// Unwrap returns the value if it is an error.
func (e *PanicError) Unwrap() error {
	err, _ := e.Value.(error)
	return err
}
