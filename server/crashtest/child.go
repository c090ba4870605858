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
	"os"
	"os/exec"
	"strings"
	"sync/atomic"
	"time"

	"github.com/tenurelock/tenure/internal/engine"
	"github.com/tenurelock/tenure/internal/failpoint"
)

// Task is what a child process is told.
type Task struct {
	// Dir is the directory with the data.
	Dir string
	// Strict makes the store strict: see statestore.Options.
	Strict bool
	// Life says how the child ends.
	Life Life
	// Arguments are for the function that Main calls.
	Arguments map[string]string
}

const (
	// taskVariable is the environment variable with the Task.
	taskVariable = "TENURE_CRASHTEST"
	// announcement begins the line with the address of a child.
	announcement = "listening on "
	// killTimeout bounds how long a child may take to end after SIGKILL.
	killTimeout = 30 * time.Second
)

// Child is a child process.
type Child struct {
	cmd   *exec.Cmd
	stdin io.WriteCloser // gets another Life in each line; the child ends when it is closed
	ready chan string    // gets the address
	died  chan struct{}  // closed when it has ended
	log   bytes.Buffer   // its standard error; read after died
	task  Task
}

// Launch starts the present program again, with a task for Main. wrap, if it is not nil, returns the
// words of the command that runs a program, as one that puts it on another network. Kill the child when done.
func Launch(task Task, wrap func(program string) []string) (*Child, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	text, err := json.Marshal(task)
	if err != nil {
		return nil, err
	}
	words := []string{self}
	if wrap != nil {
		words = wrap(self)
	}
	c := &Child{cmd: exec.Command(words[0], words[1:]...), ready: make(chan string, 1),
		died: make(chan struct{}), task: task}
	c.cmd.Env = append(os.Environ(), taskVariable+"="+string(text))
	c.cmd.Stderr = &c.log
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
				select {
				case <-c.ready: // nothing has read it
				default:
				}
				c.ready <- address // has space
			}
		}
		_ = c.cmd.Wait() // the state says how it ended
	}()
	return c, nil
}

// Address waits until the store of the child can be reached, and returns its address, once. The
// error is ErrDied if the child killed itself before, at the point of its Life.
func (c *Child) Address(ctx context.Context) (address string, err error) {
	for address == "" {
		select {
		case address = <-c.ready:
		case <-c.died:
			if c.task.Life.Point != "" && c.isKilled() {
				return "", ErrDied
			}
			return "", fmt.Errorf("the child has ended: %v\n%s", c.cmd.ProcessState, c.log.String())
		case <-ctx.Done():
			return "", fmt.Errorf("the child did not say where it listens: %w", context.Cause(ctx))
		}
	}
	return address, nil
}

// Ready returns a channel that gets the address each time when the store of the child can be
// reached, and an empty one when it no longer serves. What was not received makes space for what
// follows. Only one of Address and Ready gets it.
func (c *Child) Ready() <-chan string { return c.ready }

// Died returns a channel that is closed when the child has ended.
func (c *Child) Died() <-chan struct{} { return c.died }

// Arm gives the child a Life in place of the one in its Task.
func (c *Child) Arm(life Life) error {
	c.task.Life = life
	return json.NewEncoder(c.stdin).Encode(life)
}

// Stop asks the child to end cleanly: the context of its function ends. Wait for Died, or Kill it.
func (c *Child) Stop() error { return c.stdin.Close() }

// Output returns what the child wrote to its standard error. Call it after Died.
func (c *Child) Output() string { return c.log.String() }

// Signal sends a signal to the child.
func (c *Child) Signal(signal os.Signal) error { return c.cmd.Process.Signal(signal) }

// Kill kills the child, unless it has ended, and waits until it is dead. The error says that it
// had ended in another way, and has what it wrote to its standard error.
func (c *Child) Kill() error {
	if err := c.cmd.Process.Kill(); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return err
	}
	_ = c.stdin.Close()
	select {
	case <-c.died:
	case <-time.After(killTimeout):
		return fmt.Errorf("the child %d did not end within %v", c.cmd.Process.Pid, killTimeout)
	}
	if !c.isKilled() {
		return fmt.Errorf("the child ended by itself: %v\n%s", c.cmd.ProcessState, c.log.String())
	}
	return nil
}

// isKilled reports whether the child was killed. Windows says so with an exit code of 1.
func (c *Child) isKilled() bool {
	code := c.cmd.ProcessState.ExitCode()
	return code == -1 || code == 1 && os.PathSeparator == '\\'
}

// Main ends the process if it is a child: with status 0 when serve returns nil. Otherwise it
// returns at once. Call it at the beginning of main or TestMain. The context of serve ends
// when the parent is gone.
func Main(serve func(ctx context.Context, task Task) error) {
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
	var armed atomic.Pointer[armament]
	armed.Store(&armament{life: task.Life})
	engine.SystemClock = func() time.Time { return time.Now().Add(armed.Load().life.Clock) }
	failpoint.Set(func(at failpoint.Point) { armed.Load().hit(at) })
	go func() { // ends with the parent
		defer cancel()
		lives := json.NewDecoder(os.Stdin)
		for next := new(armament); lives.Decode(&next.life) == nil; next = new(armament) {
			armed.Store(next)
		}
	}()
	if err := serve(ctx, task); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(3)
	}
	os.Exit(0)
}

// Announce tells the parent that clients can reach the store at an address, or that none can, if it
// is empty.
func (t *Task) Announce(address string) { fmt.Println(announcement + address) }

// armament makes a process kill itself at a point, and its commits slow.
type armament struct {
	life   Life
	passes atomic.Int64
}

func (a *armament) hit(at failpoint.Point) {
	if at == failpoint.BeforeCommit && a.life.Slow > 0 {
		time.Sleep(rand.N(a.life.Slow))
	}
	if at != a.life.Point || a.passes.Add(1) != int64(a.life.Pass) {
		return
	}
	time.Sleep(a.life.Pause)
	if self, err := os.FindProcess(os.Getpid()); err == nil {
		_ = self.Kill()
	}
	select {} // this goroutine does nothing more until the process is dead
}
