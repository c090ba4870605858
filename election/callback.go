package election

import "runtime/debug"

// call runs a function of the program, which a *PanicError calls by name, in a goroutine. That
// ends with one item on the returned channel, and closes it, even if the function panics or ends its goroutine.
func call(name string, function func() error) <-chan error {
	returned := make(chan error, 1)
	go func() {
		var err error
		finished := false
		defer func() {
			if !finished {
				err = &PanicError{Function: name, Value: recover(), Stack: debug.Stack()}
			}
			returned <- err
			close(returned)
		}()
		err = function()
		finished = true
	}()
	return returned
}
