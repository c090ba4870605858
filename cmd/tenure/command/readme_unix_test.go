//go:build unix

package command

import (
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/tenurelock/tenure/internal/await"
	"github.com/tenurelock/tenure/internal/prerequisite"
)

// The session of the README runs as it is printed there: each line that begins with "$" is entered, and
// the other lines are what the programs print. Only the ports are others.
func TestTheReadmesSessionFailsOver(t *testing.T) {
	t.Parallel()
	prerequisite.Program(t, "python3", "python3")
	readme, err := os.ReadFile("../../../README.md")
	if err != nil {
		t.Fatal(err)
	}
	_, section, _ := strings.Cut(string(readme), "## Failover for any program\n")
	section, _, _ = strings.Cut(section, "\n## ")
	var commands, printed []string
	for line := range strings.Lines(section) {
		if text, shown := strings.CutPrefix(strings.TrimSuffix(line, "\n"), "    "); !shown {
			continue
		} else if command, typed := strings.CutPrefix(text, "$ "); typed {
			commands = append(commands, command)
		} else {
			printed = append(printed, text)
		}
	}
	want := []string{"go install ./cmd/tenure", "PATH=$PATH:$(go env GOPATH)/bin", "tenure serve", "tenure run", "PATH=$PATH:$(go env GOPATH)/bin", "tenure run", "kill -9 $!"}
	if !slices.EqualFunc(commands, want, strings.HasPrefix) || len(printed) != 4 {
		t.Fatalf("the README has %q, which print %q: write this test anew", commands, printed)
	}
	broker, web, data := freePort(t), freePort(t), filepath.Join(t.TempDir(), "data")
	// The program of this test comes before one that was installed.
	environment := append(os.Environ(), "TENURE_ADDR="+broker, "TENURE_BROKER=mqtt://"+broker, "PYTHONUNBUFFERED=1",
		"PATH="+filepath.Dir(built.Path(t))+string(filepath.ListSeparator)+os.Getenv("PATH"))
	_, webPort, _ := net.SplitHostPort(web)
	replace := strings.NewReplacer("8000", webPort, "127.0.0.1:1883", broker, "/tmp/tenure", data).Replace

	first, second := openSession(t, environment), openSession(t, environment)
	first.enter(commands[1])
	first.enter(replace(commands[2]))
	first.next(replace(printed[0]))
	first.enter(replace(commands[3]))
	first.next(replace(printed[1]))
	second.enter(commands[4])
	second.enter(replace(commands[5]))
	observer := exec.Command(built.Path(t), "holder", "web")
	observer.Env = environment
	if out, err := observer.Output(); err != nil || len(out) == 0 {
		t.Fatalf("%v: %s", err, out)
	}
	first.enter(commands[6])
	first.next(printed[2])
	second.next(replace(printed[3]))
}

// A shellSession is a shell that reads commands, with all that it prints.
type shellSession struct {
	*running
	input io.Writer
}

func openSession(t *testing.T, environment []string) shellSession {
	t.Helper()
	shell := exec.Command("sh")
	shell.Env, shell.Dir = environment, t.TempDir()
	shell.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // with all that it starts
	input, err := shell.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	session := shellSession{start(t, shell), input}
	t.Cleanup(func() { _ = syscall.Kill(-shell.Process.Pid, syscall.SIGTERM) })
	session.enter("exec 2>&1")
	return session
}

func (t shellSession) enter(command string) {
	t.t.Helper()
	if _, err := io.WriteString(t.input, command+"\n"); err != nil {
		t.t.Fatal(err)
	}
}

// next reads the next line, which is text. What the shell says about its jobs is skipped.
func (t shellSession) next(text string) {
	t.t.Helper()
	for {
		line, open := await.Next(t.lines)
		switch {
		case !open:
			t.t.Fatalf("the session ended without %q", text)
		case line == text:
			return
		case !strings.Contains(line, "Killed"):
			t.t.Fatalf("the session prints %q, and the README %q", line, text)
		}
	}
}

func freePort(t *testing.T) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	return listener.Addr().String()
}
