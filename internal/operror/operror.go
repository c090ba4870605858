// Package operror has the error that names a failed operation and the key or lease that it
// was about. A package that adds such a name to the error of another package takes the
// inner error first, so that the text has the name once.
package operror

import "fmt"

// Error is the error of one operation.
type Error struct {
	Op   string // with the package, such as "transport: SET"
	Name string // of the key, the lease or the resource
	Err  error  // why the operation failed
}

// New returns the error of an operation that failed with err, or nil if err is nil.
func New(op, name string, err error) error {
	if err == nil {
		return nil
	}
	return &Error{Op: op, Name: name, Err: err}
}

// Error returns the operation, the name and the reason.
func (e *Error) Error() string { return fmt.Sprintf("%s %q: %v", e.Op, e.Name, e.Err) }

// Unwrap returns the reason.
func (e *Error) Unwrap() error { return e.Err }

// Text returns the text of err, for an encoding that shows an error as an empty object; empty if err is nil.
func Text(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

// Inner returns the reason of err if err is an Error, and err otherwise.
func Inner(err error) error {
	if e, ok := err.(*Error); ok {
		return e.Err
	}
	return err
}
