// Package await has waits with a bound, for tests. A test that hangs fails within
// [Patience] with the stacks of all goroutines, and not when the test binary times out.
//
// The functions panic when the bound is reached. They need no testing.T, so any goroutine of a
// test can use them. In a testing/synctest bubble, where waiting costs no real time, the bound
// is [VirtualPatience]. A test in the root of the repository refuses unbounded waits in tests.
package await

import (
	"fmt"
	"os"
	"runtime"
	"time"
)

const (
	// Patience is the longest wait: much longer than anything takes on a busy machine.
	Patience = 60 * time.Second
	// VirtualPatience is the longest wait on the clock of a synctest bubble.
	VirtualPatience = 24 * time.Hour
	// shortPause is the least time between two questions of Until. The others are a share of the wait.
	shortPause = time.Millisecond
)

// Receive receives from a channel. It returns the zero value if the channel is closed.
func Receive[T any](from <-chan T) T {
	value, _ := Next(from)
	return value
}

// Next receives from a channel, and reports whether the channel is open.
func Next[T any](from <-chan T) (value T, open bool) {
	return next(from, "nothing came from the channel")
}

// Done calls wait, such as the Wait of a sync.WaitGroup, and returns when wait returns.
func Done(wait func()) {
	Result(func() struct{} { wait(); return struct{}{} })
}

// Result calls wait, such as the Wait of an exec.Cmd, and returns its result.
func Result[T any](wait func() T) T {
	returned := make(chan T, 1)
	go func() { returned <- wait() }()
	result, _ := next(returned, "the function did not return")
	return result
}

// Until asks ready again and again, from the goroutine that calls it, and returns when it reports true:
// for what changes without a channel that says so, such as the log of another process.
func Until(ready func() bool) {
	for began := time.Now(); !ready(); {
		waited := time.Since(began)
		if waited >= patience() {
			giveUp("what was to happen did not")
		}
		time.Sleep(min(max(shortPause, waited/20), patience()-waited))
	}
}

// next receives from a channel. If the bound is reached it prints the stacks of all
// goroutines and panics with failure.
func next[T any](from <-chan T, failure string) (value T, open bool) {
	bound := time.NewTimer(patience())
	defer bound.Stop()
	select {
	case value, open = <-from:
		return value, open
	case <-bound.C:
	}
	giveUp(failure)
	return value, open
}

// patience returns the longest wait on the present clock.
func patience() time.Duration {
	if time.Now().Year() < 2020 { // the clock of a bubble begins in 2000
		return VirtualPatience
	}
	return Patience
}

// giveUp prints the stacks of all goroutines and panics.
func giveUp(failure string) {
	stacks := make([]byte, 1<<20)
	failure = fmt.Sprintf("await: %s in %v", failure, patience())
	fmt.Fprintf(os.Stderr, "%s; all goroutines:\n\n%s\n", failure, stacks[:runtime.Stack(stacks, true)])
	panic(failure)
}
