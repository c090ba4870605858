package election

import (
	"errors"
	"fmt"
	"runtime/debug"
)

// Why a term ended, or why a node stays out. Test the cause of a context, or
// Status.Cause, with errors.Is; it can also be one of package lease.
var (
	// ErrResigned: the term ended by Resign.
	ErrResigned = errors.New("resigned")
	// ErrReturned: the term ended because its function returned by itself.
	ErrReturned = errors.New("the leader function returned")
	// ErrUnhealthy: the health check fails. The cause matches the error of the check too.
	ErrUnhealthy = errors.New("unhealthy")
	// ErrYielded: the leader handed over to a preferred node. The text has the client id and
	// the rank of that.
	ErrYielded = errors.New("yielded to a preferred node")
	// ErrSwitchover: the leader handed over because [Switchover] asked for it.
	ErrSwitchover = errors.New("handed over as a switchover asked")
	// ErrCrashed: a node with Options.FailBackAfter does not campaign yet after it started,
	// because its predecessor, or another process of its name, still holds the lease.
	ErrCrashed = errors.New("the process before this one ended without releasing the lease")
)

// call runs a function of the program in a goroutine that Run waits for. That ends with one item on the returned
// channel, and closes it, even if the function panics or ends its goroutine: then the error says so, and
// calls the function by name. It is logged if nothing else is done with it.
func (e *Elector) call(name string, logged bool, function func() error) <-chan error {
	returned := make(chan error, 1)
	e.tasks.Go(func() {
		err := fmt.Errorf("%s ended its goroutine", name)
		defer close(returned)
		defer func() {
			if value := recover(); value != nil {
				err = fmt.Errorf("%s panicked: %v\n%s", name, value, debug.Stack())
			}
			if logged && err != nil {
				e.options.Logger.Error(name+" failed", "error", err)
			}
			returned <- err
		}()
		err = function()
	})
	return returned
}
