package election

import "runtime/debug"

// call runs a function of the program in a goroutine. The goroutine ends with one item on
// the returned channel, even if the function panics or ends its goroutine. A *PanicError
// calls the function by name.
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
		}()
		err = function()
		finished = true
	}()
	return returned
}
