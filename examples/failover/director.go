//go:build unix || windows

package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/tenurelock/tenure/election"
	"github.com/tenurelock/tenure/transport"
)

const (
	// patience is how long, beyond a TTL, anything may take before the run is
	// given up.
	patience = 10 * time.Second
	// resignLimit and killSlack are what the project promises of a hand-over and,
	// beyond the TTL, of a failover; instantLimit of one that does not wait for the TTL.
	resignLimit  = 50 * time.Millisecond
	killSlack    = 200 * time.Millisecond
	instantLimit = 200 * time.Millisecond
)

// director runs the pair and plays the faults. One goroutine, that of direct,
// does everything.
type director struct {
	settings
	out    io.Writer
	began  time.Time
	client *transport.Client // looks at the store for itself
	fenced *transport.Watch  // of the protected key
	plain  *transport.Watch  // of the control
	events chan event
	nodes  map[string]*process
	active string // the node that leads, as far as its events tell; empty if none
	woken  string // the node that was frozen, once it was woken
	lateOf string // the node whose late write was answered
	ending string // the node that was killed, or "all" at the end
	lost   string // a node that ended without being told to
	result *result
}

// direct plays the whole piece.
func direct(ctx context.Context, s settings, out io.Writer) (*result, error) {
	s.run = time.Now().Format("150405.000000") // keys of its own
	dialling, cancel := context.WithTimeoutCause(ctx, patience, fmt.Errorf("no answer in %v", patience))
	defer cancel()
	client, err := transport.Dial(dialling, s.broker, transport.Options{ClientID: "director-" + s.run})
	if err != nil {
		return nil, err
	}
	defer client.Close()
	if _, err := client.Get(dialling, counterKey(s.run)); errors.Is(err, transport.ErrNoStore) {
		return nil, fmt.Errorf("%w; run one there: tenure attach %s", transport.ErrNoStore, s.broker)
	} else if err != nil {
		return nil, err
	}
	fenced, err := client.Watch(counterKey(s.run))
	if err != nil {
		return nil, err
	}
	defer fenced.Close()
	plain, err := client.Watch(controlKey(s.run))
	if err != nil {
		return nil, err
	}
	defer plain.Close()
	d := &director{
		settings: s,
		out:      out,
		began:    time.Now(),
		client:   client,
		fenced:   fenced,
		plain:    plain,
		events:   make(chan event),
		nodes:    make(map[string]*process),
		result:   newResult(s.ttl),
	}
	defer d.stopAll(ctx)
	fmt.Fprintf(out, "Two nodes campaign for a lease with a TTL of %v; the active one counts every %v.\n\n", s.ttl, writeEvery)
	for _, name := range []string{"node-a", "node-b"} {
		if err := d.start(name); err != nil {
			return nil, err
		}
	}
	acts := []func(context.Context) error{d.firstLeader, d.kill, d.freeze, d.resign, d.restartForInstantFailover, d.killInstantly, d.finish}
	if !s.freeze {
		acts = slices.Delete(acts, 2, 3)
		d.result.woke = false
		fmt.Fprint(out, "No node is frozen, so no write comes late: the checks of that are left out.\n\n")
	}
	for _, act := range acts {
		if err := act(ctx); err != nil {
			return nil, err
		}
	}
	return d.result, nil
}

func (d *director) start(name string) error {
	p, err := startProcess(d.settings, name, d.events)
	if err == nil {
		d.nodes[name] = p
	}
	return err
}

// stopAll stops the standby first, so that it does not take over.
func (d *director) stopAll(ctx context.Context) {
	d.ending = everybody
	for _, standby := range []bool{true, false} {
		for name, p := range d.nodes {
			if standby == (name != d.active) {
				p.stop(ctx, d.events, d.heard)
			}
		}
	}
}

const everybody = "all"

// undisturbed lets a leader count before something happens to it. The moment is
// random, so that faults meet it anywhere between two renewals.
func (d *director) undisturbed(ctx context.Context) error {
	return d.pause(ctx, d.ttl/2+rand.N(d.ttl/2))
}

func (d *director) awaitLeader(ctx context.Context) (leader string, err error) {
	err = d.await(ctx, "somebody to lead", func() bool { return d.active != "" })
	return d.active, err
}

func (d *director) firstLeader(ctx context.Context) error {
	if _, err := d.awaitLeader(ctx); err != nil {
		return err
	}
	return d.undisturbed(ctx)
}

// kill ends the active node with SIGKILL: the other leads when the TTL has passed.
func (d *director) kill(ctx context.Context) error {
	return d.killActive(ctx, "killed (SIGKILL)", d.ttl+killSlack)
}

// killInstantly does the same to nodes whose connection carries a Will that releases
// the lease.
func (d *director) killInstantly(ctx context.Context) error {
	return d.killActive(ctx, "killed, instant failover", instantLimit)
}

