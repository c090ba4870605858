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
	peers := command{until: "warming up", children: 2, arguments: []string{"--only", "^raw"}}
	growth := command{until: "connections: 100", children: 2, arguments: []string{"growth", "--only", "connections", "--largest", "300"}}
	for name, test := range map[string]struct {
		command
		signal os.Signal
	}{
		"peers, interrupted": {peers, os.Interrupt}, "peers, killed": {peers, syscall.SIGKILL},
		"growth, interrupted": {growth, os.Interrupt}, "growth, killed": {growth, syscall.SIGKILL},
	} {
		t.Run(name, func(t *testing.T) {
			signal := test.signal
			servers, ended := endRun(t, test.command, signal)
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

// command is a run that takes longer than the test waits.
type command struct {
	until     string // the beginning of a line of its progress
	children  int    // the processes that it starts at that time
	arguments []string
}

// endRun ends a run that measures, and returns its servers and other children, and how it ended.
func endRun(t *testing.T, test command, signal os.Signal) (servers []int32, ended string) {
	t.Helper()
	bench := exec.CommandContext(t.Context(), os.Args[0], test.arguments...)
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
		if strings.HasPrefix(lines.Text(), test.until) {
			break
		}
	}
	self, err := process.NewProcess(int32(bench.Process.Pid))
	if err != nil {
		t.Fatal(err)
	}
	var children []*process.Process
	await.Until(func() bool {
		children, _ = self.Children() // an error is that there is none yet
		return len(children) >= test.children
	})
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
