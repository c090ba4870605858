//go:build unix && !linux

package supervise

import (
	"time"

	"golang.org/x/sys/unix"

	"github.com/tenurelock/tenure/internal/wake"
)

// now is the time on a clock that supervisor and guard share.
func now() time.Duration {
	var t unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_MONOTONIC, &t)
	return time.Duration(t.Nano())
}

// alarm makes something come from C when a time on the shared clock is reached, and more often:
// a timer of Go stands still while the machine is suspended.
type alarm struct {
	C    chan struct{}
	next *time.Timer
}

// recheck is how late an alarm can be after a suspend.
const recheck = 200 * time.Millisecond

func newAlarm() (*alarm, error) {
	a := &alarm{C: make(chan struct{}, 1)}
	a.next = time.AfterFunc(recheck, func() { wake.Up(a.C) })
	return a, nil
}

// at sets the alarm. It replaces an earlier time.
func (a *alarm) at(t time.Duration) { a.next.Reset(min(max(t-now(), time.Millisecond), recheck)) }
