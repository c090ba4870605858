//go:build unix || windows

package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"time"

	"github.com/tenurelock/tenure/contrib/tenurews"
	"github.com/tenurelock/tenure/election"
	"github.com/tenurelock/tenure/transport"
)

const (
	// patience is how long, beyond a TTL, each step may take before the run fails.
	patience = 10 * time.Second
	// endPatience is how long a process may take to end when it is asked to.
	endPatience = 5 * time.Second

	// The project promises these times without an active node: resignLimit for a hand-over,
	// the TTL and killSlack for a failover, and instantLimit for an instant failover.
	resignLimit  = 50 * time.Millisecond
	killSlack    = 200 * time.Millisecond
	instantLimit = 200 * time.Millisecond

	nodeA, nodeB, theStore = "node-a", "node-b", "the store"
)

// director runs the pair and causes the faults. The goroutine of direct does everything.
type director struct {
	settings
	ctx           context.Context // its end ends the run
	out           io.Writer
	began         time.Time
	client        *transport.Client       // reads the store itself
	fenced, plain <-chan transport.Change // of the protected key, and of the control
	events        chan event
	processes     map[string]*process
	listening     bool   // the store is
	active        string // the node that leads, by its own events; empty if none
	woken         string // the node that was frozen, once it was woken
	lateOf        string // the node with a late write that was answered
	err           error  // the first
	result        *result
}

// direct runs the pair through all steps.
func direct(ctx context.Context, s settings, out io.Writer) (*result, error) {
	s.run = time.Now().Format("150405.000000") // keys of its own
	d := &director{
		settings: s, ctx: ctx, out: out, began: time.Now(), events: make(chan event),
		processes: make(map[string]*process), result: newResult(s.freeze),
	}
	if s.broker == "" {
		dir, err := os.MkdirTemp("", "tenure-failover-")
		if err != nil {
			return nil, err
		}
		defer os.RemoveAll(dir)
		d.dir, d.broker = dir, "mqtt://127.0.0.1:0"
	}
	defer d.end(nodeA, nodeB, theStore)
	if d.dir != "" {
		if d.startStore(); d.err != nil {
			return nil, d.err
		}
		fmt.Fprintf(out, "A state store of our own listens on %s, with its data on disk.\n", d.broker)
	}
	dialling, cancel := context.WithTimeoutCause(ctx, patience, fmt.Errorf("no answer in %v", patience))
	defer cancel()
	client, err := transport.Dial(dialling, d.broker, transport.Options{ClientID: "director-" + s.run, WebSocket: tenurews.Upgrade})
	if err != nil {
		return nil, err
	}
	defer client.Close() // and its watches
	d.client = client
	if _, err := client.Get(dialling, counterKey(s.run)); errors.Is(err, transport.ErrNoStore) {
		return nil, fmt.Errorf("%w; run one there: tenure attach %s", transport.ErrNoStore, s.broker)
	} else if err != nil {
		return nil, err
	}
	for key, changes := range map[string]*<-chan transport.Change{counterKey(s.run): &d.fenced, controlKey(s.run): &d.plain} {
		watch, err := client.Watch(key)
		if err != nil {
			return nil, err
		}
		*changes = watch.Changes()
	}
	fmt.Fprintf(out, "Two nodes campaign for a lease with a TTL of %v; the active one counts every %v.\n\n", s.ttl, writeEvery)
	if !s.freeze {
		fmt.Fprint(out, "No node is frozen, so no write comes late: the checks of late writes are left out.\n\n")
	}
	for _, step := range d.steps() {
		if step(); d.err != nil {
			return nil, d.err
		}
	}
	return d.result, nil
}

// steps returns what happens to the pair, in this order. Between the steps its leader counts for a random
// time, so that a fault can come at any time between two renewals.
func (d *director) steps() []func() {
	steps := []func(){d.startNodes, func() { d.killActive("killed (SIGKILL)", d.ttl+killSlack) }}
	if d.settings.freeze {
		steps = append(steps, d.freeze)
	}
	steps = append(steps, d.resign)
	if d.dir != "" {
		steps = append(steps, d.killStore)
	}
	return append(steps, d.restart, func() { d.killActive("killed, instant failover", instantLimit) }, d.finish)
}

// startNodes starts both nodes, and waits for a leader.
func (d *director) startNodes() {
	d.startNode(nodeA)
	d.startNode(nodeB)
	d.await("a leader", func() bool { return d.active != "" })
	d.undisturbed()
}

// killActive ends the active node with SIGKILL, and starts it again once the other
// node leads.
func (d *director) killActive(name string, limit time.Duration) {
	victim := d.active
	d.result.begin(name, limit, time.Now())
	d.say("", "SIGKILL to %s, which leads", victim)
	d.check(d.processes[victim].kill())
	d.awaitSuccessor(victim)
	d.awaitEnd(victim) // the other node may lead before the event of it is here
	d.say("", "%s is started again", victim)
	d.startNode(victim)
	d.undisturbed()
}

// freeze stops the active node until the other node leads, then wakes it.
func (d *director) freeze() {
	victim := d.active
	d.result.begin("frozen (SIGSTOP)", d.ttl+killSlack, time.Now())
	d.say("", "SIGSTOP to %s, which leads and does not notice", victim)
	d.check(d.processes[victim].freeze())
	d.awaitSuccessor(victim)
	d.undisturbed()
	d.woken = victim
	d.say("", "SIGCONT to %s, which goes on where it stopped", victim)
	d.check(d.processes[victim].wake())
	d.await(victim+" to write late", func() bool { return d.lateOf == victim })
	d.undisturbed()
}

