//go:build unix

package takeover_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/tenurelock/tenure/cluster"
	"github.com/tenurelock/tenure/internal/await"
	"github.com/tenurelock/tenure/internal/failpoint"
	"github.com/tenurelock/tenure/server/crashtest"
	"github.com/tenurelock/tenure/statestore"
)

// serve is a child: a candidate, and the active store once it has won. It ends when it is deposed.
func serve(ctx context.Context, task crashtest.Task) error {
	endpoints := strings.Split(task.Arguments["endpoints"], ",")
	candidate, err := cluster.Open(ctx, cluster.Options{Endpoints: endpoints, Prefix: task.Arguments["prefix"], TTL: etcdTTL,
		Logger: slog.New(slog.NewTextHandler(os.Stderr, nil))})
	if err != nil {
		return err
	}
	defer candidate.Close()
	journal, err := candidate.Campaign(ctx)
	if err != nil {
		return err
	}
	defer journal.Close()
	serving, stop := context.WithCancel(ctx)
	defer stop()
	var used statestore.Journal = journal
	switch task.Fault {
	case deposedWriter:
		used, err = newUnfenced(journal, endpoints, task.Arguments["prefix"])
		if err != nil {
			return err
		}
		task.Fault = crashtest.None
	case deposedReader:
		used = alwaysStanding{journal}
		task.Fault = crashtest.None
	default:
		go func() { // ends with serving, which ends with this function
			select {
			case <-journal.Done():
				stop()
			case <-serving.Done():
			}
		}()
	}
	if err := crashtest.Serve(serving, task, used); err != nil {
		return err
	}
	return journal.Err() // nil unless it was deposed
}

// etcdTTL is how long the standby waits for an active store that ended uncleanly.
const etcdTTL = 2 * time.Second

// pair is a store of two processes on etcd: an active one, and another one that stands by.
// Kill kills, freezes or stops the active one.
type pair struct {
	crashtest.Target
	task   crashtest.Task
	etcd   *etcd
	random *rand.Rand

	children []*crashtest.Child // that are alive, or were killed last
	active   *crashtest.Child
	ended    []*crashtest.Child // that are dead or frozen

	former crashtest.Target
	thaws  sync.WaitGroup // of frozen processes

	mu     sync.Mutex
	ways   map[string]int // how often the active one ended in which way
	faults []error        // of processes that were frozen
}

const (
	alive    = 2                      // processes
	awakes   = 300 * time.Millisecond // at the latest, after another took over
	ends     = 10 * time.Second       // in which a process notices that it was deposed
	startsIn = 60 * time.Second
)

// Start implements crashtest.Store: it waits until one of the candidates is active.
func (p *pair) Start(ctx context.Context, life crashtest.Life) error {
	for len(p.children) < alive {
		if err := p.launch(life); err != nil {
			return err
		}
	}
	for _, child := range p.children {
		if err := child.Arm(life); err != nil {
			return err
		}
	}
	ctx, cancel := context.WithTimeout(ctx, startsIn)
	defer cancel()
	for p.active == nil {
		first, second := p.children[0], p.children[1]
		select {
		case address := <-first.Ready():
			p.active = first
			p.SetAddress(address)
		case address := <-second.Ready():
			p.active = second
			p.SetAddress(address)
		case <-first.Died():
			return p.died(first, life)
		case <-second.Died():
			return p.died(second, life)
		case <-ctx.Done():
			err := fmt.Errorf("no candidate became active: %w", context.Cause(ctx))
			for _, child := range p.children {
				_ = child.Kill()
				err = fmt.Errorf("%w\n%s", err, child.Output())
			}
			return err
		}
	}
	p.thaw()
	return nil
}

func (p *pair) launch(life crashtest.Life) error {
	task := p.task
	task.Life = life
	child, err := crashtest.Launch(task)
	if err == nil {
		p.children = append(p.children, child)
	}
	return err
}

