package pauses

import (
	"runtime"
	"time"
	"unsafe"

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

// realTimeSleeper is Sleeper for a thread with a real-time priority that runs on one processor, counted
// from 0 among the processors that the process may use. The error says why that is not possible. The
// goroutine must not do much else: no thread of normal priority runs on this processor meanwhile.
func realTimeSleeper(processor int) (sleep func(time.Duration), done func(), err error) {
	sleep, undo := Sleeper()
	var all, one unix.CPUSet
	if err := unix.SchedGetaffinity(0, &all); err != nil {
		undo()
		return nil, nil, err
	}
	for number, left := 0, processor; left >= 0 && number < 8*int(unsafe.Sizeof(all)); number++ {
		if all.IsSet(number) {
			if left == 0 {
				one.Set(number)
			}
			left--
		}
	}
	if err := unix.SchedSetaffinity(0, &one); err != nil {
		undo()
		return nil, nil, err
	}
	done = func() {
		_ = unix.SchedSetAttr(0, &unix.SchedAttr{Size: unix.SizeofSchedAttr, Policy: unix.SCHED_NORMAL}, 0)
		_ = unix.SchedSetaffinity(0, &all)
		undo()
	}
	if err := unix.SchedSetAttr(0, &unix.SchedAttr{Size: unix.SizeofSchedAttr, Policy: unix.SCHED_FIFO, Priority: 1}, 0); err != nil {
		done()
		return nil, nil, err
	}
	return sleep, done, nil
}
