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

// process is a node or a store in a process of its own. Any goroutine may use it.
type process struct {
	name   string
	cmd    *exec.Cmd
	stdin  io.WriteCloser
	exited chan struct{} // closed when it has ended, and line and ended have returned for the last time
}

// start runs this program again with arguments. It calls line with each line of its standard output, and
// then ended, both from one other goroutine. name is for errors. The program shares the standard error of
// the caller, which ends it, and waits for exited.
func start(name string, line func([]byte), ended func(), arguments ...string) (*process, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	cmd := exec.Command(self, arguments...)
	cmd.Stderr = os.Stderr
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
	p := &process{name: name, cmd: cmd, stdin: stdin, exited: make(chan struct{})}
	go func() {
		defer close(p.exited)
		for lines := bufio.NewScanner(stdout); lines.Scan(); {
			line(lines.Bytes())
		}
		_ = cmd.Wait() // a process that failed has written why to standard error
		ended()
	}()
	return p, nil
}

// command writes a line to the standard input of the process.
func (p *process) command(line string) error {
	_, err := fmt.Fprintln(p.stdin, line)
	return err
}

// signal sends a signal; os.Kill ends the process at once.
func (p *process) signal(signal os.Signal) error {
	if err := p.cmd.Process.Signal(signal); err != nil {
		return fmt.Errorf("%v %s: %w", signal, p.name, err)
	}
	return nil
}

// kill ends the process at once. Neither line nor ended may wait for its caller.
func (p *process) kill() {
	_ = p.signal(os.Kill) // fails if it has ended
	<-p.exited
}

// kindExit is the kind of the event that startNode adds when a node has ended.
const kindExit = "exit"

// startNode runs this program again as a node, and sends the events of the node to events.
func startNode(s settings, name string, events chan<- event) (*process, error) {
	line := func(line []byte) {
		var e event
		if json.Unmarshal(line, &e) == nil { // a line cut short by SIGKILL is none
			events <- e
		}
	}
	ended := func() { events <- event{At: time.Now(), Node: name, Kind: kindExit} }
	return start(name, line, ended, "--node", name, "--run", s.run, "--broker", s.broker,
		"--ttl", s.ttl.String(), fmt.Sprintf("--verbose=%t", s.verbose), fmt.Sprintf("--instant=%t", s.instant))
}

// stopNode asks a node to end, kills it if it does not, and handles its last events
// meanwhile.
func stopNode(ctx context.Context, p *process, events <-chan event, heard func(event)) {
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
			_ = p.signal(os.Kill)
		case <-interrupted:
			_ = p.signal(os.Kill)
			interrupted = nil
		}
	}
}
