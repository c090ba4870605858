package command

import (
	"bufio"
	"bytes"
	"context"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/tenurelock/tenure/hlc"
	"github.com/tenurelock/tenure/internal/await"
	"github.com/tenurelock/tenure/internal/compiled"
	"github.com/tenurelock/tenure/internal/logbuffer"
	"github.com/tenurelock/tenure/internal/testprocess"
	"github.com/tenurelock/tenure/lease"
	"github.com/tenurelock/tenure/transport"
)

const (
	patience       = 20 * time.Second
	moment         = `20\d\d-\d\d-\d\dT\d\d:\d\d:\d\d\.\d\d\d\S+`
	versionPattern = `\d+:\d+:\S+`
)

// built is the command tenure.
var built = compiled.Program{Folder: ".."}

// A test that starts a store without --memory and without a directory of its own would write to
// the user's. Here the default cannot be made, so that such a test fails.
func TestMain(m *testing.M) {
	_ = os.Setenv("STATE_DIRECTORY", filepath.Join(os.DevNull, "give-a-test-its-own-directory"))
	status := testprocess.Run(m)
	built.Remove()
	os.Exit(status)
}

// A running is a command that goes on.
type running struct {
	t      *testing.T
	cmd    *exec.Cmd
	lines  chan string // of standard output
	stderr *logbuffer.Buffer
}

// begin starts tenure, which is killed when the test ends.
func begin(t *testing.T, arguments ...string) *running {
	t.Helper()
	return start(t, exec.Command(built.Path(t), arguments...))
}

// start is begin for a command of the test's own.
func start(t *testing.T, cmd *exec.Cmd) *running {
	t.Helper()
	r := &running{t: t, cmd: cmd, lines: make(chan string, 100), stderr: new(logbuffer.Buffer)}
	if r.cmd.Stderr == nil {
		r.cmd.Stderr = r.stderr
	}
	stdout, err := r.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := r.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go r.read(stdout)
	t.Cleanup(func() {
		_ = r.cmd.Process.Kill()
		r.rest()
		_ = await.Result(r.cmd.Wait)
	})
	return r
}

// read passes lines on.
func (r *running) read(stdout io.Reader) {
	defer close(r.lines)
	for scanner := bufio.NewScanner(stdout); scanner.Scan(); {
		r.lines <- scanner.Text()
	}
}

// here is begin in this process, until the test ends. interrupt ends it earlier, and returns its exit code.
func here(t *testing.T, arguments ...string) (r *running, interrupt func() (code int)) {
	t.Helper()
	r = &running{t: t, lines: make(chan string, 100), stderr: new(logbuffer.Buffer)}
	stdout, out := io.Pipe()
	program := Program{Name: "tenure"}
	root := program.Command()
	root.SetOut(out)
	root.SetErr(r.stderr)
	root.SetArgs(arguments)
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan int, 1)
	go func() {
		code, text, _ := program.execute(ctx, root)
		_, _ = io.WriteString(r.stderr, text)
		_ = out.Close()
		ended <- code
	}()
	go r.read(stdout)
	interrupt = sync.OnceValue(func() int {
		cancel()
		r.rest()
		return await.Receive(ended)
	})
	t.Cleanup(func() { interrupt() })
	return r, interrupt
}

// mustPrint waits for a line of standard output that matches a regular expression. It returns the first group of
// that, or the line.
func (r *running) mustPrint(want string) string {
	r.t.Helper()
	line, open := await.Next(r.lines)
	found := regexp.MustCompile(`\A` + want + `\z`).FindStringSubmatch(line)
	if !open || found == nil {
		r.t.Fatalf("printed %q (ended: %t), want %q; standard error:\n%s", line, !open, want, r.stderr)
	}
	return found[len(found)-1]
}

// rest returns what else it prints, until it and all that it started have closed standard output.
func (r *running) rest() (printed []string) {
	for line, open := await.Next(r.lines); open; line, open = await.Next(r.lines) {
		printed = append(printed, line)
	}
	return printed
}

// signal sends a signal.
func (r *running) signal(signal os.Signal) {
	r.t.Helper()
	if err := r.cmd.Process.Signal(signal); err != nil {
		r.t.Fatal(err)
	}
}

// mustEndAfter sends a signal and waits for the end with the code that a shell shows for it: SIGINT ends a command
// by itself, so that a shell ends a loop around it. It may print these lines before.
func (r *running) mustEndAfter(signal os.Signal, code int, last ...string) {
	r.t.Helper()
	r.signal(signal)
	printed := r.rest()
	_ = await.Result(r.cmd.Wait)
	got := r.cmd.ProcessState.ExitCode()
	if status, ok := r.cmd.ProcessState.Sys().(syscall.WaitStatus); ok && status.Signaled() {
		got = exitSignal + int(status.Signal())
	}
	if got != code || !slices.Equal(printed, last) {
		r.t.Errorf("after %v: exit code %d, want %d; it printed %q; standard error:\n%s", signal, got, code, printed, r.stderr)
	}
}

