// Package await lets tests wait with a bound. A test that hangs then fails within
// [Patience], with the stacks of all goroutines, rather than when the whole test binary
// runs out of time.
//
// The functions need no testing.T, so that any goroutine of a test can use them: what does
// not come is a panic. In a testing/synctest bubble, where waiting costs no real time, they
// wait for [VirtualPatience]. A test in the root of the repository refuses waits in tests
// that have no bound.
package await

import (
	"fmt"
	"os"
	"runtime"
	"time"
)

const (
	// Patience is how long something may take that a test waits for. It is much longer
	// than anything takes on a machine that is busy with other things.
	Patience = 60 * time.Second
	// VirtualPatience is the same on the clock of a synctest bubble.
	VirtualPatience = 24 * time.Hour
)

// Receive returns what comes from a channel, or the zero value if it is closed.
func Receive[T any](from <-chan T) T {
	value, _ := Next(from)
	return value
}

// Next is Receive that also reports whether the channel is still open.
func Next[T any](from <-chan T) (value T, open bool) {
	bound := time.NewTimer(patience())
	defer bound.Stop()
	select {
	case value, open = <-from:
		return value, open
	case <-bound.C:
	}
	giveUp("nothing came from the channel")
	panic("unreachable")
}

// Done calls wait, such as the Wait of a sync.WaitGroup, and returns when that does.
func Done(wait func()) {
	Result(func() struct{} { wait(); return struct{}{} })
}

// Result calls wait, such as the Wait of an exec.Cmd, and returns what that does.
func Result[T any](wait func() T) T {
	returned := make(chan T, 1)
	go func() { returned <- wait() }()
	bound := time.NewTimer(patience())
	defer bound.Stop()
	select {
	case result := <-returned:
		return result
	case <-bound.C:
	}
	giveUp("the function did not return")
	panic("unreachable")
}

// patience is the bound that belongs to the clock here. A bubble's begins in the year 2000.
func patience() time.Duration {
	if time.Now().Year() < 2020 {
		return VirtualPatience
	}
	return Patience
}

// giveUp shows where every goroutine is, and panics.
func giveUp(what string) {
	stacks := make([]byte, 1<<20)
	fmt.Fprintf(os.Stderr, "await: %s in %v; all goroutines:\n\n%s\n", what, patience(), stacks[:runtime.Stack(stacks, true)])
	panic(fmt.Sprintf("await: %s in %v", what, patience()))
}
