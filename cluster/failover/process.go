//go:build unix

package main

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"os/exec"
	"syscall"
)

// process is a store or a node in a process of its own.
type process struct {
	cmd    *exec.Cmd
	stdin  io.WriteCloser
	exited chan struct{} // closed when it has ended and all its lines were taken
}

// startProcess runs this program again with arguments, and calls line with each line of its output,
// from another goroutine.
func startProcess(line func([]byte), arguments ...string) (*process, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	cmd := exec.Command(self, arguments...)
	cmd.Stderr = os.Stderr
	// Ctrl-C goes to the director alone, which then ends the others.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	stdin, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("start %v: %w", arguments, err)
	}
	p := &process{cmd: cmd, stdin: stdin, exited: make(chan struct{})}
	go func() {
		defer close(p.exited)
		for lines := bufio.NewScanner(stdout); lines.Scan(); {
			line(lines.Bytes())
		}
		_ = cmd.Wait() // one that failed has written why to standard error
	}()
	return p, nil
}

func (p *process) signal(signal syscall.Signal) error { return p.cmd.Process.Signal(signal) }

// kill ends the process at once and waits for its end.
func (p *process) kill() {
	_ = p.cmd.Process.Kill() // fails if it has ended
	<-p.exited
}
