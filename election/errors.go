package election

import (
	"errors"
	"fmt"
)

// Why a term ended, or why a node stays out. Test the cause of a context,
// Transition.Cause or Status.Cause with errors.Is; it can also be one of package lease.
var (
	// ErrResigned: the term ended by Resign.
	ErrResigned = errors.New("resigned")
	// ErrReturned: the term ended because its function returned by itself.
	ErrReturned = errors.New("the leader function returned")
	// ErrUnhealthy: the health check fails. The cause matches the error of the check too.
	ErrUnhealthy = errors.New("unhealthy")
	// ErrYielded is what a [*YieldError] matches.
	ErrYielded = errors.New("yielded to a preferred node")
	// ErrSwitchover: the leader handed over because [Switchover] asked for it.
	ErrSwitchover = errors.New("handed over as a switchover asked")
	// ErrCrashed: a node with Options.FailBackAfter does not campaign yet after it started,
	// because its predecessor, or another process of its name, still holds the lease.
	ErrCrashed = errors.New("the process before this one ended without releasing the lease")
	// ErrNotReady: the node released the lease, or does not campaign, because
	// Options.Standby or Options.Observer has not returned. The text says which.
	ErrNotReady = errors.New("not ready to lead")
)

var (
	errStandbyRuns  = fmt.Errorf("%w: the standby function has not returned", ErrNotReady)
	errObserverRuns = fmt.Errorf("%w: the observer has not returned", ErrNotReady)
)

// ErrRunning is what Run returns while another call of Run of the same Elector is running.
var ErrRunning = errors.New("election: this elector is running already")

// YieldError is why a term ended whose leader handed over to a preferred node.
type YieldError struct {
	// To is the client id of the preferred node.
	To string
	// Rank is that node's rank.
	Rank int
}

// Error names the node and its rank.
func (e *YieldError) Error() string { return fmt.Sprintf("yielded to %q of rank %d", e.To, e.Rank) }

// Is matches ErrYielded.
func (e *YieldError) Is(target error) bool { return target == ErrYielded }

// PanicError is the error of a function that panicked or called runtime.Goexit. It has the
// same effect as an error that the function returns.
type PanicError struct {
	// Function is the name of the function in words, such as "the health check".
	Function string
	// Value is the argument of panic; nil for a call of runtime.Goexit.
	Value any
	// Stack is the stack of the panic, as debug.Stack formats it.
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
