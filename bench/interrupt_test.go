//go:build linux

package main

import (
	"bufio"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/tenurelock/tenure/internal/await"
)

// Ctrl-C sends an interrupt. A kill gives the run no chance to end its servers; the kernel ends them.
func TestNoServerOutlivesARunThatIsEnded(t *testing.T) {
	peers := []string{"--only", "^NATS"}
	growth := []string{"growth", "--only", "connections"}
	for _, test := range []struct {
		arguments []string
		until     string // the beginning of a line of the progress
		signal    os.Signal
	}{
		{peers, "warming up", syscall.SIGKILL}, {growth, "connections: 100", os.Interrupt},
	} {
		dir := t.TempDir()
		bench := exec.CommandContext(t.Context(), os.Args[0], test.arguments...)
		bench.Env = append(bench.Environ(), asCommand+"=1", "TMPDIR="+dir)
		progress, err := bench.StderrPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := bench.Start(); err != nil {
			t.Fatal(err)
		}
		lines := bufio.NewScanner(progress)
		for await.Result(lines.Scan) && !strings.HasPrefix(lines.Text(), test.until) {
		}
		await.Until(func() bool { return running(dir) >= 3 }) // with two servers, or a server and the clients
		if err := bench.Process.Signal(test.signal); err != nil {
			t.Fatal(err)
		}
		for await.Result(lines.Scan) { // the pipe is read to its end before Wait
			t.Log(lines.Text())
		}
		if err := await.Result(bench.Wait); err == nil || test.signal == os.Interrupt && err.Error() != "exit status 1" {
			t.Errorf("%q ended with %v", test.arguments, err)
		}
		await.Until(func() bool { return running(dir) == 0 })
	}
}

// running returns how many processes have a directory for what they keep.
func running(dir string) (n int) {
	processes, _ := filepath.Glob("/proc/[0-9]*/environ")
	for _, process := range processes {
		if text, err := os.ReadFile(process); err == nil && strings.Contains(string(text), "TMPDIR="+dir+"\x00") {
			n++
		}
	}
	return n
}
