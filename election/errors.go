package election

import (
	"errors"
	"fmt"
)

var (
	// ErrResigned is why a term ended that was resigned.
	ErrResigned = errors.New("resigned")
	// ErrReturned is why a term ended whose function returned by itself.
	ErrReturned = errors.New("the function of the leader returned")
	// ErrRunning is what Run returns while another Run of the same Elector is
	// under way.
	ErrRunning = errors.New("election: this elector is running already")
)

// PanicError is the error of a function that panicked. The term was ended and
// released like that of a function which returned an error.
type PanicError struct {
	// Value is what was given to panic; nil for a call of runtime.Goexit.
	Value any
	// Stack is the stack of the panic, for people.
	Stack []byte
}

// Error returns the value and the stack.
func (e *PanicError) Error() string {
	if e.Value == nil {
		return "the function of the leader ended its goroutine"
	}
	return fmt.Sprintf("the function of the leader panicked: %v\n%s", e.Value, e.Stack)
}

// Unwrap returns the value if it is an error.
func (e *PanicError) Unwrap() error {
	err, _ := e.Value.(error)
	return err
}
