package crashtest

import (
	"context"
	"io"
	"net"
	"sync"
	"sync/atomic"
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

	child  *Child       // nil at first
	target atomic.Value // the address of the latest child that was ready, a string
}

// Start implements Store.
func (p *Process) Start(ctx context.Context, life Life) (err error) {
	task := p.Task
	task.Life = life
	if p.child, err = Launch(task); err != nil {
		return err
	}
	address, err := p.child.Address(ctx)
	if err != nil {
		return err
	}
	p.target.Store(address)
	return nil
}

// Died implements Store.
func (p *Process) Died() <-chan struct{} { return p.child.Died() }

// Kill implements Store. The error is that of a child which ended by itself and not at its point.
func (p *Process) Kill() error {
	if p.child == nil {
		return nil
	}
	return p.child.Kill()
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
	address, _ := p.target.Load().(string)
	var dialer net.Dialer
	return dialer.DialContext(ctx, "tcp", address)
}

// Points implements Store.
func (p *Process) Points() []failpoint.Point { return failpoint.Points() }

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
	task.announce(s.Addr().String())
	return s.Serve(ctx)
}
