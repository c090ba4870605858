//go:build unix

package supervise

import (
	"errors"
	"fmt"
	"os"
	"os/signal"
	"runtime"
	"syscall"

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

// becomeProgram waits until the guard allows it, and becomes the program. It returns a code as
// shells do if that is not possible.
func becomeProgram() int {
	if len(os.Args) < 5 {
		fmt.Fprintf(os.Stderr, "%s is a part of tenure run and tenure lock, and no command\n", starterName)
		return CodeNotExecutable
	}
	pipe, err := inherited(os.Args[1], "start")
	if err != nil {
		return CodeNotExecutable
	}
	tried, err := inherited(os.Args[2], "tried")
	if err != nil {
		return CodeNotExecutable
	}
	if n, _ := pipe.Read(make([]byte, 1)); n == 0 {
		return 125 // the guard is gone
	}
	_ = pipe.Close()
	path := os.Args[3]
	if _, err := tried.Write([]byte{1}); err != nil {
		return CodeNotExecutable
	}
	runtime.LockOSThread()
	dieWithParent()
	err = syscall.Exec(path, os.Args[4:], os.Environ())
	fmt.Fprintf(os.Stderr, "tenure: cannot start %s: %v\n", path, err)
	return startFailure(err)
}

// processTree is the child and its descendants, as their guard sees them.
type processTree struct {
	pid     int            // of the child; 0 before there is one
	ended   bool           // the child ended, and its result was taken
	gate    *os.File       // a byte in it makes the child become the program
	tried   *os.File       // has a byte once the child tries to, and ends when it has, or has ended
	changed chan os.Signal // gets something when a child ended or stopped
}

// adopt makes this process the one that descendants without parents are left to.
func (t *processTree) adopt() error {
	t.changed = make(chan os.Signal, 1)
	signal.Notify(t.changed, unix.SIGCHLD)
	becomeSubreaper()
	return nil
}

// makeProcess makes the process that becomes the program. With PR_SET_PDEATHSIG it lives no longer than
// the thread that made it, so that thread stays.
func (t *processTree) makeProcess(p program) error {
	read, write, err := os.Pipe()
	if err != nil {
		return err
	}
	defer read.Close()
	number, err := letInherit(read) // this process starts no other
	if err != nil {
		return err
	}
	tried, trying, err := os.Pipe()
	if err != nil {
		return err
	}
	defer trying.Close() // so that only the child has that end
	tryingNumber, err := letInherit(trying)
	if err != nil {
		return err
	}
	made := make(chan error)
	go func() { // keeps its thread until the process ends
		runtime.LockOSThread()
		process, err := os.StartProcess(executable(), append([]string{starterName, number, tryingNumber, p.path}, p.args...), &os.ProcAttr{
			Files: []*os.File{os.Stdin, os.Stdout, os.Stderr},
			Sys:   childAttributes(),
		})
		if err == nil {
			t.pid = process.Pid
		}
		made <- err
		select {}
	}()
	if err := <-made; err != nil {
		return fmt.Errorf("cannot start a process: %w", err)
	}
	t.gate, t.tried = write, tried
	// A reader of the program's output waits for the program, and not for the guard.
	_, _ = os.Stdin.Close(), os.Stdout.Close()
	return nil
}

// startProgram lets the process become the program.
func (t *processTree) startProgram() {
	signal.Ignore(unix.SIGTTOU) // a write to the terminal goes through; the program does not inherit this any more
	_, _ = t.gate.Write([]byte{1})
	_ = t.gate.Close()
}

// becameProgram reports whether a child that ended has tried to become the program. If that was not possible,
// the child has said why, and ends with the code that a shell has for it. A runtime that gets no thread or no memory ends
// the child earlier, with a code that is not the program's.
func (t *processTree) becameProgram() bool {
	n, _ := t.tried.Read(make([]byte, 1)) // the other end is closed
	return n == 1
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

func (t *processTree) terminateAll() { signalDescendants(t.pid, true, unix.SIGTERM, nil) }

// killAll kills all that is left. It returns what cannot be killed, and why.
func (t *processTree) killAll() (stuck string) {
	return signalDescendants(t.pid, t.ended, unix.SIGKILL, nil)
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
			if s := status.StopSignal(); s == unix.SIGTSTP || s == unix.SIGTTIN || s == unix.SIGTTOU {
				g.report(report{Paused: int(s)})
			}
		default:
			ended := Status{Code: status.ExitStatus()}
			if status.Signaled() {
				ended.Signal = int(status.Signal())
			}
			failed := ""
			if !g.becameProgram() && !g.stopping && !g.killing {
				failed = fmt.Sprintf("the process that it made ended before it became the program (%v): is a limit of processes, threads or memory reached?", ended)
			}
			g.end(ended, failed)
		}
	}
}
