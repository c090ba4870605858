//go:build unix

package cluster_test

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/tenurelock/tenure/cluster"
	"github.com/tenurelock/tenure/cluster/member"
	"github.com/tenurelock/tenure/internal/await"
	"github.com/tenurelock/tenure/lease"
	"github.com/tenurelock/tenure/statestore"
)

// childOptions say what a child process does: it campaigns, and while it is active it answers
// and commits as fast as it can.
type childOptions struct {
	Member    *member.Options // a member to run; nil for none
	Endpoints []string        // of etcd, if there is no member
	Prefix    string
	Name      string
	Witness   bool // run the member only
}

func init() { childMain = runChild }

// runChild is the child process. It writes one line for each event: what, when on the clock
// that all processes of the machine share, and more.
func runChild(encoded string) int {
	var options childOptions
	if err := json.Unmarshal([]byte(encoded), &options); err != nil {
		fmt.Println("failed", 0, err)
		return 1
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	if err := options.run(ctx); err != nil {
		fmt.Println("failed", int64(lease.SystemClock()), strings.ReplaceAll(err.Error(), "\n", " "))
		return 1
	}
	return 0
}

func (o *childOptions) run(ctx context.Context) error {
	configured := cluster.Options{Endpoints: o.Endpoints, Prefix: o.Prefix, Name: o.Name, Address: o.Name, TTL: 4 * time.Second}
	if o.Member != nil {
		m, err := member.Start(*o.Member)
		if err != nil {
			return err
		}
		defer m.Close()
		configured = m.Configure(configured)
	}
	fmt.Println("started", int64(lease.SystemClock()))
	if o.Witness {
		for ctx.Err() == nil {
			time.Sleep(10 * time.Millisecond)
		}
		return nil
	}
	candidate, err := cluster.Open(ctx, configured)
	if err != nil {
		return err
	}
	defer candidate.Close()
	journal, err := candidate.Campaign(ctx)
	if err != nil {
		return err
	}
	defer journal.Close()
	records := 0
	if _, err := journal.Load(ctx, func(statestore.Record) error { records++; return nil }); err != nil {
		return err
	}
	fmt.Println("active", int64(lease.SystemClock()), records)
	var answering sync.WaitGroup
	defer func() { await.Done(answering.Wait) }()
	answering.Go(func() {
		for ctx.Err() == nil && journal.Err() == nil {
			at := lease.SystemClock() // before the check: a process can be stopped after it
			if journal.Standing() == nil {
				fmt.Println("answer", int64(at))
			}
			time.Sleep(time.Millisecond)
		}
	})
	for n := 0; ctx.Err() == nil; n++ {
		id := fmt.Sprintf("%s-%d", o.Name, n)
		if err := journal.Commit(ctx, []statestore.Group{group(id, id, "last", id)}); err != nil {
			if ctx.Err() != nil {
				return nil
			}
			return err
		}
		if at := lease.SystemClock(); journal.Standing() == nil { // as above
			fmt.Println("committed", int64(at), id)
		}
		time.Sleep(time.Millisecond)
	}
	return nil
}

// child is a child process, as its test sees it.
type child struct {
	name    string
	process *exec.Cmd
	reading sync.WaitGroup

	mu     sync.Mutex
	events map[string][]event
}

type event struct {
	at   time.Duration // on lease.SystemClock
	more string
}

func startChild(t *testing.T, options childOptions) *child {
	t.Helper()
	encoded, err := json.Marshal(options)
	if err != nil {
		t.Fatal(err)
	}
	c := &child{name: options.Name, process: exec.Command(os.Args[0]), events: make(map[string][]event)}
	c.process.Env = append(os.Environ(), "CLUSTER_TEST_CHILD="+string(encoded))
	c.process.Stderr = os.Stderr
	out, err := c.process.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := c.process.Start(); err != nil {
		t.Fatal(err)
	}
	c.reading.Go(func() {
		for lines := bufio.NewScanner(out); lines.Scan(); {
			c.note(lines.Text())
		}
	})
	t.Cleanup(func() {
		c.signal(syscall.SIGCONT)
		c.signal(syscall.SIGKILL)
		c.end()
	})
	return c
}

func (c *child) note(line string) {
	what, rest, _ := strings.Cut(line, " ")
	number, more, _ := strings.Cut(rest, " ")
	at, _ := strconv.ParseInt(number, 10, 64)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.events[what] = append(c.events[what], event{time.Duration(at), more})
}

// of returns the events of a kind so far.
func (c *child) of(what string) []event {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.events[what]
}

func (c *child) await(t *testing.T, what string) event {
	t.Helper()
	eventually(t, c.name+" reports "+what, func() bool {
		if failed := c.of("failed"); len(failed) > 0 && what != "failed" {
			t.Fatalf("%s failed: %s", c.name, failed[0].more)
		}
		return len(c.of(what)) > 0
	})
	return c.of(what)[0]
}

func (c *child) signal(s syscall.Signal) { _ = c.process.Process.Signal(s) }

// end waits until the process has ended.
func (c *child) end() {
	await.Done(c.reading.Wait)
	_ = await.Result(c.process.Wait)
}

// awaitActive returns the child that is active, of those that are not former.
func awaitActive(t *testing.T, children []*child, former ...*child) (active *child) {
	t.Helper()
	eventually(t, "a process is active", func() bool {
		for _, c := range children {
			isFormer := false
			for _, f := range former {
				isFormer = isFormer || f == c
			}
			if !isFormer && len(c.of("active")) > 0 {
				active = c
				return true
			}
		}
		return false
	})
	return active
}
