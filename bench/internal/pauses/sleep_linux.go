package pauses

import (
	"runtime"
	"time"

	"golang.org/x/sys/unix"
)

// defaultSlack is by how much Linux may wake a thread late unless the thread says otherwise.
const defaultSlack = 50_000 // nanoseconds

// Sleeper returns a function that sleeps to within some microseconds, where a timer of Go may be
// late by a millisecond while the program does nothing else. It keeps the goroutine on one
// thread, until the goroutine calls done.
func Sleeper() (sleep func(time.Duration), done func()) {
	runtime.LockOSThread()
	_ = unix.Prctl(unix.PR_SET_TIMERSLACK, 1, 0, 0, 0) // without it each sleep is 50 µs longer
	sleep = func(d time.Duration) {
		if d <= 0 {
			return
		}
		wait := unix.NsecToTimespec(d.Nanoseconds())
		_ = unix.Nanosleep(&wait, nil) // a signal ends it early, and the caller looks at the clock
	}
	done = func() {
		// The thread must live on: a child process that it has started ends with it.
		_ = unix.Prctl(unix.PR_SET_TIMERSLACK, defaultSlack, 0, 0, 0)
		runtime.UnlockOSThread()
	}
	return sleep, done
}
