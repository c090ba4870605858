package crashtest

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tenurelock/tenure/internal/failpoint"
	"github.com/tenurelock/tenure/internal/sleep"
	"github.com/tenurelock/tenure/server"
	"github.com/tenurelock/tenure/statestore"
	"github.com/tenurelock/tenure/transport"
)

// Task is what a Process tells its child.
type Task struct {
	// Dir is the directory with the data.
	Dir string
	// Strict makes the store strict: see statestore.Options.
	Strict bool
	// Fault is built into the store.
	Fault Fault
	// Life says how the child ends.
	Life Life
	// Arguments are for the function that Child calls.
	Arguments map[string]string
}

// taskVariable is the environment variable with the Task.
const taskVariable = "TENURE_CRASHTEST"

// announcement begins the line with the address of the child.
const announcement = "listening on "

// Process is a Store in a child process, which runs the present program again: that must call
// Child. It is killed with SIGKILL.
type Process struct {
	// Task is for each child; Task.Life is set by Run.
	Task Task
	// Log, if not nil, receives what the children write to their standard error.
	Log io.Writer

	mu      sync.Mutex
	address string // of the latest child that was ready
	child   *child // nil at first
}

// child is one life of a Process.
type child struct {
	cmd   *exec.Cmd
	stdin io.Closer     // the child ends when it is closed
	ready chan string   // gets the address
	died  chan struct{} // closed when it has ended
	log   bytes.Buffer  // its standard error; read after died
}

// Start implements Store.
func (p *Process) Start(ctx context.Context, life Life) error {
	c, err := p.launch(life)
	if err != nil {
		return err
	}
	p.mu.Lock()
	p.child = c
	p.mu.Unlock()
	select {
	case address := <-c.ready:
		p.mu.Lock()
		p.address = address
		p.mu.Unlock()
		return nil
	case <-c.died:
		if life.Point != "" && isKilled(c.cmd.ProcessState) {
			return ErrDied
		}
		return fmt.Errorf("the child has ended: %v\n%s", c.cmd.ProcessState, c.log.String())
	case <-ctx.Done():
		return fmt.Errorf("the child did not say where it listens: %w", context.Cause(ctx))
	}
}

func (p *Process) launch(life Life) (*child, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	task := p.Task
	task.Life = life
	text, err := json.Marshal(task)
	if err != nil {
		return nil, err
	}
	c := &child{cmd: exec.Command(self), ready: make(chan string, 1), died: make(chan struct{})}
	c.cmd.Env = append(os.Environ(), taskVariable+"="+string(text))
	c.cmd.Stderr = &c.log
	if p.Log != nil {
		c.cmd.Stderr = io.MultiWriter(&c.log, p.Log)
	}
	if c.stdin, err = c.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	stdout, err := c.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := c.cmd.Start(); err != nil {
		return nil, err
	}
	go func() { // ends with the child, for which it waits
		defer close(c.died)
		for lines := bufio.NewScanner(stdout); lines.Scan(); {
			if address, ok := strings.CutPrefix(lines.Text(), announcement); ok {
				c.ready <- address // there is room for the one line
			}
		}
		_ = c.cmd.Wait() // the state says how it ended
	}()
	return c, nil
}

func (p *Process) present() *child {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.child
}

// Died implements Store.
func (p *Process) Died() <-chan struct{} { return p.present().died }

// killTimeout bounds how long a child may take to end after SIGKILL.
const killTimeout = 30 * time.Second

// Kill implements Store. The error is that of a child which ended by itself and not at its point.
func (p *Process) Kill() error {
	c := p.present()
	if c == nil {
		return nil
	}
	err := c.cmd.Process.Kill()
	if err != nil && !errors.Is(err, os.ErrProcessDone) {
		return err
	}
	_ = c.stdin.Close()
	timer := time.NewTimer(killTimeout)
	defer timer.Stop()
	select {
	case <-c.died:
	case <-timer.C:
		return fmt.Errorf("the child %d did not end within %v", c.cmd.Process.Pid, killTimeout)
	}
	if !isKilled(c.cmd.ProcessState) {
		return fmt.Errorf("the child ended by itself: %v\n%s", c.cmd.ProcessState, c.log.String())
	}
	return nil
}

