// Package optionerror has the error of an option that makes no sense. The packages that check Options return
// it, so that a command can name its flag where a program reads the field.
package optionerror

import "fmt"

// Error says which option is refused, and why.
type Error struct {
	Package string // that refuses it, such as "transport"
	Field   string // of its Options, such as "TLS.CAFile"
	Value   any    // what the text shows of the value; nil: nothing
	Problem string // what is wrong, and what would do
	Err     error  // the cause, in place of a value and a problem; nil: there is none
}

// Error names the field.
func (e *Error) Error() string { return e.Text("Options." + e.Field) }

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.Err }

// Text returns the error with another name for the option, such as the one of a flag.
func (e *Error) Text(name string) string {
	if e.Err != nil {
		return name + ": " + e.Err.Error()
	}
	switch value := e.Value.(type) {
	case nil:
		return name + " " + e.Problem
	case string:
		return fmt.Sprintf("%s %.512q %s", name, value, e.Problem)
	default:
		return fmt.Sprintf("%s %v %s", name, value, e.Problem)
	}
}
