//go:build unix

package supervise

import (
	"os"
	"os/signal"

	"golang.org/x/sys/unix"
)

// terminal is the terminal that the program reads, if there is one. The program's group is its
// foreground group while this process's group would be, as in a shell: then the keys for SIGINT
// and SIGQUIT reach the program, and a program such as an editor can use it.
//
// A nil terminal does nothing.
type terminal struct {
	fd    int
	group int // of the program, while it has the terminal; else 0
}

// openTerminal returns the terminal of standard input; nil if that is none, or not of this session.
func openTerminal() *terminal {
	fd := int(os.Stdin.Fd())
	if _, err := unix.IoctlGetInt(fd, unix.TIOCGPGRP); err != nil {
		return nil
	}
	return &terminal{fd: fd}
}

// isForeground reports whether this process's group is the foreground group.
func (t *terminal) isForeground() bool {
	if t == nil {
		return false
	}
	self, failed := unix.Getpgid(0)
	foreground, err := unix.IoctlGetInt(t.fd, unix.TIOCGPGRP)
	return failed == nil && err == nil && foreground == self
}

// give makes the program's group the foreground group, if this process's group is.
func (t *terminal) give(group int) {
	if t.isForeground() && group != 0 {
		t.isGiven(group)
		_ = unix.IoctlSetPointerInt(t.fd, unix.TIOCSPGRP, group)
	}
}

// isGiven notes that the program has the terminal. A process in the background may take it back only while it
// ignores SIGTTOU; then its log can go there, too.
func (t *terminal) isGiven(group int) {
	signal.Ignore(unix.SIGTTOU)
	t.group = group
}

// hasProgram reports whether the program has the terminal.
func (t *terminal) hasProgram() bool { return t != nil && t.group != 0 }

// take makes this process's group the foreground group, if the program's was.
func (t *terminal) take() {
	if !t.hasProgram() {
		return
	}
	t.group = 0
	if self, err := unix.Getpgid(0); err == nil {
		_ = unix.IoctlSetPointerInt(t.fd, unix.TIOCSPGRP, self)
	}
	signal.Reset(unix.SIGTTOU)
}
