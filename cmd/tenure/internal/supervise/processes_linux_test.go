package supervise

import (
	"bufio"
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tenurelock/tenure/internal/await"
	"github.com/tenurelock/tenure/internal/compiled"
	"github.com/tenurelock/tenure/internal/logbuffer"
	"github.com/tenurelock/tenure/internal/testprocess"
	"github.com/tenurelock/tenure/server/servertest"
	"github.com/tenurelock/tenure/transport"
)

// The tests run the command itself. The program
// that it supervises is this test, in one of the roles of beProgram.

// tenure is the path of the command.
var tenure string

func TestMain(m *testing.M) {
	Intercept() // tests start guards themselves
	if role := os.Getenv("SUPERVISE_ROLE"); role != "" {
		beProgram(role)
		return
	}
	_ = os.Setenv("TENURE_LOG_LEVEL", "info") // the tests read the log of lock
	// Under nohup the commands would inherit that SIGHUP is ignored. What is caught here is not.
	signal.Notify(make(chan os.Signal, 1), unix.SIGHUP)
	os.Exit(func() int {
		command := compiled.Program{Folder: "../.."}
		defer command.Remove()
		var err error
		if tenure, err = command.Build(); err != nil {
			panic(err)
		}
		return testprocess.Run(m)
	}())
}

// beProgram is a program under a lease. It, and all that it starts, have a pipe to the test, whose
// end shows that all are gone, and the lock of a file, which is free only then.
func beProgram(role string) {
	switch role {
	case "own session": // setsid, which not every machine has
		if _, err := unix.Setsid(); err != nil {
			panic(err)
		}
		panic(unix.Exec("/bin/sh", append([]string{"sh", "-c"}, os.Args[1:]...), os.Environ()))
	case "leaf": // what a program started
		signal.Ignore(unix.SIGTERM, unix.SIGHUP, unix.SIGINT)
		if os.Getenv("SUPERVISE_READY") != "" { // the program waits for this
			_ = unix.Close(5)
		}
		time.Sleep(10 * await.Patience)
		return
	}
	pipe, err := os.OpenFile(os.Getenv("SUPERVISE_PIPE"), os.O_WRONLY, 0)
	if err != nil {
		panic(err)
	}
	lock, err := os.OpenFile(os.Getenv("SUPERVISE_LOCK"), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		panic(err)
	}
	say := func(format string, args ...any) { fmt.Fprintf(pipe, format+"\n", args...) }
	if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		say("overlap")
	}
	signals := make(chan os.Signal, 8)
	signal.Notify(signals, unix.SIGTERM, unix.SIGINT, unix.SIGHUP, unix.SIGUSR1, unix.SIGCONT)
	leaf := func(attributes *syscall.SysProcAttr) {
		cmd := exec.Command(os.Args[0])
		cmd.Env = append(os.Environ(), "SUPERVISE_ROLE=leaf", "SUPERVISE_READY=yes")
		waiting, ready, err := os.Pipe()
		if err != nil {
			panic(err)
		}
		cmd.ExtraFiles = []*os.File{pipe, lock, ready}
		cmd.SysProcAttr = attributes
		if err := cmd.Start(); err != nil {
			panic(err)
		}
		_ = ready.Close()
		_, _ = waiting.Read(make([]byte, 1)) // until it ignores what it ignores
		_ = waiting.Close()
	}
	switch role {
	case "plain", "obstinate", "polite":
	case "group": // a descendant in the group
		leaf(nil)
	case "session": // a descendant in a session of its own
		leaf(&syscall.SysProcAttr{Setsid: true})
	case "daemon": // a descendant without a parent, as a double fork makes it
		cmd := exec.Command("/bin/sh", "-c", ownSession(`SUPERVISE_ROLE=leaf "$0" & exit 0`)+` "$0"; exit 0`, os.Args[0])
		cmd.ExtraFiles = []*os.File{pipe, lock}
		if err := cmd.Run(); err != nil {
			panic(err)
		}
	case "leaves": // ends, and leaves two behind
		leaf(nil)
		leaf(&syscall.SysProcAttr{Setsid: true})
	}
	say("start %d", now())
	say("%s=%s", "TENURE_TOKEN", os.Getenv("TENURE_TOKEN"))
	switch role {
	case "leaves":
		os.Exit(7)
	case "frozen":
		_ = unix.Kill(os.Getpid(), unix.SIGSTOP)
	}
	heed(role, signals, say)
}

