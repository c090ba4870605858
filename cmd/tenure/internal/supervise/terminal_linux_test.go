package supervise

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/creack/pty"
	"golang.org/x/sys/unix"

	"github.com/tenurelock/tenure/internal/await"
	"github.com/tenurelock/tenure/internal/logbuffer"
	"github.com/tenurelock/tenure/internal/prerequisite"
)

// session is a program in a terminal, as its first process.
type session struct {
	t      *testing.T
	keys   *os.File
	screen logbuffer.Buffer
	cmd    *exec.Cmd
}

func startSession(t *testing.T, name string, arguments ...string) *session {
	t.Helper()
	s := &session{t: t, cmd: exec.Command(name, arguments...)}
	terminal, err := pty.Start(s.cmd)
	if err != nil {
		prerequisite.Missing(t, fmt.Sprintf("there is no terminal: %v", err))
	}
	fd, err := unix.Dup(int(terminal.Fd()))
	if err := errors.Join(err, unix.SetNonblock(fd, true), terminal.Close()); err != nil { // else a read blocks Close
		t.Fatal(err)
	}
	s.keys = os.NewFile(uintptr(fd), "keys")
	reading := make(chan struct{})
	go func() {
		defer close(reading)
		_, _ = io.Copy(&s.screen, s.keys) // fails when no process has the terminal
	}()
	t.Cleanup(func() {
		_ = s.cmd.Process.Kill()
		_ = await.Result(s.cmd.Wait)
		await.Receive(reading)
		_ = s.keys.Close()
		if t.Failed() {
			t.Logf("the screen:\n%s", s.screen.String())
		}
	})
	return s
}

// awaitText waits until the text is on the screen for the nth time.
func (s *session) awaitText(text string, n int) {
	s.t.Helper()
	await.Until(func() bool { return strings.Count(s.screen.String(), text) >= n })
}

func (s *session) press(keys string) {
	s.t.Helper()
	if _, err := s.keys.Write([]byte(keys)); err != nil {
		s.t.Fatal(err)
	}
}

// The program has the terminal: it reads, and Ctrl-C reaches it, as if a shell had started it.
func TestTheProgramHasTheTerminal(t *testing.T) {
	t.Parallel()
	broker := server(t)
	script := `trap 'echo "got it"; exit 5' INT; echo ready; read line; echo "read: $line"; while :; do sleep 0.01; done`
	s := startSession(t, tenure, "lock", "--broker", broker, "press", "--", "/bin/sh", "-c", script)
	s.awaitText("ready", 1)
	s.press("\x1a") // a lease is held by what works: Ctrl-Z has no effect
	s.press("a line\n")
	s.awaitText("read: a line", 1)
	s.press("\x03")
	s.awaitText("got it", 1)
	_ = await.Result(s.cmd.Wait)
	if code := s.cmd.ProcessState.ExitCode(); code != 5 {
		t.Errorf("exit code %d, want 5, with which the program ends after Ctrl-C", code)
	}
	awaitFree(t, broker, "press", await.Patience)
}

// Ctrl-C ends a loop of a shell, whether the program runs or the lease is awaited.
func TestCtrlCEndsTheLoopOfAShell(t *testing.T) {
	t.Parallel()
	bash := prerequisite.Program(t, "bash", "bash")
	broker := server(t)
	held := startNode(t, filepath.Join(t.TempDir(), "lock"), broker, "polite", "lock", "held")
	held.awaitStart()
	for name, ready := range map[string]string{"free": "ready", "held": "another holder has it"} {
		loop := `while :; do "$0" lock --broker "$1" "$2" -- sh -c 'echo ready; exec sleep 1000'; echo "again"; done`
		s := startSession(t, bash, "-c", loop, tenure, broker, name)
		s.awaitText(ready, 1)
		s.press("\x03")
		_ = await.Result(s.cmd.Wait)
		if status := s.cmd.ProcessState.Sys().(syscall.WaitStatus); status.Signal() != unix.SIGINT || strings.Contains(s.screen.String(), "again") {
			t.Errorf("%s: the shell ended with %v after Ctrl-C", name, s.cmd.ProcessState)
		}
	}
}

// A terminal that closes ends what waits in it, and passes SIGHUP on to a program.
func TestATerminalThatClosesEndsACandidate(t *testing.T) {
	t.Parallel()
	broker := server(t)
	for _, program := range []string{"a holder", "a standby"} {
		if program == "a standby" {
			startNode(t, filepath.Join(t.TempDir(), "lock"), broker, "polite", "lock", "press").awaitStart()
		}
		s := startSession(t, tenure, "run", "--broker", broker, "press", "--", "/bin/sh", "-c", "echo ready; exec sleep 1000")
		s.awaitText(map[string]string{"a holder": "ready", "a standby": "another holder has it"}[program], 1)
		_ = s.keys.Close()
		_ = await.Result(s.cmd.Wait)
		if code := s.cmd.ProcessState.ExitCode(); code != 128+int(unix.SIGHUP) {
			t.Errorf("%s: exit code %d, want %d", program, code, 128+int(unix.SIGHUP))
		}
	}
}
