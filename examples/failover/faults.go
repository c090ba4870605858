//go:build unix || windows

package main

import (
	"context"
	"math/rand/v2"
	"os"
	"time"
)

const (
	// The project promises these times without an active node: resignLimit for a hand-over,
	// the TTL and killSlack for a failover, and instantLimit for an instant failover.
	resignLimit  = 50 * time.Millisecond
	killSlack    = 200 * time.Millisecond
	instantLimit = 200 * time.Millisecond
)

// steps returns what happens to the pair, in this order.
func (d *director) steps() []func(context.Context) error {
	steps := []func(context.Context) error{d.firstLeader, d.kill}
	if d.settings.freeze {
		steps = append(steps, d.freeze)
	}
	steps = append(steps, d.resign)
	if d.settings.store != nil {
		steps = append(steps, d.killStore)
	}
	return append(steps, d.restartForInstantFailover, d.killInstantly, d.finish)
}

// undisturbed lets a leader count before something happens to it. The moment is
// random, so that a fault can come at any time between two renewals.
func (d *director) undisturbed(ctx context.Context) error {
	return d.pause(ctx, d.ttl/2+rand.N(d.ttl/2))
}

// kill ends the active node with SIGKILL. The other node leads when the TTL has passed.
func (d *director) kill(ctx context.Context) error {
	return d.killActive(ctx, "killed (SIGKILL)", d.ttl+killSlack)
}

// killInstantly does the same when the connection of each node carries a Will that
// releases the lease.
func (d *director) killInstantly(ctx context.Context) error {
	return d.killActive(ctx, "killed, instant failover", instantLimit)
}

// killActive ends the active node with SIGKILL, and starts it again once the other
// node leads.
func (d *director) killActive(ctx context.Context, name string, limit time.Duration) error {
	victim, err := d.awaitLeader(ctx)
	if err != nil {
		return err
	}
	d.ending = victim
	fault := d.result.begin(name, limit, time.Now())
	d.say("", "SIGKILL to %s, which leads", victim)
	if err := d.nodes[victim].signal(os.Kill); err != nil {
		return err
	}
	if err := d.awaitSuccessor(ctx, victim, fault); err != nil {
		return err
	}
	// The other node may lead before the event of the victim's end is here.
	if err := d.await(ctx, "the end of "+victim, func() bool { return d.ending == "" }); err != nil {
		return err
	}
	d.say("", "%s is started again", victim)
	if err := d.start(victim); err != nil {
		return err
	}
	return d.undisturbed(ctx)
}

// freeze stops the active node until the other node leads, then wakes it.
func (d *director) freeze(ctx context.Context) error {
	victim, err := d.awaitLeader(ctx)
	if err != nil {
		return err
	}
	fault := d.result.begin("frozen (SIGSTOP)", d.ttl+killSlack, time.Now())
	d.say("", "SIGSTOP to %s, which leads and does not notice", victim)
	if err := d.nodes[victim].freeze(); err != nil {
		return err
	}
	if err := d.awaitSuccessor(ctx, victim, fault); err != nil {
		return err
	}
	if err := d.undisturbed(ctx); err != nil {
		return err
	}
	d.woken = victim
	d.say("", "SIGCONT to %s, which goes on where it stopped", victim)
	if err := d.nodes[victim].wake(); err != nil {
		return err
	}
	if err := d.await(ctx, victim+" to write late", func() bool { return d.lateOf == victim }); err != nil {
		return err
	}
	return d.undisturbed(ctx)
}

// resign asks the active node to hand over. The clock starts when it stops.
func (d *director) resign(ctx context.Context) error {
	former, err := d.awaitLeader(ctx)
	if err != nil {
		return err
	}
	fault := d.result.begin("resigned", resignLimit, time.Time{})
	d.say("", "%s is asked to resign", former)
	if err := d.nodes[former].command(commandResign); err != nil {
		return err
	}
	if err := d.awaitSuccessor(ctx, former, fault); err != nil {
		return err
	}
	return d.undisturbed(ctx)
}

// killStore ends the store with SIGKILL and starts it again, with the data that it left on disk.
// The active node goes on leading.
func (d *director) killStore(ctx context.Context) error {
	leader, err := d.awaitLeader(ctx)
	if err != nil {
		return err
	}
	fault := d.result.beginStore("store killed, restarted")
	d.say("", "SIGKILL to the store, while %s leads", leader)
	killed := time.Now()
	d.settings.store.process.kill()
	if err := d.settings.store.start(); err != nil {
		return err
	}
	started := time.Now()
	if err := d.await(ctx, "the store to accept a write", func() bool { return d.result.latest.After(started) }); err != nil {
		return err
	}
	d.say("", "the store goes on with its data; it accepted no write for %v", round(d.result.latest.Sub(killed)))
	if err := d.undisturbed(ctx); err != nil {
		return err
	}
	fault.over = true
	return nil
}

// restartForInstantFailover ends both nodes and starts them with another option.
func (d *director) restartForInstantFailover(ctx context.Context) error {
	d.say("", "both are restarted, with instant failover")
	d.stopAll(ctx)
	d.ending, d.active, d.instant = "", "", true
	for name := range d.nodes {
		if err := d.start(name); err != nil {
			return err
		}
	}
	if _, err := d.awaitLeader(ctx); err != nil {
		return err
	}
	return d.undisturbed(ctx)
}