// ownSession is a command for a shell that runs a line in a session of its own.
func ownSession(line string) string {
	return "SUPERVISE_ROLE='own session' '" + os.Args[0] + "' '" + line + "'"
}

// heed does what the program of a role does about signals, and says which it got.
func heed(role string, signals <-chan os.Signal, say func(string, ...any)) {
	for s := range signals {
		say("got %v", s)
		switch {
		case role == "polite" && s == unix.SIGTERM:
			os.Exit(0)
		case role == "plain" && s == unix.SIGTERM, role == "plain" && s == unix.SIGINT:
			signal.Reset(s)
			_ = unix.Kill(os.Getpid(), s.(syscall.Signal))
		}
	}
}

// server starts a store, and returns its address.
func server(t *testing.T) string {
	t.Helper()
	return servertest.New(t).URL
}

// dial returns a client of a server.
func dial(t *testing.T, broker string) *transport.Client {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), await.Patience)
	defer cancel()
	client, err := transport.Dial(ctx, broker, transport.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = client.Close() })
	return client
}

// node is one process of tenure run or tenure lock.
type node struct {
	t        *testing.T
	cmd      *exec.Cmd
	log      logbuffer.Buffer
	lines    chan string // what its program says
	lockFile string
	gone     chan time.Duration // when all processes of the program are gone
	over     chan error         // the end of the supervisor
}

// startNode starts tenure with these arguments, and a program in a role behind them.
func startNode(t *testing.T, lock, broker, role string, arguments ...string) *node {
	t.Helper()
	n := &node{t: t, lockFile: lock, lines: make(chan string, 100), gone: make(chan time.Duration, 1), over: make(chan error, 1)}
	pipe := filepath.Join(t.TempDir(), "pipe")
	if err := unix.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	n.cmd = exec.Command(tenure, append(append([]string{arguments[0], "--broker", broker}, arguments[1:]...), "--", os.Args[0])...)
	n.cmd.Env = append(os.Environ(), "SUPERVISE_ROLE="+role, "SUPERVISE_PIPE="+pipe, "SUPERVISE_LOCK="+lock)
	n.cmd.Stderr = &n.log
	n.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := n.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	reading := make(chan struct{})
	go func() {
		defer close(reading)
		defer close(n.lines)
		file, err := os.Open(pipe) // returns when a program opens the other end
		if err != nil {
			return
		}
		defer file.Close()
		lines := bufio.NewScanner(file)
		for lines.Scan() {
			n.lines <- lines.Text()
		}
		n.gone <- now()
	}()
	wait := n.cmd.Wait // bounded where n.over is received from: a node may run for longer than the bound
	go func() { n.over <- wait() }()
	t.Cleanup(func() {
		_ = n.cmd.Process.Signal(unix.SIGCONT)
		_ = n.cmd.Process.Signal(unix.SIGTERM)
		if n.over != nil {
			_ = await.Receive(n.over)
		}
		if file, err := os.OpenFile(pipe, os.O_WRONLY|unix.O_NONBLOCK, 0); err == nil {
			_ = file.Close() // no program has opened it
		}
		await.Receive(reading)
		if t.Failed() {
			t.Logf("%q said on standard error:\n%s", n.cmd.Args, n.log.String())
		}
	})
	return n
}

// awaitStart returns when the program started.
func (n *node) awaitStart() time.Duration {
	n.t.Helper()
	text := n.awaitLine("start ")
	at, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		n.t.Fatal(err)
	}
	return time.Duration(at)
}

// awaitLine returns the rest of the next line that begins so.
func (n *node) awaitLine(prefix string) string {
	n.t.Helper()
	for {
		line, open := await.Next(n.lines)
		if !open {
			n.t.Fatalf("the program ended before it said %q", prefix)
		}
		if line == "overlap" {
			n.t.Error("the program of the node before was still alive")
		}
		if rest, ok := strings.CutPrefix(line, prefix); ok {
			return rest
		}
	}
}

// awaitGone returns when the program and all that it started were gone.
func (n *node) awaitGone() time.Duration {
	n.t.Helper()
	go func() {
		for range n.lines { // what it still says
		}
	}()
	return await.Receive(n.gone)
}

// awaitExit returns the exit code of the supervisor.
func (n *node) awaitExit() int {
	n.t.Helper()
	await.Receive(n.over)
	n.over = nil
	if status := n.cmd.ProcessState.Sys().(syscall.WaitStatus); status.Signaled() {
		return 128 + int(status.Signal())
	}
	return n.cmd.ProcessState.ExitCode()
}

