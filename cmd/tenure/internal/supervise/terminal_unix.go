//go:build unix

package supervise

import (
	"os"
	"os/signal"
	"time"

	"golang.org/x/sys/unix"
)

// terminal is the terminal that the program reads, if there is one. The program's group is its
// foreground group while this process's group would be, as in a shell: then the keys for SIGINT,
// SIGQUIT and SIGTSTP reach the program, and a program such as an editor can use it.
//
// A nil terminal does nothing.
type terminal struct {
	fd     int
	group  int       // of the program; 0 while it has not the terminal
	child  int       // the group of the program
	paused time.Time // when pause was called; zero once the program continues
}

// openTerminal returns the terminal of standard input; nil if that is none, or not of this session.
func openTerminal() *terminal {
	fd := int(os.Stdin.Fd())
	if _, err := unix.IoctlGetInt(fd, unix.TIOCGPGRP); err != nil {
		return nil
	}
	return &terminal{fd: fd}
}

// give makes the program's group the foreground group, if this process's group is.
func (t *terminal) give(group int) {
	if t == nil {
		return
	}
	t.child = group
	if t.inForeground() {
		t.group = group
		t.set(group)
	}
}

// isGiven reports whether the program has the terminal.
func (t *terminal) isGiven() bool { return t != nil && t.group != 0 }

// sendsInterrupts reports whether the key for SIGINT reaches the program's group, and no other. It is
// false while a program such as an editor reads that key as any other, and while a job of the program
// has the terminal.
func (t *terminal) sendsInterrupts() bool {
	if !t.isGiven() {
		return false
	}
	foreground, err := unix.IoctlGetInt(t.fd, unix.TIOCGPGRP)
	if err != nil || foreground != t.group {
		return false
	}
	settings, err := unix.IoctlGetTermios(t.fd, getTermios)
	return err == nil && settings.Lflag&unix.ISIG != 0 && settings.Cc[unix.VINTR] != disabledKey
}

// take makes this process's group the foreground group, if the program's was.
func (t *terminal) take() {
	if !t.isGiven() {
		return
	}
	t.group = 0
	if self, err := unix.Getpgid(0); err == nil {
		t.set(self)
	}
}

// pause stops this process's group, because the terminal stopped the program: so the shell shows
// its prompt. The lease is not renewed meanwhile. If the group does not continue in time, the guard
// kills the program.
func (t *terminal) pause() {
	if t == nil {
		return
	}
	t.take()
	t.paused = time.Now()
	_ = unix.Kill(0, unix.SIGTSTP) // may take effect a moment later; what follows waits for SIGCONT
}

// isPausedInVain reports whether pause had no effect. A group that no shell could continue is not
// stopped by SIGTSTP.
func (t *terminal) isPausedInVain() bool {
	return t != nil && !t.paused.IsZero() && time.Since(t.paused) > 200*time.Millisecond
}

// resume gives the terminal to the program after this process continued, unless it continued in
// the background. It reports whether the program must continue, too.
func (t *terminal) resume() bool {
	if t == nil || t.child == 0 {
		return false
	}
	paused := !t.paused.IsZero()
	t.paused = time.Time{}
	if t.group == 0 && t.inForeground() {
		t.group = t.child
		t.set(t.child)
		return true
	}
	return paused
}

func (t *terminal) inForeground() bool {
	self, err := unix.Getpgid(0)
	if err != nil {
		return false
	}
	foreground, err := unix.IoctlGetInt(t.fd, unix.TIOCGPGRP)
	return err == nil && foreground == self
}

// set makes a group the foreground group. A process in the background may do so only while it
// ignores SIGTTOU. It goes on ignoring it while the program has the terminal, so that its log can
// go there.
func (t *terminal) set(group int) {
	signal.Ignore(unix.SIGTTOU)
	_ = unix.IoctlSetPointerInt(t.fd, unix.TIOCSPGRP, group)
	if t.group == 0 {
		signal.Reset(unix.SIGTTOU)
	}
}
