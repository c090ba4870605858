package examples_test

import (
	"bufio"
	"context"
	"errors"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/tenurelock/tenure/internal/await"
	"github.com/tenurelock/tenure/internal/compiled"
	"github.com/tenurelock/tenure/internal/testprocess"
	"github.com/tenurelock/tenure/server/servertest"
)

func TestMain(m *testing.M) { os.Exit(testprocess.Run(m)) }

// A program is one of the examples, built, and the server that it uses.
type program struct {
	t            *testing.T
	path, broker string
}

func build(t *testing.T, name string) program {
	t.Helper()
	built := &compiled.Program{Folder: name}
	t.Cleanup(built.Remove)
	return program{t, built.Path(t), servertest.New(t).URL}
}

// start runs the program and returns the lines that it writes. A program that fails, or runs
// for longer than a minute, fails the test.
func (p program) start(flags ...string) <-chan string {
	p.t.Helper()
	lines, _ := p.startUntil(flags...)
	return lines
}

// startUntil is start for a program that runs until stop is called.
func (p program) startUntil(flags ...string) (_ <-chan string, stop func()) {
	p.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	command := exec.CommandContext(ctx, p.path, append(flags, "--broker", p.broker)...)
	out, err := command.StdoutPipe()
	if err == nil {
		command.Stderr = command.Stdout
		err = command.Start()
	}
	if err != nil {
		p.t.Fatal(err)
	}
	lines := make(chan string, 1000)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		defer cancel()
		scanner := bufio.NewScanner(out)
		for scanner.Scan() {
			lines <- scanner.Text()
		}
		if err := await.Result(command.Wait); err != nil {
			lines <- err.Error()
			p.t.Errorf("%v: %v", command.Args, err)
		}
		close(lines)
	}()
	p.t.Cleanup(func() { await.Receive(ended) })
	return lines, func() {
		if err := command.Process.Signal(syscall.SIGTERM); err != nil {
			p.t.Error(err)
		}
	}
}

// until reads lines to the first that contains text, or to the end.
func until(t *testing.T, lines <-chan string, text string) {
	t.Helper()
	var read []string
	for {
		line, ok := await.Next(lines)
		if !ok {
			t.Fatalf("no line has %q:\n%s", text, strings.Join(read, "\n"))
		}
		if read = append(read, line); strings.Contains(line, text) {
			return
		}
	}
}

func TestTheElectionHandsOverWhenANodeEnds(t *testing.T) {
	t.Parallel()
	if runtime.GOOS == "windows" {
		t.Skip("Windows has no SIGTERM for other processes")
	}
	election := build(t, "election")
	a, stopA := election.startUntil("--name", "gateway-a")
	until(t, a, "leading")
	b, stopB := election.startUntil("--name", "gateway-b")
	until(t, b, "another holder has it")
	stopA()
	until(t, a, "no longer leading")
	until(t, b, "leading")
	stopB()
}

func TestTheLeaseLetsOneProcessWorkAtATime(t *testing.T) {
	t.Parallel()
	lease := build(t, "lease")
	a := lease.start("--name", "gateway-a", "--work", "1s")
	until(t, a, "working")
	b := lease.start("--name", "gateway-b", "--work", "1ms")
	until(t, b, "holder=gateway-a")
	until(t, a, "done")
	until(t, b, "done")
}

func TestAnExampleThatReachesNoBrokerFailsInTime(t *testing.T) {
	t.Parallel()
	path := build(t, "lease").path
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	out, err := exec.CommandContext(ctx, path, "--broker", "mqtt://127.0.0.1:1", "--wait", "1s").CombinedOutput()
	if exit := (*exec.ExitError)(nil); !errors.As(err, &exit) || exit.ExitCode() != 1 {
		t.Errorf("%v, want exit status 1:\n%s", err, out)
	}
}

// This is how systemd and Kubernetes stop a program. Its lease must not wait for the TTL.
func TestALeaderAndAHolderReleaseTheLeaseOnSIGTERM(t *testing.T) {
	t.Parallel()
	if runtime.GOOS == "windows" {
		t.Skip("Windows has no SIGTERM for other processes")
	}
	for _, test := range []struct {
		name, holds string
		flags       []string
		key         string
		code        int
	}{
		{"election", "leading", nil, "press-7/active", 0},
		{"lease", "working", []string{"--work", "1h"}, "press-7/calibration", 1}, // the job was not done
	} {
		t.Run(test.name, func(t *testing.T) {
			s := servertest.New(t)
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			command := exec.CommandContext(ctx, build(t, test.name).path, append(test.flags, "--broker", s.URL)...)
			out, err := command.StdoutPipe()
			if err == nil {
				command.Stderr = command.Stdout
				err = command.Start()
			}
			if err != nil {
				t.Fatal(err)
			}
			lines := make(chan string, 1000)
			go func() {
				defer close(lines)
				for scanner := bufio.NewScanner(out); scanner.Scan(); {
					lines <- scanner.Text()
				}
			}()
			until(t, lines, test.holds)
			if err := command.Process.Signal(syscall.SIGTERM); err != nil {
				t.Fatal(err)
			}
			for open := true; open; {
				_, open = await.Next(lines)
			}
			_ = await.Result(command.Wait)
			if code := command.ProcessState.ExitCode(); code != test.code {
				t.Errorf("exit status %d, want %d", code, test.code)
			}
			if entry, err := s.Client(t, "").Get(ctx, test.key); err != nil || entry.Exists {
				t.Errorf("the lease was not released: %v, %v", entry, err)
			}
		})
	}
}

func TestTheCheckerRefusesALateWriteAfterARestart(t *testing.T) {
	t.Parallel()
	until(t, build(t, "checker").start(), "refused by the checker")
}
