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

	"github.com/tenurelock/tenure/election"
	"github.com/tenurelock/tenure/hlc"
)

// event is a line that a process writes to its standard output, in JSON: a change of a node's phase, a
// write with its outcome. Exited is the last one of each process.
type event struct {
	Process string `json:"-"`
	Exited  bool   `json:"-"`
	At      time.Time
	Phase   election.Phase
	Token   hlc.Token
	Version hlc.Timestamp
	Error   string // of a write
	Stale   bool   // the store refused its token
	Late    bool   // sent past the guard
}

// process is a node. The director alone uses it.
type process struct {
	cmd    *exec.Cmd
	stdin  io.WriteCloser // it ends when this is closed
	ending bool           // it is to end
	gone   bool           // its last event was handled
}

// start runs this program again with arguments, and sends its events. It shares the standard error of this
// process.
func start(name string, events chan<- event, arguments ...string) (*process, error) {
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
	go func() { // the director handles events until this has ended
		for lines := bufio.NewScanner(stdout); lines.Scan(); {
			e := event{Process: name}
			if json.Unmarshal(lines.Bytes(), &e) == nil { // a line cut short by SIGKILL is none
				events <- e
			}
		}
		_ = cmd.Wait() // a process that failed has written why to standard error
		events <- event{Process: name, Exited: true}
	}()
	return &process{cmd: cmd, stdin: stdin}, nil
}

// untilClosed returns a context that ends with ctx, with stop, and when standard input ends: then the
// director is gone. It calls command with each line of it, from another goroutine.
func untilClosed(ctx context.Context, command func(line string)) (_ context.Context, stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	go func() { // ends with the process: nothing can interrupt a read of standard input
		for lines := bufio.NewScanner(os.Stdin); lines.Scan(); {
			command(lines.Text())
		}
		cancel()
	}()
	return ctx, cancel
}
