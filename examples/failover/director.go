//go:build unix || windows

package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/tenurelock/tenure/contrib/tenurews"
	"github.com/tenurelock/tenure/election"
	"github.com/tenurelock/tenure/transport"
)

// patience is how long, beyond a TTL, each step may take before the run fails.
const patience = 10 * time.Second

// director runs the pair and causes the faults. The goroutine of direct does everything.
type director struct {
	settings
	out    io.Writer
	began  time.Time
	client *transport.Client // reads the store itself
	fenced *transport.Watch  // of the protected key
	plain  *transport.Watch  // of the control
	events chan event
	nodes  map[string]*process
	active string // the node that leads, by its own events; empty if none
	woken  string // the node that was frozen, once it was woken
	lateOf string // the node with a late write that was answered
	ending string // the node that was killed, or "all" at the end
	lost   string // a node that ended without being told to
	result *result
}

// direct runs the pair through all steps.
func direct(ctx context.Context, s settings, out io.Writer) (*result, error) {
	s.run = time.Now().Format("150405.000000") // keys of its own
	dialling, cancel := context.WithTimeoutCause(ctx, patience, fmt.Errorf("no answer in %v", patience))
	defer cancel()
	client, err := transport.Dial(dialling, s.broker, transport.Options{ClientID: "director-" + s.run, WebSocket: tenurews.Upgrade})
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
	if !s.freeze {
		d.result.woke = false
		fmt.Fprint(out, "No node is frozen, so no write comes late: the checks of late writes are left out.\n\n")
	}
	for _, step := range d.steps() {
		if err := step(ctx); err != nil {
			return nil, err
		}
	}
	return d.result, nil
}

func (d *director) start(name string) error {
	p, err := startNode(d.settings, name, d.events)
	if err == nil {
		d.nodes[name] = p
	}
	return err
}

// stopAll stops the standby first, so that it does not take over.
func (d *director) stopAll(ctx context.Context) {
	d.ending = allNodes
	for _, standby := range []bool{true, false} {
		for name, p := range d.nodes {
			if standby == (name != d.active) {
				stopNode(ctx, p, d.events, d.heard)
			}
		}
	}
}

const allNodes = "all"

func (d *director) awaitLeader(ctx context.Context) (leader string, err error) {
	err = d.await(ctx, "a leader", func() bool { return d.active != "" })
	return d.active, err
}

func (d *director) firstLeader(ctx context.Context) error {
	if _, err := d.awaitLeader(ctx); err != nil {
		return err
	}
	return d.undisturbed(ctx)
}

// finish compares the events of the nodes with what the store holds.
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

// await handles events until done.
func (d *director) await(ctx context.Context, what string, done func() bool) error {
	limit := time.NewTimer(d.ttl + patience)
	defer limit.Stop()
	var late error
	err := d.listen(ctx, limit.C,
		func() { late = fmt.Errorf("waited %v in vain for %s", d.ttl+patience, what) },
		func() bool { return late != nil || done() })
	return errors.Join(err, late)
}

// listen handles events until done, and calls expired when the timer fires.
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
		case <-d.settings.store.ended():
			return errors.New("the store ended by itself")
		}
		if d.lost != "" {
			return fmt.Errorf("%s ended by itself", d.lost)
		}
	}
	return nil
}

var errInterrupted = errors.New("interrupted")

// heard handles an event of a node.
func (d *director) heard(e event) {
	switch {
	case e.Kind == kindWrite && e.Control:
		// The successor may have written over it before its notification was sent.
		if e.Outcome == accepted {
			d.result.control.saw(e.Version, e.Token)
		}
	case e.Kind == kindWrite:
		// On a busy machine a node can lose its lease before it has a successor. Then the
		// store rightly accepts its late write. Only the woken node certainly has a successor.
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
		case allNodes:
		case e.Node:
			d.ending = ""
		default:
			d.lost = e.Node
		}
	case e.Phase == string(election.Active):
		d.active = e.Node
		d.result.leads(e)
		d.say(e.Node, "ACTIVE, token %v", e.Token)
	default:
		if e.Phase == string(election.Draining) && e.Node == d.active {
			d.active = ""
			d.result.drains(e)
		}
		d.say(e.Node, "%s", e.Phase)
	}
}

// saw handles a notification of the store.
func saw(h history, change transport.Change) {
	var c counter
	if json.Unmarshal(change.Value, &c) == nil {
		h.saw(change.Version, c.Token)
	}
}

// say adds a line to the timeline, of a node or, with an empty name, of the director.
func (d *director) say(node, format string, arguments ...any) {
	if node == "" {
		node = "──▶"
	}
	fmt.Fprintf(d.out, "%7.3f s  %-7s %s\n", time.Since(d.began).Seconds(), node, fmt.Sprintf(format, arguments...))
}
