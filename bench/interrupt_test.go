//go:build linux

package main

import (
	"bufio"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/shirou/gopsutil/v4/process"

	"github.com/tenurelock/tenure/internal/await"
)

// Ctrl-C sends an interrupt. A kill gives the run no chance to end its servers; the kernel ends them.
func TestNoServerOutlivesARunThatIsEnded(t *testing.T) {
	for name, signal := range map[string]os.Signal{"interrupted": os.Interrupt, "killed": syscall.SIGKILL} {
		t.Run(name, func(t *testing.T) {
			servers, ended := endRun(t, signal)
			if len(servers) < 2 {
				t.Errorf("there were %d servers, want those of ours and of the echo", len(servers))
			}
			for _, server := range servers {
				for end := time.Now().Add(await.Patience); isRunning(t, server); time.Sleep(10 * time.Millisecond) {
					if time.Now().After(end) {
						t.Fatalf("after the run server %d is still there", server)
					}
				}
			}
			if signal == os.Interrupt && !strings.Contains(ended, "exit status 1") {
				t.Errorf("the run ended with %q", ended)
			}
		})
	}
}

// endRun ends a run that measures, and returns its servers and how it ended.
func endRun(t *testing.T, signal os.Signal) (servers []int32, ended string) {
	t.Helper()
	// The rounds take longer than the test waits.
	bench := exec.CommandContext(t.Context(), os.Args[0], "--only", "^raw")
	bench.Env = append(bench.Environ(), asCommand+"=1", "TMPDIR="+t.TempDir())
	progress, err := bench.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := bench.Start(); err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewScanner(progress)
	for await.Result(lines.Scan) {
		if strings.HasPrefix(lines.Text(), "warming up") { // all servers run
			break
		}
	}
	self, err := process.NewProcess(int32(bench.Process.Pid))
	if err != nil {
		t.Fatal(err)
	}
	children, err := self.Children()
	if err != nil {
		t.Fatal(err)
	}
	for _, child := range children {
		servers = append(servers, child.Pid)
	}
	if err := bench.Process.Signal(signal); err != nil {
		t.Fatal(err)
	}
	for await.Result(lines.Scan) { // the pipe is read to its end before Wait
		t.Log(lines.Text())
	}
	err = await.Result(bench.Wait)
	if err == nil {
		return servers, "exit status 0"
	}
	return servers, err.Error()
}

// isRunning reports whether a process exists. One that ended and that its new parent has not
// awaited yet does not run.
func isRunning(t *testing.T, id int32) bool {
	t.Helper()
	p, err := process.NewProcess(id)
	if err != nil {
		return false
	}
	states, err := p.Status()
	return err == nil && len(states) > 0 && states[0] != process.Zombie
}
