package peer

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"time"
)

const (
	// startPatience is how long a server may take to accept clients.
	startPatience = 30 * time.Second
	// stopPatience is how long a server may take to end by itself.
	stopPatience = 5 * time.Second
	// attempts is how many ports are tried: what was free a moment ago may be taken.
	attempts = 5
)

// Host runs servers on this machine. Close ends all of them.
type Host struct {
	dir     string // of all that the servers keep
	servers []*process
	mu      sync.Mutex // guards servers
}

// NewHost returns a host without servers. Its servers keep their data in a new directory below
// os.TempDir.
func NewHost() (*Host, error) {
	dir, err := os.MkdirTemp("", "tenure-peers-")
	if err != nil {
		return nil, err
	}
	return &Host{dir: dir}, nil
}

// Close ends all servers, waits for them, and removes their data.
func (h *Host) Close() error {
	h.mu.Lock()
	servers := h.servers
	h.servers = nil
	h.mu.Unlock()
	for _, p := range servers {
		p.stop()
	}
	for _, p := range servers {
		<-p.ended // bounded: stop kills what does not end in stopPatience
	}
	return os.RemoveAll(h.dir)
}

// The commands of this repository, for Build.
const (
	// Commands are all: the directive tool in go.mod names them.
	Commands = "tool"
	// TenureCommand is the command tenure alone, which compiles in a fraction of the time.
	TenureCommand = "github.com/tenurelock/tenure/cmd/tenure"
)

// Build compiles Commands or TenureCommand. Without it, servers of ours do not start.
func (h *Host) Build(ctx context.Context, commands string) error {
	build := exec.CommandContext(ctx, "go", "build", "-o", h.dir+string(filepath.Separator), commands)
	build.WaitDelay = stopPatience
	if out, err := build.CombinedOutput(); err != nil {
		return fmt.Errorf("build the commands of this repository: %w\n%s", err, out)
	}
	return nil
}

// command returns the path of a command that Build compiled.
func (h *Host) command(name string) string {
	if runtime.GOOS == "windows" {
		name += ".exe"
	}
	return filepath.Join(h.dir, name)
}

// folder makes a directory for the data of a server.
func (h *Host) folder(name string) (string, error) { return os.MkdirTemp(h.dir, name+"-") }

// Server is a running server of a peer, in one process or several.
type Server struct {
	// Address is where clients connect: a host and port, or a URL.
	Address string
	// Processes are the ids of its processes.
	Processes []int

	ca   string // file with the authority of its certificate, if it uses TLS
	stop func() // ends the process that start has started, and waits for it
}

// Stop ends the server before its host is closed, and waits for it: a few seconds at most.
func (s *Server) Stop() { s.stop() }

// process is one running process.
type process struct {
	command *exec.Cmd
	output  *output
	stop    func() // asks it to end, and kills it after stopPatience
	ended   chan struct{}
	input   io.Closer
}

// start runs a program until Close. ready returns the address in a line of its output, once the
// program prints it.
func (h *Host) start(ctx context.Context, ready func(line string) (address string, ok bool), env []string, name string, arguments ...string) (*Server, error) {
	// The process ends with the host, and not with ctx, so that clients can end before it.
	life, stop := context.WithCancel(context.Background())
	p := &process{
		command: exec.CommandContext(life, name, arguments...),
		output:  &output{ready: ready, found: make(chan string, 1)},
		ended:   make(chan struct{}),
	}
	p.command.Env = append(os.Environ(), env...)
	p.command.Stdout, p.command.Stderr = p.output, p.output
	p.command.SysProcAttr = ownLife
	p.command.Cancel = func() error { return interrupt(p.command.Process) }
	p.command.WaitDelay = stopPatience
	// A server of ours ends with its input, so none stays behind even if this process is killed.
	input, err := p.command.StdinPipe()
	if err != nil {
		stop()
		return nil, err
	}
	p.input = input
	if err := p.command.Start(); err != nil {
		stop()
		return nil, fmt.Errorf("start %s: %w", filepath.Base(name), err)
	}
	p.stop = func() {
		stop()
		_ = p.input.Close()
	}
	go func() { // ends with the process, and Close waits for it
		defer close(p.ended)
		_ = p.command.Wait() // a server that was told to end may say so with its exit status
	}()
	h.mu.Lock()
	h.servers = append(h.servers, p)
	h.mu.Unlock()

	patience, cancel := context.WithTimeout(ctx, startPatience)
	defer cancel()
	select {
	case address := <-p.output.found:
		stop := func() {
			p.stop()
			<-p.ended // bounded: stop kills what does not end in stopPatience
		}
		return &Server{Address: address, Processes: []int{p.command.Process.Pid}, stop: stop}, nil
	case <-p.ended:
		err = errors.New("it ended")
	case <-patience.Done():
		err = patience.Err()
	}
	p.stop()
	<-p.ended
	return nil, fmt.Errorf("start %s: %w; its output:\n%s", filepath.Base(name), err, p.output.tail())
}

// Command returns a command that runs this executable once more, with an addition to its environment.
// It ends when ctx does, and at the latest when this process ends, if it reads its input to the end:
// input is to be closed after the command has ended.
func Command(ctx context.Context, environment ...string) (command *exec.Cmd, input io.Closer, err error) {
	executable, err := os.Executable()
	if err != nil {
		return nil, nil, err
	}
	command = exec.CommandContext(ctx, executable)
	command.Env = append(os.Environ(), environment...)
	command.SysProcAttr = ownLife
	command.Cancel = func() error { return interrupt(command.Process) }
	command.WaitDelay = stopPatience
	input, err = command.StdinPipe()
	return command, input, err
}

// listening finds the address in a line such as "listening on mqtt://127.0.0.1:1883 …".
func listening(line string) (address string, ok bool) {
	_, rest, ok := strings.Cut(line, "listening on ")
	if !ok {
		return "", false
	}
	address, _, _ = strings.Cut(rest, " ")
	return address, true
}

// output finds the address in the output of a process, and keeps the end of the output.
type output struct {
	ready func(line string) (address string, ok bool)
	found chan string // gets the address, once

	mu   sync.Mutex // guards what follows
	line []byte     // begun and not ended
	last []byte
	done bool // the address was found
}

const maxTail = 4096

func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.last = append(o.last, p...)
	o.last = o.last[max(0, len(o.last)-maxTail):]
	if o.done {
		return len(p), nil
	}
	o.line = append(o.line, p...)
	for {
		line, rest, ok := bytes.Cut(o.line, []byte("\n"))
		if !ok {
			return len(p), nil
		}
		o.line = rest
		if address, ok := o.ready(string(line)); ok {
			o.done = true
			o.found <- address
			return len(p), nil
		}
	}
}

func (o *output) tail() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return string(o.last)
}

// freePort returns a port on which no process listens now.
func freePort() (string, error) {
	listener, err := net.Listen("tcp", loopback)
	if err != nil {
		return "", err
	}
	defer listener.Close()
	_, port, err := net.SplitHostPort(listener.Addr().String())
	return port, err
}

// loopback is a free port of this machine.
const loopback = "127.0.0.1:0"
