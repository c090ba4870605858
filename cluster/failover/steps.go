//go:build unix

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"syscall"
	"time"

	"github.com/tenurelock/tenure/internal/sleep"
)

// step is a fault.
type step struct {
	name   string
	victim func(*director) *machine // called with the mutex held
	harm   func(*machine) error
	heal   func(*machine) error // once everything works again

	network  bool // it needs a network that can be cut
	quiet    bool // no other store takes over
	lost     bool // the node that leads is lost too
	late     bool // that node is frozen, and writes late
	instant  bool // the pair has instant failover
	restarts bool // heal starts processes
}

func active(d *director) *machine { return d.activeLocked() }

func standingBy(d *director) *machine {
	if d.activeLocked() == d.gateways[0] {
		return d.gateways[1]
	}
	return d.gateways[0]
}

func witness(d *director) *machine { return d.machines[len(d.machines)-1] }

func send(s os.Signal) func(*machine) error {
	return func(m *machine) error { return m.store.Signal(s) }
}

func on(fault func(machine string) error) func(*machine) error {
	return func(m *machine) error { return fault(m.name) }
}

func (d *director) freezeNodeAndKillStore(m *machine) error {
	d.mu.Lock()
	leading := d.leadingLocked()
	d.mu.Unlock()
	if err := leading.node.Freeze(); err != nil {
		return err
	}
	return m.store.Signal(os.Kill)
}

// allSteps are the steps, in the order of the table.
func (d *director) allSteps() []step {
	kill, freeze, thaw, stop := send(os.Kill), send(syscall.SIGSTOP), send(syscall.SIGCONT), send(syscall.SIGTERM)
	killMachine := func(m *machine) error { m.kill(); return nil }
	restartMachine := func(m *machine) error { return errors.Join(d.startStore(m), d.startNode(m, d.instant)) }
	steps := []step{
		{name: "active store killed (SIGKILL)", victim: active, harm: kill, heal: d.startStore, restarts: true},
		{name: "active store frozen (SIGSTOP)", victim: active, harm: freeze, heal: thaw},
		{name: "active store cut off", victim: active, harm: on(d.network.Cut), heal: on(d.network.Mend), network: true},
		{name: "active store cut off one way: nothing that it sends arrives", victim: active, harm: on(d.network.Silence), heal: on(d.network.Unsilence), network: true},
		{name: "active store stopped (SIGTERM)", victim: active, harm: stop, heal: d.startStore, restarts: true},
		{name: "standby store killed (SIGKILL)", victim: standingBy, harm: kill, heal: d.startStore, quiet: true, restarts: true},
		{name: "witness killed (SIGKILL)", victim: witness, harm: kill, heal: d.startStore, quiet: true, restarts: true},
	}
	for _, instant := range []bool{false, true} {
		with := ""
		if instant {
			with = ", instant failover"
		}
		steps = append(steps,
			step{name: "machine with store and leader lost (SIGKILL)" + with, victim: active, harm: killMachine, heal: restartMachine, lost: true, instant: instant, restarts: true},
			step{name: "machine with store and leader cut off" + with, victim: active, harm: on(d.network.Cut), heal: on(d.network.Mend), network: true, lost: true, instant: instant})
	}
	return append(steps, step{name: "leading node frozen, active store killed", victim: active, harm: d.freezeNodeAndKillStore, heal: d.startStore, late: true, restarts: true})
}

// steps does all steps that were asked for.
func (d *director) steps(ctx context.Context) error {
	for _, s := range d.allSteps() {
		switch {
		case !d.only.MatchString(s.name):
			continue
		case s.network && !d.network.Isolated():
			d.say("──▶", "left out: %s (%s)", s.name, d.reason)
			continue
		}
		row := &row{step: s}
		d.result.rows = append(d.result.rows, row)
		for n := range d.repeat {
			d.say("──▶", "%s, %d of %d", s.name, n+1, d.repeat)
			if err := d.do(ctx, row); err != nil {
				return fmt.Errorf("%s: %w", s.name, err)
			}
		}
		if !s.lost && !s.late {
			d.result.checks.Add("the lease was kept: "+s.name, row.kept == d.repeat, "%d of %d", row.kept, d.repeat)
		}
	}
	return nil
}