func (n *node) signal(s syscall.Signal) {
	n.t.Helper()
	if err := n.cmd.Process.Signal(s); err != nil {
		n.t.Fatal(err)
	}
}

// guard returns the process id of the guard.
func (n *node) guard() int {
	n.t.Helper()
	entries, _ := descendants(n.cmd.Process.Pid, nil)
	for _, e := range entries {
		if e.parent == n.cmd.Process.Pid {
			return e.pid
		}
	}
	n.t.Fatal("there is no guard")
	return 0
}

// awaitFree returns once no client holds the lease. It fails the test if that takes too long.
func awaitFree(t *testing.T, broker, name string, within time.Duration) {
	t.Helper()
	client, began := dial(t, broker), time.Now()
	await.Until(func() bool {
		entry, err := client.Get(t.Context(), name)
		return err == nil && !entry.Exists
	})
	if took := time.Since(began); took > within {
		t.Errorf("%s was held for %v", name, took)
	}
}

func awaitLog(t *testing.T, n *node, text string) {
	t.Helper()
	awaitLogs(t, n, text, 1)
}

// awaitLogs waits until the log has a text so often.
func awaitLogs(t *testing.T, n *node, text string, times int) {
	t.Helper()
	await.Until(func() bool { return strings.Count(n.log.String(), text) >= times })
}

// proxy is a network between nodes and the server. It passes everything on, until it is cut.
type proxy struct {
	listener net.Listener
	cuts     func(sent []byte) bool // what cuts it, of what nodes send; nil: nothing does
	isCut    chan struct{}          // closed when it was cut
	cut      func()                 // drops everything from now on, and keeps the connections open
	tasks    sync.WaitGroup

	mu     sync.Mutex
	conns  []net.Conn
	frozen int // of conns: the first ones are silent
	passed int // how often bytes were passed on
}

func startProxy(t *testing.T, broker string, cuts func(sent []byte) bool) *proxy {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p := &proxy{listener: listener, cuts: cuts, isCut: make(chan struct{})}
	p.cut = sync.OnceFunc(func() { close(p.isCut) })
	p.tasks.Go(func() {
		for {
			near, err := listener.Accept()
			if err != nil {
				return
			}
			far, err := net.Dial("tcp", strings.TrimPrefix(broker, "mqtt://"))
			if err != nil {
				_ = near.Close()
				continue
			}
			p.mu.Lock()
			p.conns = append(p.conns, near, far)
			number := len(p.conns)
			p.mu.Unlock()
			p.tasks.Go(func() { p.pass(far, near, number, true) })
			p.tasks.Go(func() { p.pass(near, far, number, false) })
		}
	})
	t.Cleanup(func() {
		_ = listener.Close()
		p.mu.Lock()
		for _, conn := range p.conns {
			_ = conn.Close()
		}
		p.mu.Unlock()
		await.Done(p.tasks.Wait)
	})
	return p
}

// pass passes bytes on, which a node sends or the server.
func (p *proxy) pass(to, from net.Conn, number int, sends bool) {
	for buffer := make([]byte, 32<<10); ; {
		n, err := from.Read(buffer)
		if err == nil && sends && p.cuts != nil && p.cuts(buffer[:n]) {
			p.cut()
		}
		p.mu.Lock()
		p.passed++
		silent := number <= p.frozen
		p.mu.Unlock()
		select {
		case <-p.isCut:
			silent = true
		default:
		}
		switch {
		case err != nil && !silent:
			_ = to.Close()
			return
		case err != nil:
			return
		case !silent:
			_, _ = to.Write(buffer[:n])
		}
	}
}

func (p *proxy) address() string { return "mqtt://" + p.listener.Addr().String() }

// freeze makes the present connections silent, and not those that follow.
func (p *proxy) freeze() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.frozen = len(p.conns)
}

// awaitTraffic waits until bytes were passed on so often from now on.
func (p *proxy) awaitTraffic(times int) {
	count := func() int {
		p.mu.Lock()
		defer p.mu.Unlock()
		return p.passed
	}
	end := count() + times
	await.Until(func() bool { return count() >= end })
}

// trySignal signals a supervisor that may be gone.
func (n *node) trySignal(s syscall.Signal) { _ = n.cmd.Process.Signal(s) }