// died returns why a candidate died before it was active.
func (p *pair) died(child *crashtest.Child, life crashtest.Life) error {
	p.remove(child)
	if _, err := child.Address(context.Background()); !errors.Is(err, crashtest.ErrDied) {
		return err // it ended by itself
	}
	return crashtest.ErrDied
}

func (p *pair) remove(child *crashtest.Child) {
	for i, one := range p.children {
		if one == child {
			p.children = append(p.children[:i:i], p.children[i+1:]...)
		}
	}
}

// Died implements crashtest.Store.
func (p *pair) Died() <-chan struct{} { return p.active.Died() }

// Kill implements crashtest.Store.
func (p *pair) Kill() error {
	child := p.active
	if child == nil {
		return nil
	}
	p.active = nil
	p.remove(child)
	if p.task.Fault == crashtest.None && p.random.IntN(4) == 0 && p.etcd.restart(p.random.IntN(3), time.Duration(p.random.IntN(1000))*time.Millisecond) {
		p.count("(a member of etcd was restarted too)")
	}
	select {
	case <-child.Died():
		err := child.Kill() // says whether it ended by itself
		if err != nil && (strings.Contains(err.Error(), cluster.ErrDeadlinePassed.Error()) || strings.Contains(err.Error(), cluster.ErrDeposed.Error())) {
			p.count("could not prove in time that it was active")
			return nil
		}
		p.count("killed itself at a step")
		return err
	default:
	}
	switch p.random.IntN(5) {
	case 0, 1:
		p.count("killed")
		return child.Kill()
	case 2:
		p.count("stopped")
		return p.stop(child)
	}
	p.count("frozen, and woken after it was deposed")
	if err := child.Signal(syscall.SIGSTOP); err != nil {
		return err
	}
	p.former.SetAddress(p.Address())
	p.ended = append(p.ended, child)
	return nil
}

func (p *pair) count(way string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.ways[way]++
}

// stop ends a process cleanly: it resigns.
func (p *pair) stop(child *crashtest.Child) error {
	if err := child.Stop(); err != nil {
		return err
	}
	timer := time.NewTimer(ends)
	defer timer.Stop()
	select {
	case <-child.Died():
		return nil
	case <-timer.C:
		return errors.Join(errors.New("the process did not stop"), child.Kill())
	}
}

// thaw wakes the processes that are frozen, a while after another one took over. They must
// notice that they were deposed.
func (p *pair) thaw() {
	frozen := p.ended
	p.ended = nil
	for _, child := range frozen {
		after := rand.N(awakes)
		p.thaws.Go(func() {
			time.Sleep(after)
			if err := child.Signal(syscall.SIGCONT); err != nil {
				p.failed(err)
			}
			timer := time.NewTimer(ends)
			defer timer.Stop()
			select {
			case <-child.Died():
			case <-timer.C:
				if p.task.Fault == crashtest.None {
					p.failed(errors.New("a process did not notice that it was deposed"))
				}
				if err := child.Kill(); err != nil {
					p.failed(err)
				}
			}
		})
	}
}

func (p *pair) failed(err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.faults = append(p.faults, err)
}

// close kills all processes and returns what went wrong with those that were frozen.
func (p *pair) close() error {
	await.Done(p.thaws.Wait)
	for _, child := range append(p.children, p.ended...) {
		_ = child.Signal(syscall.SIGCONT)
		_ = child.Kill()
	}
	return errors.Join(p.faults...)
}

// Former implements crashtest.Former.
func (p *pair) Former() *crashtest.Target { return &p.former }

// Points implements crashtest.Store.
func (p *pair) Points() []failpoint.Point {
	return []failpoint.Point{failpoint.DuringLoad, failpoint.AfterApply, failpoint.BeforeCommit, failpoint.AfterCommit,
		failpoint.BeforeNotification, failpoint.BeforeReply}
}