// resign asks the active node to hand over. The clock starts when it stops.
func (d *director) resign() {
	former := d.active
	d.result.begin("resigned", resignLimit, time.Time{})
	d.say("", "%s is asked to resign", former)
	_, err := fmt.Fprintln(d.processes[former].stdin, commandResign)
	d.check(err)
	d.awaitSuccessor(former)
	d.undisturbed()
}

// killStore ends the store with SIGKILL and starts it again, with the data that it left on disk.
// The active node goes on leading.
func (d *director) killStore() {
	d.result.begin("store killed, restarted", 0, time.Time{}).keepsLeader = true
	d.say("", "SIGKILL to the store, while %s leads", d.active)
	killed := time.Now()
	d.check(d.processes[theStore].kill())
	d.awaitEnd(theStore)
	d.startStore()
	started := time.Now()
	d.await("the store to accept a write", func() bool { return d.result.latest.After(started) })
	d.say("", "the store goes on with its data; it accepted no write for %v", round(d.result.latest.Sub(killed)))
	d.undisturbed()
	d.result.current = &fault{writes: make(map[string]int)} // what follows is not due to it
}

// restart ends both nodes and starts them with instant failover.
func (d *director) restart() {
	d.say("", "both are restarted, with instant failover")
	d.endNodes()
	d.active, d.instant = "", true
	d.startNodes()
}

// finish compares the events of the nodes with what the store holds.
func (d *director) finish() {
	running := 0
	for _, name := range []string{nodeA, nodeB} {
		if !d.processes[name].gone {
			running++
		}
	}
	d.say("", "both are asked to end")
	d.endNodes()
	entry, err := d.client.Get(d.ctx, counterKey(d.run))
	d.check(err)
	var last counter
	d.check(json.Unmarshal(entry.Value, &last))
	d.result.conclude(running, entry.Version, last)
}

// check notes an error, unless there is one. After an error no step begins, and there is nothing to wait for.
func (d *director) check(err error) {
	if d.err == nil {
		d.err = err
	}
}

func (d *director) start(name string, arguments ...string) {
	if d.err != nil {
		return
	}
	p, err := start(name, d.events, append(arguments, "--broker", d.broker)...)
	if d.check(err); err == nil {
		d.processes[name] = p
	}
}

func (d *director) startNode(name string) {
	d.start(name, "--node", name, "--run", d.run, "--ttl", d.ttl.String(), fmt.Sprintf("--instant=%t", d.instant))
}

// startStore returns when the store listens, again on the address that it had before.
func (d *director) startStore() {
	d.listening = false
	d.start(theStore, "--store", d.dir)
	d.await("the store to listen", func() bool { return d.listening })
}

// endNodes ends the standby first, so that it does not take over.
func (d *director) endNodes() {
	if d.active == nodeA {
		d.end(nodeB, nodeA)
	} else {
		d.end(nodeA, nodeB)
	}
}

// end asks processes to end, one after the other, kills each that does not, and handles events meanwhile.
func (d *director) end(names ...string) {
	for _, name := range names {
		p := d.processes[name]
		if p == nil {
			continue // it never ran
		}
		p.ending = true
		_ = p.stdin.Close()
		_ = p.wake() // fails if it has ended
		limit, cancel := context.WithTimeout(d.ctx, endPatience)
		late := limit.Done()
		for !p.gone {
			select {
			case e := <-d.events:
				d.heard(e)
			case <-late:
				_ = p.kill()
				late = nil
			}
		}
		cancel()
	}
}

func (d *director) awaitSuccessor(former string) {
	d.await("the successor of "+former, func() bool { return d.active != "" && d.active != former })
	d.say("", "%v without an active node", round(d.result.current.gap))
}

func (d *director) awaitEnd(name string) {
	d.await("the end of "+name, func() bool { return d.processes[name].gone })
}

// await handles events until done.
func (d *director) await(what string, done func() bool) {
	if d.listen(d.ttl+patience, done); !done() {
		d.check(fmt.Errorf("waited %v in vain for %s", d.ttl+patience, what))
	}
}

// undisturbed lets the pair work for a random time, and then until it has a leader.
func (d *director) undisturbed() {
	d.listen(d.ttl/2+rand.N(d.ttl/2), func() bool { return false })
	d.await("a leader", func() bool { return d.active != "" })
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
		case change := <-d.fenced:
			saw(d.result.fenced, change)
		case change := <-d.plain:
			saw(d.result.control, change)
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
	case e.Address != "":
		d.listening, d.broker = true, e.Address
	case e.Phase == string(election.Active):
		d.active = e.Process
		d.result.leads(e)
		d.say(e.Process, "ACTIVE, token %v", e.Token)
	case e.Phase != "":
		if e.Phase == string(election.Draining) && e.Process == d.active {
			d.active = ""
			d.result.drains(e)
		}
		d.say(e.Process, "%s", e.Phase)
	case e.Control:
		// The successor may have written over it before its notification was sent.
		if e.Outcome == accepted {
			d.result.control.saw(e.Version, e.Token)
		}
	default:
		// On a busy machine a node can lose its lease before it has a successor. Then the
		// store rightly accepts its late write. Only the woken node certainly has a successor.
		e.Late = e.Late && e.Process == d.woken
		d.result.wrote(e)
		if e.Late {
			d.lateOf = e.Process
		}
		if e.Outcome != accepted {
			d.say(e.Process, "write %s", e.Outcome)
		}
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
	if node == "" && d.err != nil {
		return
	}
	node = cmp.Or(node, "──▶")
	fmt.Fprintf(d.out, "%7.3f s  %-7s %s\n", time.Since(d.began).Seconds(), node, fmt.Sprintf(format, arguments...))
}