// killActive ends the active node with SIGKILL, and starts it again once the other
// leads.
func (d *director) killActive(ctx context.Context, name string, limit time.Duration) error {
	victim, err := d.awaitLeader(ctx)
	if err != nil {
		return err
	}
	d.ending = victim
	fault := d.result.begin(name, limit, time.Now())
	d.say("", "SIGKILL to %s, which leads", victim)
	if err := d.nodes[victim].kill(); err != nil {
		return err
	}
	if err := d.awaitSuccessor(ctx, victim, fault); err != nil {
		return err
	}
	// The other may lead before it is known here that the victim has ended.
	if err := d.await(ctx, "the end of "+victim, func() bool { return d.ending == "" }); err != nil {
		return err
	}
	d.say("", "%s is started again", victim)
	if err := d.start(victim); err != nil {
		return err
	}
	return d.undisturbed(ctx)
}

// freeze stops the active node until the other leads, then wakes it.
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
	if err := d.nodes[former].resign(); err != nil {
		return err
	}
	if err := d.awaitSuccessor(ctx, former, fault); err != nil {
		return err
	}
	return d.undisturbed(ctx)
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

// finish compares what the nodes said with what the store holds.
func (d *director) finish(ctx context.Context) error {
	running := 0
	for _, p := range d.nodes {
		select {
		case <-p.exited:
		default:
			running++
		}
	}
	d.say("", "both are asked to end")
	d.stopAll(ctx)
	entry, err := d.client.Get(ctx, counterKey(d.run))
	if err != nil {
		return err
	}
	var last counter
	if err := json.Unmarshal(entry.Value, &last); err != nil {
		return fmt.Errorf("the protected key holds %q: %w", entry.Value, err)
	}
	d.result.conclude(running, entry.Version, last)
	return nil
}

func (d *director) awaitSuccessor(ctx context.Context, former string, fault *fault) error {
	d.result.current = fault
	err := d.await(ctx, "the successor of "+former, func() bool { return d.active != "" && d.active != former })
	if err == nil {
		d.say("", "%v without an active node", round(fault.Gap))
	}
	return err
}

// pause lets the pair work.
func (d *director) pause(ctx context.Context, length time.Duration) error {
	timer := time.NewTimer(length)
	defer timer.Stop()
	over := false
	return d.listen(ctx, timer.C, func() { over = true }, func() bool { return over })
}

// await takes in events until done.
func (d *director) await(ctx context.Context, what string, done func() bool) error {
	limit := time.NewTimer(d.ttl + patience)
	defer limit.Stop()
	var late error
	err := d.listen(ctx, limit.C,
		func() { late = fmt.Errorf("waited %v in vain for %s", d.ttl+patience, what) },
		func() bool { return late != nil || done() })
	return errors.Join(err, late)
}

// listen takes in events until done, and calls expired when the timer fires.
func (d *director) listen(ctx context.Context, timer <-chan time.Time, expired func(), done func() bool) error {
	for !done() {
		select {
		case <-ctx.Done():
			return errInterrupted
		case e := <-d.events:
			d.heard(e)
		case change := <-d.fenced.Changes():
			saw(d.result.fenced, change)
		case change := <-d.plain.Changes():
			saw(d.result.control, change)
		case <-timer:
			expired()
		}
		if d.lost != "" {
			return fmt.Errorf("%s ended by itself", d.lost)
		}
	}
	return nil
}

var errInterrupted = errors.New("interrupted")

// heard takes in what a node says.
func (d *director) heard(e event) {
	switch {
	case e.Kind == kindWrite && e.Control:
		// The successor may have written over it before the store told of it.
		if e.Outcome == accepted {
			d.result.control.saw(e.Version, e.Token)
		}
	case e.Kind == kindWrite:
		// A busy machine can cost a node its lease while nobody has followed yet;
		// the store rightly takes its late write. Only the woken one has a successor
		// for certain.
		e.Late = e.Late && e.Node == d.woken
		d.result.wrote(e)
		if e.Late {
			d.lateOf = e.Node
		}
		if e.Outcome != accepted {
			d.say(e.Node, "write %s", e.Outcome)
		}
	case e.Kind == kindExit:
		switch d.ending {
		case everybody:
		case e.Node:
			d.ending = ""
		default:
			d.lost = e.Node
		}
	case e.Phase == election.Active.String():
		d.active = e.Node
		d.result.leads(e)
		d.say(e.Node, "ACTIVE, token %v", e.Token)
	default:
		if e.Phase == election.Draining.String() && e.Node == d.active {
			d.active = ""
			d.result.drains(e)
		}
		d.say(e.Node, "%s", e.Phase)
	}
}

// saw takes in what the store says by itself.
func saw(h history, change transport.Change) {
	var c counter
	if json.Unmarshal(change.Value, &c) == nil {
		h.saw(change.Version, c.Token)
	}
}

// say adds a line to the timeline.
func (d *director) say(who, format string, arguments ...any) {
	if who == "" {
		who = "──▶"
	}
	fmt.Fprintf(d.out, "%7.3f s  %-7s %s\n", time.Since(d.began).Seconds(), who, fmt.Sprintf(format, arguments...))
}
