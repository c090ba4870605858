package supervise

import (
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tenurelock/tenure/internal/wake"
)

// now is the time on a clock that supervisor and guard share. It counts the time in which the
// machine was suspended, as the clock of a lease does.
func now() time.Duration {
	var t unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_BOOTTIME, &t) // each Linux with timerfd_create has it
	return time.Duration(t.Nano())
}

// alarm makes something come from C when a time on the shared clock is reached, at once after a
// suspend too: Go's timers stand still meanwhile.
type alarm struct {
	C    chan struct{}
	file *os.File
	set  time.Duration
}

func newAlarm() (*alarm, error) {
	fd, err := unix.TimerfdCreate(unix.CLOCK_BOOTTIME, unix.TFD_NONBLOCK|unix.TFD_CLOEXEC)
	if err != nil {
		return nil, os.NewSyscallError("timerfd_create", err)
	}
	a := &alarm{C: make(chan struct{}, 1), file: os.NewFile(uintptr(fd), "timerfd")}
	go func() { // ends with the process, as the alarm does
		var expirations [8]byte
		for {
			if _, err := a.file.Read(expirations[:]); err != nil {
				return
			}
			wake.Up(a.C)
		}
	}()
	return a, nil
}

// at sets the alarm. It replaces an earlier time.
func (a *alarm) at(t time.Duration) {
	if a.set == t {
		return
	}
	a.set = t
	value := unix.ItimerSpec{Value: unix.NsecToTimespec(int64(max(t, 1)))} // zero would disarm it
	// No error: the timer is never closed.
	_ = control(a.file, func(fd int) error { return unix.TimerfdSettime(fd, unix.TFD_TIMER_ABSTIME, &value, nil) })
}
