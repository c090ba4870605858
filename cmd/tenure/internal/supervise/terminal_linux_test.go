package supervise

import (
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

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
	keys, err := os.OpenFile("/dev/ptmx", os.O_RDWR, 0)
	if err != nil {
		prerequisite.Missing(t, fmt.Sprintf("there is no terminal: %v", err))
	}
	t.Cleanup(func() { _ = keys.Close() })
	number := 0
	raw, err := keys.SyscallConn() // Fd would make reads block Close
	if err == nil {
		_ = raw.Control(func(fd uintptr) {
			if number, err = unix.IoctlGetInt(int(fd), unix.TIOCGPTN); err == nil {
				err = unix.IoctlSetPointerInt(int(fd), unix.TIOCSPTLCK, 0)
			}
		})
	}
	if err != nil {
		t.Fatal(err)
	}
	terminal, err := os.OpenFile(fmt.Sprint("/dev/pts/", number), os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	s := &session{t: t, keys: keys, cmd: exec.Command(name, arguments...)}
	s.cmd.Stdin, s.cmd.Stdout, s.cmd.Stderr = terminal, terminal, terminal
	s.cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	if err := s.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	_ = terminal.Close()
	reading := make(chan struct{})
	go func() {
		defer close(reading)
		_, _ = io.Copy(&s.screen, keys) // fails when no process has the terminal
	}()
	t.Cleanup(func() {
		_ = s.cmd.Process.Kill()
		_ = await.Result(s.cmd.Wait)
		await.Receive(reading)
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
