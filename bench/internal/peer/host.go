package peer

import (
	"bufio"
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

	"github.com/tenurelock/tenure/internal/logbuffer"
)

const (
	// startPatience is how long a server may take to accept clients.
	startPatience = 30 * time.Second
	// stopPatience is how long a server may take to end by itself.
	stopPatience = 5 * time.Second
	// loopback is a free port of this machine.
	loopback = "127.0.0.1:0"
)

// Host runs servers on this machine. Close ends all of them.
type Host struct {
	dir     string // of all that the servers keep
	servers []*Server
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
	var stopping sync.WaitGroup
	for _, s := range h.servers {
		stopping.Go(s.Stop)
	}
	stopping.Wait() // bounded: Stop is
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

// Server is a running server of a peer.
type Server struct {
	// Address is where clients connect: a host and port, or a URL.
	Address string
	// Process is the id of its process.
	Process int

	kill   context.CancelFunc // asks it to end, and kills it after stopPatience
	input  io.Closer
	output logbuffer.Buffer
	ended  chan struct{}
}

// Stop ends the process that was started for the server, and waits for it: a few seconds at most.
func (s *Server) Stop() {
	s.kill()
	_ = s.input.Close()
	<-s.ended
}

// start runs a program until Stop or Close. ready returns the address in a line of its output, once the
// program prints it, before ctx ends.
func (h *Host) start(ctx context.Context, ready func(line string) (address string, ok bool),
	env []string, name string, arguments ...string) (*Server, error) {
	// The process ends with the host, and not with ctx, so that clients can end before it.
	life, kill := context.WithCancel(context.Background())
	command := exec.CommandContext(life, name, arguments...)
	s := &Server{kill: kill, ended: make(chan struct{})}
	command.Env = append(os.Environ(), env...)
	command.SysProcAttr = ownLife
	command.Cancel = func() error { return interrupt(command.Process) }
	command.WaitDelay = stopPatience
	reader, output := io.Pipe()
	command.Stdout, command.Stderr = output, output
	// A server of ours ends with its input, so none stays behind even if this process is killed.
	input, err := command.StdinPipe()
	if err == nil {
		err = command.Start()
	}
	if err != nil {
		kill()
		return nil, fmt.Errorf("start %s: %w", filepath.Base(name), err)
	}
	s.input, s.Process = input, command.Process.Pid
	h.servers = append(h.servers, s)
	found := make(chan string, 1)
	go func() { // ends with the process, and Stop waits for it
		defer close(s.ended)
		go func() {
			_ = command.Wait() // a server that was told to end may say so with its exit status
			_ = output.Close()
		}()
		s.read(reader, ready, found) // ends with the output
	}()
	select {
	case s.Address = <-found:
		return s, nil
	case <-s.ended:
		err = errors.New("it ended")
	case <-ctx.Done():
		err = context.Cause(ctx)
	}
	s.Stop()
	return nil, fmt.Errorf("start %s: %w; its output:\n%s", filepath.Base(name), err, strings.TrimSpace(s.output.String()))
}

// read keeps the output, and finds the address in it.
func (s *Server) read(output io.Reader, ready func(string) (string, bool), found chan<- string) {
	lines := bufio.NewScanner(io.TeeReader(output, &s.output))
	for lines.Scan() {
		if address, ok := ready(lines.Text()); ok {
			found <- address
			break
		}
	}
	_, _ = io.Copy(&s.output, output)
}

// listening finds the address in a line such as "listening on mqtt://127.0.0.1:1883 …".
func listening(line string) (address string, ok bool) {
	_, rest, ok := strings.Cut(line, "listening on ")
	address, _, _ = strings.Cut(rest, " ")
	return address, ok
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
