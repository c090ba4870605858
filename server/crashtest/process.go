package crashtest

import (
	"context"
	"io"
	"net"
	"sync"
	"time"

	"github.com/tenurelock/tenure/internal/failpoint"
	"github.com/tenurelock/tenure/internal/sleep"
	"github.com/tenurelock/tenure/server"
	"github.com/tenurelock/tenure/statestore"
	"github.com/tenurelock/tenure/transport"
)

// Process is a Store in a child process, which is killed with SIGKILL. Its children run the
// present program again: see Main.
type Process struct {
	// Task is for each child; its Life is set by Run.
	Task Task

	Target
	child *Child // nil at first
}

// Start implements Store.
func (p *Process) Start(ctx context.Context, life Life) (err error) {
	task := p.Task
	task.Life = life
	if p.child, err = Launch(task, nil); err != nil {
		return err
	}
	address, err := p.child.Address(ctx)
	if err == nil {
		p.SetAddress(address)
	}
	return err
}

// Died implements Store.
func (p *Process) Died() <-chan struct{} { return p.child.Died() }

// Kill implements Store. It returns the error of a child that ended by itself, and not at its point.
func (p *Process) Kill() error {
	if p.child == nil {
		return nil
	}
	return p.child.Kill()
}

// Points implements Store.
func (p *Process) Points() []failpoint.Point { return failpoint.Points() }

// Opened is a server in a child, which tells its parent when it serves.
type Opened struct {
	server  *server.Server
	task    Task
	journal statestore.Journal
}

// Open opens a server on a journal, in a child. It listens on socket, or on a port of loopback if
// that is nil. The caller calls Serve.
func Open(ctx context.Context, task Task, journal statestore.Journal, socket net.Listener) (*Opened, error) {
	s, err := server.Open(ctx, server.Options{
		Addr:          "127.0.0.1:0",
		Listener:      socket,
		AllowInsecure: true,
		Store:         statestore.Options{Strict: task.Strict},
		Journal:       withFault(journal, task.Fault),
	})
	return &Opened{s, task, journal}, err
}

// Serve runs a server on a journal until ctx ends, in a child of a Process: see Opened.Serve.
func Serve(ctx context.Context, task Task, journal statestore.Journal) error {
	o, err := Open(ctx, task, journal, nil)
	if err != nil {
		return err
	}
	return o.Serve(ctx)
}

// Serve serves until ctx ends. It tells the parent the address once the server has answered a
// client: the lifetimes have begun then, so the checker can count them from the moment at which
// it learns the address. At the end it tells an empty address. If the journal can make backups, as
// the one of server/journal can, Serve makes one after the other.
func (o *Opened) Serve(ctx context.Context) error {
	s := o.server
	defer o.task.Announce("")
	var tasks sync.WaitGroup
	defer tasks.Wait()
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	if file, ok := o.journal.(interface {
		Backup(ctx context.Context, to io.Writer) error
	}); ok {
		tasks.Go(func() {
			for ctx.Err() == nil {
				_ = file.Backup(ctx, io.Discard) // the point in it is what matters
				sleep.For(ctx, 20*time.Millisecond)
			}
		})
	}
	tasks.Go(func() {
		client, err := transport.Dial(ctx, "mqtt://"+s.Addr().String(), transport.Options{ClientID: "first"})
		if err != nil {
			return // ctx has ended, or Serve returns why there is no answer
		}
		o.task.Announce(s.Addr().String())
		_ = client.Close()
	})
	return s.Serve(ctx)
}
