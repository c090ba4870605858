//go:build unix

package supervise

import (
	"os"
	"os/signal"
	"time"

	"golang.org/x/sys/unix"
)

// killLeft kills what the program's group has left, and what is left to this process, and returns when all is gone.
// Without the guard, what the program left cannot be told from what others left to this process, so that is killed,
// too: two programs must not run. reaped says that the guard has told the result of the program; it may have been
// killed after it took that. killLeft calls report with what cannot be killed, when that changes.
func killLeft(group int, reaped bool, report func(stuck string)) {
	reported := ""
	reaped = reaped || resultTaken(group)
	for quiet := 0; quiet < quietLooks; {
		helpers.mu.Lock()
		stuck := signalDescendants(group, reaped, unix.SIGKILL, helpers.pids)
		over := reapLeft(group, helpers.pids)
		helpers.mu.Unlock()
		quiet++
		if !over {
			quiet = 0
		}
		reaped = true // perhaps just now
		if stuck != "" && stuck != reported {
			reported = stuck
			report(stuck)
		}
		time.Sleep(killPause)
	}
}

// quietLooks is how many looks in succession must find nothing: a process may fork and end between the
// moments at which one look sees its parent and its child.
const quietLooks = 3

// caughtSignals are the signals that a supervisor catches. Some ask the program to do something, and
// are passed on. Those for which IsEnd is true ask the supervisor to end.
var caughtSignals = []os.Signal{unix.SIGINT, unix.SIGTERM, unix.SIGQUIT, unix.SIGHUP, unix.SIGUSR1, unix.SIGUSR2, unix.SIGWINCH, unix.SIGCONT,
	unix.SIGPIPE}

// CatchSignals returns a channel that gets the signals that a supervisor catches, until stop closes
// it. A signal that was ignored when this process started, as by nohup, stays ignored, for the
// program too.
func CatchSignals() (caught <-chan os.Signal, stop func()) {
	signals := make(chan os.Signal, 16)
	for _, s := range caughtSignals {
		if s == unix.SIGHUP && signal.Ignored(s) {
			continue
		}
		signal.Notify(signals, s)
	}
	return signals, func() {
		signal.Stop(signals)
		close(signals)
	}
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

// EndByInterrupt ends this process by SIGINT, which has ended its work: a shell ends a loop when a
// command in it ended by SIGINT, and not when one has the exit code 130. byKey says that the program
// had the terminal, and that the key sent SIGINT to its group alone (Status.ByKey): then the rest of
// this process's group, such as a script, gets SIGINT now, as without this process.
// It returns if SIGINT does not end this process, as the first one of a PID namespace.
func EndByInterrupt(byKey bool) {
	signal.Reset(unix.SIGINT)
	pid := os.Getpid()
	if byKey {
		pid = 0
	}
	if unix.Kill(pid, unix.SIGINT) == nil {
		time.Sleep(100 * time.Millisecond)
	}
}

// IsEnd reports whether a signal asks the supervisor to end.
func IsEnd(s os.Signal) bool { return s == unix.SIGINT || s == unix.SIGTERM || s == unix.SIGQUIT }