// do does a step once.
func (d *director) do(ctx context.Context, r *row) error {
	if d.instant != r.instant {
		if err := d.startNodes(ctx, r.instant); err != nil {
			return err
		}
	}
	if r.lost {
		if err := d.bringTogether(ctx); err != nil {
			return err
		}
	}
	if err := d.await(ctx, "a store and a node that are active", func() bool { return d.activeLocked() != nil && d.leader != "" }); err != nil {
		return err
	}
	d.mu.Lock()
	victim, leader, token, changes, late := r.victim(d), d.leader, d.token, d.changes, len(d.result.writes.Late)
	d.mu.Unlock()
	d.prober.begin()
	at := time.Now()
	if err := r.harm(victim); err != nil {
		return err
	}
	if err := d.awaitRecovery(ctx, r, victim, leader, at); err != nil {
		return err
	}
	d.mu.Lock()
	took := d.leaderAt.Sub(at)
	d.mu.Unlock()
	if r.late {
		if err := d.wakeLate(ctx, leader, late); err != nil {
			return err
		}
	}
	if err := d.healed(ctx, r, victim); err != nil {
		return err
	}
	if !sleep.For(ctx, max(d.ttl/2, undisturbed)) { // long enough for renewals too
		return errInterrupted
	}
	from, to := d.prober.longest()
	r.gaps = append(r.gaps, to.Sub(from))
	d.mu.Lock()
	defer d.mu.Unlock()
	said := fmt.Sprintf("no write was answered for %v, from %v after the fault", rounded(to.Sub(from)), rounded(from.Sub(at)))
	switch {
	case r.lost:
		r.took = append(r.took, took)
		said += fmt.Sprintf("; the other node led after %v", rounded(took))
	case d.changes == changes && d.token == token:
		r.kept++
		said += "; the lease was kept"
	default:
		said += fmt.Sprintf("; the lease ended, %s leads", d.leader)
	}
	d.sayLocked("──▶", said)
	return nil
}

// awaitRecovery waits until everything works again though the victim does not.
func (d *director) awaitRecovery(ctx context.Context, r *row, victim *machine, leader string, at time.Time) error {
	if !r.quiet {
		if err := d.await(ctx, "an answer of another store", func() bool {
			active := d.activeLocked()
			return active != nil && active != victim && active.serves.After(at) && d.prober.answeredAt().After(active.serves)
		}); err != nil {
			return err
		}
	}
	switch {
	case r.lost, r.late:
		return d.await(ctx, "the other node to lead", func() bool { return d.leaderAt.After(at) && d.leader != "" && d.leader != leader })
	case r.quiet && !sleep.For(ctx, d.ttl/2):
		return errInterrupted
	}
	return nil
}

// healed undoes the fault, and waits until the victim does what it has to.
func (d *director) healed(ctx context.Context, r *row, victim *machine) error {
	at := time.Now()
	if err := r.heal(victim); err != nil {
		return err
	}
	return d.await(ctx, "machine "+victim.name+" to be back", func() bool {
		return victim.said.After(at) || victim.state == saysStandby && !r.restarts // since it was cut off
	})
}

// bringTogether makes the node lead whose machine has the active store.
func (d *director) bringTogether(ctx context.Context) error {
	for {
		var leading *machine
		if err := d.await(ctx, "a node that leads", func() bool { leading = d.leadingLocked(); return leading != nil }); err != nil {
			return err
		}
		d.mu.Lock()
		together, changes := leading == d.activeLocked(), d.changes
		d.mu.Unlock()
		if together {
			return nil
		}
		if err := leading.node.Command("resign"); err != nil {
			return err
		}
		if err := d.await(ctx, "the node to hand over", func() bool { return d.changes > changes+1 && d.leader != "" }); err != nil {
			return err
		}
	}
}

// wakeLate lets the frozen node go on, whose late write the store must refuse.
func (d *director) wakeLate(ctx context.Context, frozen string, late int) error {
	for _, m := range d.gateways {
		if m.nodeName() == frozen {
			if err := m.node.Wake(); err != nil {
				return err
			}
		}
	}
	return d.await(ctx, frozen+" to write late", func() bool {
		for _, e := range d.result.writes.Late[late:] {
			if e.Node == frozen {
				d.result.late.Add(e)
				return true
			}
		}
		return false
	})
}

func rounded(d time.Duration) time.Duration { return d.Round(time.Millisecond) }
