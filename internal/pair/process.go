//go:build unix || windows

package pair

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"os/exec"
)

// Process is a node or a store in a process of its own. Any goroutine may use it.
type Process struct {
	name   string
	cmd    *exec.Cmd
	stdin  io.WriteCloser
	exited chan struct{}
}

// Start runs this program again with arguments, as StartCommand does. The program shares the
// standard error of the caller.
func Start(name string, line func([]byte), ended func(), arguments ...string) (*Process, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	cmd := exec.Command(self, arguments...)
	cmd.Stderr = os.Stderr
	return StartCommand(cmd, name, line, ended)
}

// StartCommand starts a command. It calls line with each line of its standard output, and then
// ended, both from one other goroutine; ended may be nil. name is for errors. The caller ends the
// process, and waits for Exited.
func StartCommand(cmd *exec.Cmd, name string, line func([]byte), ended func()) (*Process, error) {
	cmd.SysProcAttr = inItsOwnGroup // Ctrl-C goes to the director alone, which then ends the others
	stdin, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("start %s: %w", name, err)
	}
	p := &Process{name: name, cmd: cmd, stdin: stdin, exited: make(chan struct{})}
	go func() {
		defer close(p.exited)
		for lines := bufio.NewScanner(stdout); lines.Scan(); {
			line(lines.Bytes())
		}
		_ = cmd.Wait() // a process that failed has written why to standard error
		if ended != nil {
			ended()
		}
	}()
	return p, nil
}

// Exited returns a channel that is closed when the process has ended, and line and ended have
// returned for the last time.
func (p *Process) Exited() <-chan struct{} { return p.exited }

// PID returns the number of the process.
func (p *Process) PID() int { return p.cmd.Process.Pid }

// Command writes a line to the standard input of the process.
func (p *Process) Command(line string) error {
	_, err := fmt.Fprintln(p.stdin, line)
	return err
}

// CloseInput closes the standard input of the process, which asks a node or a store to end.
func (p *Process) CloseInput() { _ = p.stdin.Close() } // fails if it is closed

// Signal sends a signal; os.Kill ends the process at once.
func (p *Process) Signal(signal os.Signal) error {
	if err := p.cmd.Process.Signal(signal); err != nil {
		return fmt.Errorf("%v %s: %w", signal, p.name, err)
	}
	return nil
}

// Kill ends the process at once and waits for Exited. Neither line nor ended may wait for its caller.
func (p *Process) Kill() {
	_ = p.Signal(os.Kill) // fails if it has ended
	<-p.exited
}
