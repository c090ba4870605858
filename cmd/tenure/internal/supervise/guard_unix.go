//go:build unix

package supervise

import (
	"errors"
	"os"
	"os/signal"
	"runtime"

	"golang.org/x/sys/unix"
)

const (
	terminateSignal = int(unix.SIGTERM)
	killSignal      = int(unix.SIGKILL)
	continueSignal  = int(unix.SIGCONT)
)

// guardIgnores are signals from a terminal, or to all processes of this name. They end the
// supervisor, which tells the guard. They are caught, because the program would inherit that they
// are ignored.
var guardIgnores = []os.Signal{unix.SIGINT, unix.SIGTERM, unix.SIGHUP, unix.SIGQUIT, unix.SIGUSR1, unix.SIGUSR2,
	unix.SIGPIPE, unix.SIGTSTP, unix.SIGTTIN, unix.SIGTTOU}

// processTree is the child and its descendants, as their guard sees them.
type processTree struct {
	pid     int            // of the child; 0 before there is one
	ended   bool           // the child ended, and its result was taken
	changed chan os.Signal // gets something when a child ended or stopped
}

// adopt makes this process the one that descendants without parents are left to.
func (t *processTree) adopt() {
	t.changed = make(chan os.Signal, 1)
	signal.Notify(t.changed, unix.SIGCHLD)
	becomeSubreaper()
}

// makeProcess starts the program. With PR_SET_PDEATHSIG it lives no longer than the thread that made it, so that
// thread stays.
func (t *processTree) makeProcess(p program, files []*os.File, foreground bool) error {
	made := make(chan error)
	go func() { // keeps its thread until the process ends
		runtime.LockOSThread()
		attributes := childAttributes()
		attributes.Foreground = foreground // before the program can read the terminal
		process, err := os.StartProcess(p.path, p.args, &os.ProcAttr{Files: files, Sys: attributes})
		if err == nil {
			t.pid = process.Pid
		}
		made <- err
		select {}
	}()
	if err := <-made; err != nil {
		return err
	}
	signal.Ignore(unix.SIGTTOU) // a write to the terminal goes through; the program has not inherited this
	// A reader of the program's output waits for the program, and not for the guard.
	_, _ = os.Stdin.Close(), os.Stdout.Close()
	return nil
}

// isShortage reports whether this machine could not start any process.
func isShortage(err error) bool {
	return errors.Is(err, unix.EAGAIN) || errors.Is(err, unix.ENOMEM) || errors.Is(err, unix.EMFILE) ||
		errors.Is(err, unix.ENFILE)
}

// signalChild passes a signal on. SIGCONT goes to the whole group, which a terminal stops.
func (t *processTree) signalChild(s int) {
	if s == continueSignal {
		_ = unix.Kill(-t.pid, unix.SIGCONT)
		return
	}
	_ = unix.Kill(t.pid, unix.Signal(s))
}

// signalGroup tells the group to end. A process that a signal stopped continues, to end in order.
func (t *processTree) signalGroup(s int) {
	_ = unix.Kill(-t.pid, unix.Signal(s))
	_ = unix.Kill(-t.pid, unix.SIGCONT)
}

// reap takes the results of all children that ended, and of the program's descendants that have
// become children of the guard.
func (g *guard) reap() {
	for {
		var status unix.WaitStatus
		pid, err := unix.Wait4(-1, &status, unix.WNOHANG|unix.WUNTRACED, nil)
		switch {
		case errors.Is(err, unix.EINTR):
			continue
		case err != nil: // ECHILD
			g.childless = g.ended && !groupExists(g.pid)
			return
		case pid == 0:
			g.childless = false
			return
		case pid != g.pid:
		case status.Stopped():
			if status.StopSignal() == unix.SIGTSTP { // Ctrl-Z: a program that has the lease works
				g.signalChild(continueSignal)
			}
		default:
			ended := Status{Code: status.ExitStatus()}
			if status.Signaled() {
				ended.Signal = int(status.Signal())
			}
			g.end(ended)
		}
	}
}
