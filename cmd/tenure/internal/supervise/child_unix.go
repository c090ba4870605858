//go:build unix

package supervise

import (
	"net"
	"os"
	"os/exec"
	"os/signal"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// connect makes the connection to a guard that is not started yet. theirs are files to close once
// it is. The guard inherits connection too, unless it is nil.
func connect(cmd *exec.Cmd, connection *os.File) (ours channel, theirs []*os.File, err error) {
	syscall.ForkLock.RLock() // no process that is started meanwhile gets the ends
	ends, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM, 0)
	if err == nil {
		unix.CloseOnExec(ends[0])
		unix.CloseOnExec(ends[1])
	}
	syscall.ForkLock.RUnlock()
	if err != nil {
		return nil, nil, os.NewSyscallError("socketpair", err)
	}
	file, end := os.NewFile(uintptr(ends[0]), "guard"), os.NewFile(uintptr(ends[1]), "supervisor")
	defer file.Close()
	if ours, err = net.FileConn(file); err != nil {
		_ = end.Close()
		return nil, nil, err
	}
	cmd.ExtraFiles = []*os.File{end}
	if connection != nil {
		cmd.ExtraFiles = append(cmd.ExtraFiles, connection)
	}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	return ours, []*os.File{end}, nil
}

// killLeft kills what the group has left, and what is left to this process, and returns when all
// is gone. It calls report with what cannot be killed, when that changes.
func killLeft(group int, report func(stuck string)) {
	reported := ""
	for {
		own.mu.Lock()
		stuck := signalDescendants(os.Getpid(), group, unix.SIGKILL, own.pids)
		over := reapLeft(group, own.pids)
		own.mu.Unlock()
		if over {
			return
		}
		if stuck != "" && stuck != reported {
			reported = stuck
			report(stuck)
		}
		time.Sleep(killPause)
	}
}

// Signals are the signals that a supervisor catches. Some ask the program to do something, and are
// passed on. Those for which IsEnd is true ask the supervisor to end.
var Signals = []os.Signal{unix.SIGINT, unix.SIGTERM, unix.SIGQUIT, unix.SIGHUP, unix.SIGUSR1, unix.SIGUSR2, unix.SIGWINCH, unix.SIGCONT,
	unix.SIGPIPE}

// CatchSignals returns a channel that gets Signals until stop is called. A signal that was ignored
// when this process started, as by nohup, stays ignored, for the program too.
func CatchSignals() (caught <-chan os.Signal, stop func()) {
	signals := make(chan os.Signal, 16)
	for _, s := range Signals {
		if s == unix.SIGHUP && signal.Ignored(s) {
			continue
		}
		signal.Notify(signals, s)
	}
	return signals, func() { signal.Stop(signals) }
}

// IsHangup reports whether a signal says that the terminal was closed, or asks to read files again.
func IsHangup(s os.Signal) bool { return s == unix.SIGHUP }

// HasTerminal reports whether this process has a controlling terminal.
func HasTerminal() bool {
	terminal, err := os.OpenFile("/dev/tty", os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		return false
	}
	_ = terminal.Close()
	return true
}

func numberOf(s os.Signal) (number int, kind signalKind) {
	n, _ := s.(syscall.Signal)
	switch n {
	case unix.SIGINT, unix.SIGTERM, unix.SIGQUIT:
		return int(n), terminates
	case unix.SIGCONT:
		return int(n), continues
	case unix.SIGPIPE:
		return int(n), ignored
	}
	return int(n), passes
}