// isKilled reports whether a process was killed. Windows says so with an exit code.
func isKilled(state *os.ProcessState) bool {
	return state.ExitCode() == -1 || state.ExitCode() == 1 && strings.Contains(state.String(), "exit status 1") && os.PathSeparator == '\\'
}

// Dial implements Store.
func (p *Process) Dial(ctx context.Context, clientID string, options transport.ClientOptions) (*transport.Client, error) {
	return transport.Dial(ctx, "mqtt://store:1883", transport.Options{
		ClientID:      clientID,
		ReconnectMin:  5 * time.Millisecond,
		ReconnectMax:  50 * time.Millisecond,
		Dialer:        func(ctx context.Context, _, _ string) (net.Conn, error) { return p.DialRaw(ctx) },
		ClientOptions: options,
	})
}

// DialRaw implements RawDialer. Each child has a port of its own: another program may get the
// port of a dead one.
func (p *Process) DialRaw(ctx context.Context) (net.Conn, error) {
	p.mu.Lock()
	address := p.address
	p.mu.Unlock()
	var dialer net.Dialer
	return dialer.DialContext(ctx, "tcp", address)
}

// Points implements Store.
func (p *Process) Points() []failpoint.Point { return failpoint.Points() }

// Child runs serve and ends the process, if the process is the child of a Process; otherwise it
// returns at once. Call it at the beginning of main or TestMain. serve has ctx until the parent
// is gone.
func Child(serve func(ctx context.Context, task Task) error) {
	text := os.Getenv(taskVariable)
	if text == "" {
		return
	}
	var task Task
	if err := json.Unmarshal([]byte(text), &task); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(2)
	}
	ctx, cancel := context.WithCancel(context.Background())
	go func() { // ends with the parent
		_, _ = io.Copy(io.Discard, os.Stdin)
		cancel()
	}()
	task.arm()
	if err := serve(ctx, task); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(3)
	}
	os.Exit(0)
}

// arm makes the process kill itself at its point, and its commits slow.
func (t *Task) arm() {
	var passes atomic.Int64
	failpoint.Set(func(at failpoint.Point) {
		if at == failpoint.BeforeCommit && t.Life.Slow > 0 {
			time.Sleep(rand.N(t.Life.Slow))
		}
		if at != t.Life.Point || passes.Add(1) != int64(t.Life.Pass) {
			return
		}
		time.Sleep(t.Life.Pause)
		if self, err := os.FindProcess(os.Getpid()); err == nil {
			_ = self.Kill()
		}
		select {} // this goroutine does nothing more until the process is dead
	})
}

// Serve runs a server on a journal until ctx ends, in a child of a Process. It tells the parent
// the address. If the journal can make backups, as that of server/journal, it makes one after
// the other.
func Serve(ctx context.Context, task Task, journal statestore.Journal) (err error) {
	s, err := server.Open(ctx, server.Options{
		Addr:    "127.0.0.1:0",
		Store:   statestore.Options{Strict: task.Strict},
		Journal: Break(journal, task.Fault),
	})
	if err != nil {
		return err
	}
	var backups sync.WaitGroup
	defer backups.Wait()
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	if file, ok := journal.(interface {
		Backup(ctx context.Context, to io.Writer) error
	}); ok {
		backups.Go(func() {
			for ctx.Err() == nil {
				_ = file.Backup(ctx, io.Discard) // the point in it is what matters
				sleep.For(ctx, 20*time.Millisecond)
			}
		})
	}
	fmt.Println(announcement + s.Addr().String())
	return s.Serve(ctx)
}