// startMemory runs a server in memory until the test ends, and returns its address.
func startMemory(t *testing.T, flags ...string) (address string) {
	t.Helper()
	r, _ := here(t, append([]string{"serve", "--memory", "--addr", "127.0.0.1:0"}, flags...)...)
	return r.mustPrint(`listening on (\S+) .*`)
}

// startAttached runs a store in memory on a broker until the test ends.
func startAttached(t *testing.T, broker string, flags ...string) {
	t.Helper()
	r, _ := here(t, append([]string{"attach", "--memory", broker}, flags...)...)
	r.mustPrint("attached to " + regexp.QuoteMeta(broker) + ".*")
}

// dialTest returns a client until the test ends.
func dialTest(t *testing.T, address, id string) *transport.Client {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), await.Patience)
	defer cancel()
	client, err := transport.Dial(ctx, address, transport.Options{ClientID: id})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = client.Close() })
	return client
}

// mustSet sets a key, and returns its version.
func mustSet(t *testing.T, client *transport.Client, key, value string) hlc.Timestamp {
	t.Helper()
	version, err := client.Set(t.Context(), key, []byte(value), transport.SetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return version
}

// acquireAs acquires a lease.
func acquireAs(t *testing.T, client *transport.Client, name string) *lease.Tenure {
	t.Helper()
	l, err := lease.New(client, name, lease.Options{TTL: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), await.Patience)
	defer cancel()
	tenure, err := l.Acquire(ctx)
	if err != nil {
		t.Fatal(err)
	}
	return tenure
}

// An outcome is what a command did.
type outcome struct {
	code           int
	stdout, stderr string
}

// tenure runs the command with standard input, in a process of its own, until it ends.
func tenure(t *testing.T, stdin string, environment []string, arguments ...string) outcome {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*patience)
	defer cancel()
	cmd := exec.CommandContext(ctx, built.Path(t), arguments...)
	cmd.WaitDelay = patience // for what it has started
	var stdout, stderr bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader(stdin), &stdout, &stderr
	cmd.Env = append(os.Environ(), environment...)
	err := cmd.Run()
	if cmd.ProcessState == nil {
		t.Fatal(err)
	}
	return outcome{cmd.ProcessState.ExitCode(), stdout.String(), stderr.String()}
}

// invoke is tenure in this process.
func invoke(t *testing.T, stdin string, arguments ...string) outcome {
	t.Helper()
	return invokeWith(t, t.Context(), stdin, arguments...)
}

func invokeWith(t *testing.T, ctx context.Context, stdin string, arguments ...string) outcome {
	t.Helper()
	ctx, cancel := context.WithTimeout(ctx, 2*patience)
	defer cancel()
	program := Program{Name: "tenure"}
	root := program.Command()
	var stdout, stderr logbuffer.Buffer
	root.SetIn(strings.NewReader(stdin))
	root.SetOut(&stdout)
	root.SetErr(&stderr)
	root.SetArgs(arguments)
	code, text, _ := program.execute(ctx, root)
	if text != "" {
		text = "tenure: " + text + "\n"
	}
	return outcome{code, stdout.String(), stderr.String() + text}
}

// write writes a file into a new directory, and returns its name.
func write(t *testing.T, name, content string) string {
	t.Helper()
	name = filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(name, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	return name
}

// readUntil reads until it has read text, and returns all of it.
func readUntil(from io.Reader, text string) string {
	return await.Result(func() string {
		var all strings.Builder
		buffer := make([]byte, 4096)
		for !strings.Contains(all.String(), text) {
			n, err := from.Read(buffer)
			all.Write(buffer[:n])
			if err != nil {
				break
			}
		}
		return all.String()
	})
}

// until reads a terminal until it has shown text.
func until(t *testing.T, screen io.Reader, text string) {
	t.Helper()
	if shown := readUntil(screen, text); !strings.Contains(shown, text) {
		t.Fatalf("%q is not in %q", text, shown)
	}
}

// listen accepts connections until the test ends, and returns the address.
func listen(t *testing.T, serve func(net.Conn)) (address string) {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	var open []net.Conn
	go func() {
		defer close(ended)
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			open = append(open, conn)
			serve(conn)
		}
	}()
	t.Cleanup(func() {
		_ = listener.Close()
		await.Receive(ended)
		for _, conn := range open {
			_ = conn.Close()
		}
	})
	return listener.Addr().String()
}
