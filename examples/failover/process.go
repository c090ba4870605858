//go:build unix || windows

package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"time"
)

// process is a node in a process of its own.
type process struct {
	name   string
	cmd    *exec.Cmd
	stdin  io.WriteCloser
	exited chan struct{} // closed when it has ended and all its events were taken
}

// startProcess runs this program again as a node, and sends the events of the node to events.
func startProcess(s settings, name string, events chan<- event) (*process, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	cmd := exec.Command(self, "--node", name, "--run", s.run, "--broker", s.broker,
		"--ttl", s.ttl.String(), fmt.Sprintf("--verbose=%t", s.verbose), fmt.Sprintf("--instant=%t", s.instant))
	cmd.Stderr = os.Stderr
	// Ctrl-C goes to the director alone, which then ends the nodes.
	cmd.SysProcAttr = inItsOwnGroup
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
	p := &process{name: name, cmd: cmd, stdin: stdin, exited: make(chan struct{})}
	go func() {
		defer close(p.exited)
		lines := bufio.NewScanner(stdout)
		for lines.Scan() {
			var e event
			if json.Unmarshal(lines.Bytes(), &e) == nil { // a line cut short by SIGKILL is none
				events <- e
			}
		}
		_ = cmd.Wait() // a node that failed has written why to standard error
		events <- event{At: time.Now(), Node: name, Kind: kindExit}
	}()
	return p, nil
}

// kill ends the node at once.
func (p *process) kill() error {
	if err := p.cmd.Process.Kill(); err != nil {
		return fmt.Errorf("kill %s: %w", p.name, err)
	}
	return nil
}

// resign asks the node to hand over.
func (p *process) resign() error {
	_, err := fmt.Fprintln(p.stdin, commandResign)
	return err
}

// stop asks the node to end, kills it if it does not, and handles its last events
// meanwhile.
func (p *process) stop(ctx context.Context, events <-chan event, heard func(event)) {
	_ = p.stdin.Close()
	_ = p.wake() // fails if the node has ended
	patience := time.NewTimer(5 * time.Second)
	defer patience.Stop()
	interrupted := ctx.Done()
	for {
		select {
		case <-p.exited:
			return
		case e := <-events:
			heard(e)
		case <-patience.C:
			_ = p.kill()
		case <-interrupted:
			_ = p.kill()
			interrupted = nil
		}
	}
}
