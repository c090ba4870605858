//go:build unix

package supervise

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"sync"
	"syscall"
	"time"
)

// guardProcess is the guard as the supervisor sees it.
type guardProcess struct {
	cmd     *exec.Cmd
	socket  *channel
	encoder *json.Encoder
	reports chan report // closed when the guard is gone
	tasks   sync.WaitGroup
	stopped chan struct{} // closed by close
}

// errConnectionLost: Options.Connection had ended before the guard got it.
var errConnectionLost = errors.New("the connection is lost")

// startGuard starts the guard of a program. The guard keeps connection open; nil for none.
func startGuard(o Options, connection syscall.RawConn, s start) (*guardProcess, error) {
	self, err := executable()
	if err != nil {
		return nil, err
	}
	cmd := &exec.Cmd{
		Path:  self,
		Args:  append([]string{guardName, o.Name, o.Path}, o.Args...),
		Env:   o.Env,
		Stdin: os.Stdin, Stdout: os.Stdout, Stderr: os.Stderr,
	}
	socket, theirs, err := connect(cmd)
	if err != nil {
		return nil, err
	}
	g := &guardProcess{cmd: cmd, socket: socket, encoder: json.NewEncoder(socket), reports: make(chan report),
		stopped: make(chan struct{})}
	if o.Watchdog != nil {
		device, fd, err := duplicate(o.Watchdog.File)
		if err != nil {
			return nil, errors.Join(err, theirs[0].Close(), socket.Close())
		}
		theirs, s.Watchdog, s.Timeout = append(theirs, device), fd, o.Watchdog.Timeout
	}
	if err := helpers.start(cmd, theirs...); err != nil {
		_ = socket.Close()
		return nil, fmt.Errorf("cannot start the guard of the program: %w", err)
	}
	g.tasks.Go(g.read)
	if connection == nil {
		g.send(request{Start: &s})
		return g, nil
	}
	first, err := json.Marshal(request{Start: &s})
	if err == nil {
		err = socket.writeWith(append(first, '\n'), connection)
	}
	if err != nil {
		g.killAndRead(func(report) {})
		return nil, fmt.Errorf("%w: %w", errConnectionLost, err)
	}
	return g, nil
}

// read passes reports on until the guard is gone.
func (g *guardProcess) read() {
	defer close(g.reports)
	for decoder := json.NewDecoder(g.socket); ; {
		var r report
		if decoder.Decode(&r) != nil {
			return
		}
		select {
		case g.reports <- r:
		case <-g.stopped:
			return
		}
	}
}

// send sends a request, without waiting. A guard that does not read it is found by its missing answer.
func (g *guardProcess) send(r request) { _ = g.encoder.Encode(r) }

// end waits for the end of a guard that has said that all is gone.
func (g *guardProcess) end() {
	overdue := time.AfterFunc(time.Second, func() { _ = g.cmd.Process.Kill() })
	defer overdue.Stop()
	g.reap()
	g.close()
}

// killAndRead kills the guard, and calls note with each report that it has left. Another process may
// have the guard's end of the channel, as a program that copied its descriptor: the reports end with the
// guard, and not with the channel.
func (g *guardProcess) killAndRead(note func(report)) {
	_ = g.cmd.Process.Kill()
	g.reap()
	g.socket.endReading()
	for r := range g.reports {
		note(r)
	}
	g.close()
}

// reap waits for the end of the guard's process.
func (g *guardProcess) reap() {
	_ = g.cmd.Wait()
	helpers.forget(g.cmd.Process.Pid)
}

// close releases what the supervisor has of a guard that was reaped.
func (g *guardProcess) close() {
	close(g.stopped)
	_ = g.socket.Close()
	g.tasks.Wait()
}

// helpers are the processes that this supervisor started for itself: guards, and checks of the
// health. All its other children were there before, or were left to it by the program, by a check, or
// by others.
var helpers = helperProcesses{pids: make(map[int]bool), earlier: make(map[int]bool)}

type helperProcesses struct {
	adopted sync.Once
	mu      sync.Mutex
	pids    map[int]bool // of the helpers, and of the children that this process had before
	earlier map[int]bool // of the latter alone
	program int          // of which killLeft alone takes the result; 0 while there is none
	shared  bool         // others leave processes to this one: what checks leave cannot be told from them
}

// adopt makes this process the one that descendants without parents are left to. Children that it
// has already are not descendants of the program: a shell may have started them, and then have
// become this process. The first process of a PID namespace, as in a container, also gets what
// sessions leave that were started from outside, as by "docker exec".
func (h *helperProcesses) adopt() {
	h.adopted.Do(func() {
		h.mu.Lock()
		defer h.mu.Unlock()
		for _, pid := range children() {
			h.pids[pid], h.earlier[pid] = true, true
		}
		h.shared = len(h.earlier) > 0 || os.Getpid() == 1
		becomeSubreaper()
	})
}

// start starts a process. No process is looked for meanwhile, so it is never taken for one that
// the program left. The process inherits the files, which are closed here then; as no other process
// is started meanwhile, no other inherits them.
func (h *helperProcesses) start(cmd *exec.Cmd, files ...*os.File) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, file := range files {
		defer file.Close()
		if err := letInherit(file); err != nil {
			return err
		}
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	h.pids[cmd.Process.Pid] = true
	return nil
}

func (h *helperProcesses) forget(pid int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.pids, pid)
}

// setProgram says which process is the program; 0 for none. If its guard is killed, the program is
// left to this process, and nothing but killLeft takes its result: no other process has its id until
// its group is killed.
func (h *helperProcesses) setProgram(pid int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.program = pid
}

// reap takes the results of children that have ended, and that nothing else waits for.
func (h *helperProcesses) reap() {
	h.mu.Lock()
	defer h.mu.Unlock()
	if !childHasEnded() {
		return
	}
	for _, pid := range children() {
		if pid == h.program || h.pids[pid] && !h.earlier[pid] {
			continue
		}
		if takeResult(pid) { // another process may have the id from now on
			delete(h.pids, pid)
			delete(h.earlier, pid)
		}
	}
}

// reapPause is the time between two calls of reap.
const reapPause = time.Second

// Adopt makes this process the one that its descendants leave processes to, and takes the results of
// these when they have ended, until stop is called. Without that they would stay as zombies, until no
// process can be started any more. It does nothing on other systems than Linux.
func Adopt() (stop func()) {
	helpers.adopt()
	finished := make(chan struct{})
	var reaping sync.WaitGroup
	reaping.Go(func() {
		tick := time.NewTicker(reapPause)
		defer tick.Stop()
		for {
			helpers.reap()
			select {
			case <-tick.C:
			case <-finished:
				return
			}
		}
	})
	return func() {
		close(finished)
		reaping.Wait()
	}
}

// stopSignal returns the signal that ends the program: the one that ended ctx, or SIGTERM.
func stopSignal(ctx context.Context) int {
	var interrupt Interrupt
	if errors.As(context.Cause(ctx), &interrupt) {
		return int(interrupt.Signal().(syscall.Signal))
	}
	return terminateSignal
}
