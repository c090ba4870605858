package supervise

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"sync"
	"time"
)

// guardProcess is the guard as the supervisor sees it.
type guardProcess struct {
	cmd     *exec.Cmd
	socket  channel
	encoder *json.Encoder
	reports chan report // closed when the guard is gone
	tasks   sync.WaitGroup
	stopped chan struct{} // closed by wait
}

// startGuard starts the guard, and tells it the program. The guard keeps connection open; nil for none.
func startGuard(name string, connection *os.File, p program) (*guardProcess, error) {
	cmd := &exec.Cmd{
		Path:  executable(),
		Args:  append([]string{guardName, name}, p.Args...),
		Stdin: os.Stdin, Stdout: os.Stdout, Stderr: os.Stderr,
	}
	socket, theirs, err := connect(cmd, connection)
	if err != nil {
		return nil, err
	}
	g := &guardProcess{cmd: cmd, socket: socket, encoder: json.NewEncoder(socket), reports: make(chan report), stopped: make(chan struct{})}
	err = own.start(cmd)
	for _, file := range theirs {
		_ = file.Close()
	}
	if err != nil {
		_ = socket.Close()
		return nil, fmt.Errorf("cannot start the guard of the program: %w", err)
	}
	g.tasks.Go(g.read)
	g.send(request{Start: &p})
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

// send sends a request. A guard that does not read it is found by its missing answer.
func (g *guardProcess) send(r request) {
	_ = g.socket.SetWriteDeadline(time.Now().Add(10 * time.Millisecond))
	_ = g.encoder.Encode(r)
}

// end waits for the end of a guard that has said that all is gone.
func (g *guardProcess) end() {
	overdue := time.AfterFunc(time.Second, func() { _ = g.cmd.Process.Kill() })
	defer overdue.Stop()
	g.wait()
}

// kill ends the guard. On Linux the program ends with it.
func (g *guardProcess) kill() {
	_ = g.cmd.Process.Kill()
	g.wait()
}

func (g *guardProcess) wait() {
	close(g.stopped)
	_ = g.cmd.Wait()
	own.forget(g.cmd.Process.Pid)
	_ = g.socket.Close()
	g.tasks.Wait()
}

// own are the processes that this supervisor started and waits for. All its other children are
// descendants of the program that were left to it.
var own = processes{pids: make(map[int]bool)}

type processes struct {
	adopted sync.Once
	mu      sync.Mutex
	pids    map[int]bool
}

// adopt makes this process the one that descendants without parents are left to. Children that it
// has already are not descendants of the program: a shell may have started them, and then have
// become this process.
func (p *processes) adopt() {
	p.adopted.Do(func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		for _, pid := range children() {
			p.pids[pid] = true
		}
		becomeSubreaper()
	})
}

// start starts a process. No process is looked for meanwhile, so it is never taken for one that
// the program left.
func (p *processes) start(cmd *exec.Cmd) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if err := cmd.Start(); err != nil {
		return err
	}
	p.pids[cmd.Process.Pid] = true
	return nil
}

func (p *processes) forget(pid int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.pids, pid)
}

// What a signal to the supervisor means for the program.
type signalKind int

const (
	passes     signalKind = iota // the program gets it
	terminates                   // it ends Run's context; the second one kills
	continues                    // the supervisor was stopped
	ignored                      // a write failed
)

// IsEnd reports whether a signal asks the supervisor to end.
func IsEnd(s os.Signal) bool {
	_, kind := numberOf(s)
	return kind == terminates
}

// stopSignal returns the signal that ends the program: the one that ended ctx, or SIGTERM.
func stopSignal(ctx context.Context) int {
	var interrupt Interrupt
	if errors.As(context.Cause(ctx), &interrupt) {
		if number, _ := numberOf(interrupt.Signal()); number != 0 {
			return number
		}
	}
	return terminateSignal
}
