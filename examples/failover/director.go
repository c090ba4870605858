//go:build unix || windows

package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"time"

	"github.com/tenurelock/tenure/election"
	"github.com/tenurelock/tenure/hlc"
	"github.com/tenurelock/tenure/server"
	"github.com/tenurelock/tenure/transport"
)

const (
	// patience is how long, beyond a TTL, each step may take before the run fails.
	patience = 10 * time.Second

	// slack is how much longer than the TTL a failover takes at worst, and how long an instant failover does.
	slack = 200 * time.Millisecond

	nodeA, nodeB = "node-a", "node-b"
)

// director runs the pair and causes the faults. The goroutine of direct does everything.
type director struct {
	settings
	ctx       context.Context // its end ends the run
	out       io.Writer
	began     time.Time
	changes   <-chan transport.Change // of the protected key
	events    chan event
	processes map[string]*process
	active    string // the node that leads, by its own events; empty if none
	woken     string // the node that was frozen, once it was woken
	err       error  // the first
	result    *result
}

// direct runs the pair through all steps.
func direct(ctx context.Context, s settings, out io.Writer) (_ *result, err error) {
	s.run = time.Now().Format("150405.000000") // keys of its own
	if s.broker == "" {
		store, err := server.New(server.Options{Addr: "127.0.0.1:0"})
		if err != nil {
			return nil, err
		}
		serving, stop := context.WithCancel(context.WithoutCancel(ctx))
		served := make(chan error, 1)
		go func() { served <- store.Serve(serving) }()
		defer func() {
			stop()
			<-served
		}()
		s.broker = "mqtt://" + store.Addr().String()
		fmt.Fprintf(out, "A state store of our own listens on %s.\n", s.broker)
	}
	dialling, cancel := context.WithTimeoutCause(ctx, patience, fmt.Errorf("no answer in %v", patience))
	defer cancel()
	client, err := transport.Dial(dialling, s.broker, transport.Options{ClientID: "director-" + s.run})
	if err != nil {
		return nil, err
	}
	defer client.Close() // and its watch
	if _, err := client.Get(dialling, protectedKey(s.run)); err != nil {
		return nil, fmt.Errorf("%w; is a store there? tenure attach %s runs one", err, s.broker)
	}
	watch, err := client.Watch(protectedKey(s.run))
	if err != nil {
		return nil, err
	}
	fmt.Fprintf(out, "Two nodes campaign for a lease with a TTL of %v; the active one writes every %v.\n\n",
		s.ttl, writeEvery)
	d := &director{settings: s, ctx: ctx, out: out, began: time.Now(), changes: watch.Changes(), events: make(chan event),
		processes: make(map[string]*process), result: newResult()}
	defer d.end(nodeA, nodeB)
	for _, step := range d.steps() {
		if step(); d.err != nil {
			return nil, d.err
		}
	}
	return d.result, nil
}

// steps returns what happens to the pair, in this order. Between the steps its leader writes for a random
// time, so that a fault can come at any time between two renewals.
func (d *director) steps() []func() {
	steps := []func(){d.startNodes, func() { d.killActive("killed (SIGKILL)", d.ttl+slack) }}
	if canFreeze {
		steps = append(steps, d.freeze)
	}
	return append(steps, d.resign, d.restart, func() { d.killActive("killed, instant failover", slack) }, d.endNodes)
}

// startNodes starts both nodes, and waits for a leader.
func (d *director) startNodes() {
	d.startNode(nodeA)
	d.startNode(nodeB)
	d.undisturbed()
}

// killActive ends the active node with SIGKILL, and starts it again once the other node
// leads.
func (d *director) killActive(name string, limit time.Duration) {
	victim := d.active
	d.result.begin(name, limit, time.Now())
	d.say("", "SIGKILL to %s, which leads", victim)
	d.processes[victim].ending = true
	d.check(d.processes[victim].cmd.Process.Kill())
	d.awaitSuccessor(victim)
	d.await("the end of "+victim, func() bool { return d.processes[victim].gone }) // the event of it may come later
	d.say("", "%s is started again", victim)
	d.startNode(victim)
	d.undisturbed()
}

// freeze stops the active node until the other node leads, then wakes it.
func (d *director) freeze() {
	victim := d.active
	d.result.begin("frozen (SIGSTOP)", d.ttl+slack, time.Now())
	d.say("", "SIGSTOP to %s, which leads and does not notice", victim)
	d.check(d.processes[victim].freeze())
	d.awaitSuccessor(victim)
	d.undisturbed()
	d.woken = victim
	d.say("", "SIGCONT to %s, which goes on where it stopped", victim)
	d.check(d.processes[victim].wake())
	d.await(victim+" to write late", func() bool { return len(d.result.late) > 0 })
	d.undisturbed()
}

