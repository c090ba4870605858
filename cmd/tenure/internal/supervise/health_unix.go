//go:build unix

package supervise

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os/exec"
	"runtime"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Shell is what runs the command line of Check.
const Shell = "/bin/sh"

// healthOutput is how much of a check's output is kept for its error.
const healthOutput = 1 << 10

// outputDelay is how long a check's output may stay open after the check has ended: a process that
// it left behind may have it.
const outputDelay = 100 * time.Millisecond

// Check runs the command line of a flag with /bin/sh. It returns nil if the status is 0, and otherwise an
// error with the flag, the status and the end of what the command wrote.
// The command has a process group of its own, which is killed when ctx ends, and when the command
// has ended. On Linux what left the group is killed too, unless this process had children before or is
// the first one of its PID namespace: then it may belong to others. Calls must not overlap.
func Check(ctx context.Context, flag, line string, env []string) error {
	helpers.adopt()
	runtime.LockOSThread() // PR_SET_PDEATHSIG kills with the thread
	defer runtime.UnlockOSThread()
	var output tail
	cmd := exec.Command(Shell, "-c", line)
	cmd.Env, cmd.Stdout, cmd.Stderr = env, &output, &output
	cmd.SysProcAttr = childAttributes()
	if err := helpers.start(cmd); err != nil {
		return fmt.Errorf("%s: %w", flag, err)
	}
	group := cmd.Process.Pid
	kill := func() { _ = unix.Kill(-group, unix.SIGKILL) }
	killed := make(chan struct{})
	stop := context.AfterFunc(ctx, func() { defer close(killed); kill() })
	cmd.WaitDelay = outputDelay
	err := waitFor(cmd, func() {
		if !stop() {
			<-killed
		}
		kill() // what it left in its group
	})
	helpers.forget(group)
	helpers.sweep()
	switch {
	case ctx.Err() != nil:
		return fmt.Errorf("%s: killed: %w%s", flag, context.Cause(ctx), output.text())
	case err == nil || errors.Is(err, exec.ErrWaitDelay):
		return nil
	}
	return fmt.Errorf("%s: %w%s", flag, err, output.text())
}

// sweep kills what is left to this process, once, unless others than checks may have left it.
func (h *helperProcesses) sweep() {
	h.mu.Lock()
	defer h.mu.Unlock()
	if !h.shared {
		signalDescendants(0, true, unix.SIGKILL, h.pids)
	}
}

// tail keeps the end of what is written to it. One goroutine writes.
type tail struct{ kept bytes.Buffer }

func (t *tail) Write(p []byte) (int, error) {
	t.kept.Write(p)
	if extra := t.kept.Len() - healthOutput; extra > 0 {
		t.kept.Next(extra)
	}
	return len(p), nil
}

// text returns what was kept, as the end of an error's text in one line.
func (t *tail) text() string {
	text := strings.Join(strings.Fields(strings.ToValidUTF8(t.kept.String(), "?")), " ")
	if text == "" {
		return ""
	}
	return ": " + text
}