// resign asks the active node to hand over. The clock starts when it stops.
func (d *director) resign() {
	former := d.active
	d.result.begin("resigned", slack/4, time.Time{})
	d.say("", "%s is asked to resign", former)
	_, err := fmt.Fprintln(d.processes[former].stdin, commandResign)
	d.check(err)
	d.awaitSuccessor(former)
	d.undisturbed()
}

// restart ends both nodes and starts them with instant failover.
func (d *director) restart() {
	d.result.current = new(fault) // what follows is due to none
	d.say("", "both are restarted, with instant failover")
	d.endNodes()
	d.active, d.instant = "", true
	d.startNodes()
}

// check notes an error, unless there is one. After an error no step begins, and there is nothing to wait for.
func (d *director) check(err error) { d.err = cmp.Or(d.err, err) }

func (d *director) startNode(name string) {
	if d.err != nil {
		return
	}
	p, err := start(name, d.events, "--node", name, "--run", d.run, "--ttl", d.ttl.String(),
		fmt.Sprintf("--instant=%t", d.instant), "--broker", d.broker)
	if d.check(err); err == nil {
		d.processes[name] = p
	}
}

// endNodes ends the standby first, so that it does not take over.
func (d *director) endNodes() {
	standby := map[string]string{nodeA: nodeB}[d.active]
	d.end(cmp.Or(standby, nodeA), nodeA, nodeB)
}

// end asks processes to end, one after the other, kills each that does not, and handles events meanwhile.
func (d *director) end(names ...string) {
	for _, name := range names {
		p := d.processes[name]
		if p == nil || p.gone {
			continue
		}
		p.ending = true
		_ = p.stdin.Close()
		_ = p.wake() // fails if it has ended
		limit, cancel := context.WithTimeout(d.ctx, patience/2)
		context.AfterFunc(limit, func() { _ = p.cmd.Process.Kill() }) // does nothing if it has ended
		for !p.gone {
			d.heard(<-d.events)
		}
		cancel()
	}
}

func (d *director) awaitSuccessor(former string) {
	d.await("the successor of "+former, func() bool { return d.active != "" && d.active != former })
	d.say("", "%v without an active node", round(d.result.current.gap))
}

// await handles events until done.
func (d *director) await(what string, done func() bool) {
	if d.listen(d.ttl+patience, done); !done() {
		d.check(fmt.Errorf("waited %v in vain for %s", d.ttl+patience, what))
	}
}

// undisturbed waits for a leader, and lets the pair work for a random time.
func (d *director) undisturbed() {
	leads := func() bool { return d.active != "" }
	d.await("a leader", leads)
	d.listen(d.ttl/2+rand.N(d.ttl/2), func() bool { return false })
	d.await("a leader", leads)
}

// listen handles events until done, or for a time.
func (d *director) listen(long time.Duration, done func() bool) {
	timer := time.NewTimer(long)
	defer timer.Stop()
	for d.err == nil && !done() {
		select {
		case <-d.ctx.Done():
			d.check(errInterrupted)
		case e := <-d.events:
			d.heard(e)
		case change := <-d.changes: // also of a write whose node got no answer
			if token, err := hlc.ParseToken(string(change.Value)); err == nil {
				d.result.applied[change.Version] = token
			}
		case <-timer.C:
			return
		}
	}
}

var errInterrupted = errors.New("interrupted")

// heard handles an event of a process.
func (d *director) heard(e event) {
	switch {
	case e.Exited:
		p := d.processes[e.Process]
		if p.gone = true; !p.ending {
			d.check(fmt.Errorf("%s ended by itself", e.Process))
		}
	case e.Phase == election.Active:
		d.active = e.Process
		d.result.leads(e)
		d.say(e.Process, "ACTIVE, token %v", e.Token)
	case e.Phase != "":
		if e.Phase == election.Draining && e.Process == d.active {
			d.active = ""
			d.result.drains(e)
		}
		d.say(e.Process, "%s", e.Phase)
	default:
		// On a busy machine a node can lose its lease before it has a successor. Then the
		// store rightly accepts its late write. Only the woken node certainly has a successor.
		e.Late = e.Late && e.Process == d.woken
		d.result.wrote(e)
		if e.Error != "" {
			d.say(e.Process, "write: %s", e.Error)
		}
	}
}

// say adds a line to the timeline, of a node or, with an empty name, of the director.
func (d *director) say(node, format string, arguments ...any) {
	fmt.Fprintf(d.out, "%7.3f s  %-7s %s\n", time.Since(d.began).Seconds(), cmp.Or(node, "──▶"),
		fmt.Sprintf(format, arguments...))
}
