//go:build unix

package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/tenurelock/tenure/cluster/internal/machines"
	"github.com/tenurelock/tenure/election"
	"github.com/tenurelock/tenure/hlc"
	"github.com/tenurelock/tenure/internal/compiled"
	"github.com/tenurelock/tenure/internal/pair"
	"github.com/tenurelock/tenure/internal/sleep"
)

const (
	// patience is how long, beyond the time to live, each wait may take before the run fails.
	patience = 30 * time.Second
	// undisturbed is how long everything works before something happens to it: a client that was
	// connected for less than 5 s goes on with the pauses that it made before.
	undisturbed = 5500 * time.Millisecond
)

// director runs everything and causes the faults.
type director struct {
	settings
	out      io.Writer
	began    time.Time
	dir      string
	program  string // tenure-cluster
	network  *machines.Network
	reason   string // why it cannot be cut
	machines []*machine
	gateways []*machine
	instant  bool // of the nodes that run
	prober   *prober
	overlap  *machines.Overlap

	mu       sync.Mutex // guards what processes say
	result   *result
	leader   string // the node that leads; empty if none
	token    hlc.Token
	leaderAt time.Time // when it began to lead
	changes  int       // of leader
}

// direct does all steps. It returns a result also if one of them failed.
func direct(ctx context.Context, s settings, out io.Writer) (_ *result, err error) {
	d := &director{settings: s, out: out, began: time.Now(), result: &result{writes: pair.NewWrites(), late: pair.NewWrites()}}
	if s.logs != "" {
		if err := os.MkdirAll(s.logs, 0o700); err != nil {
			return nil, err
		}
	}
	if d.dir, err = os.MkdirTemp("", "failover"); err != nil { // a short name: it has sockets
		return nil, err
	}
	defer os.RemoveAll(d.dir)
	program := compiled.Program{Folder: "cmd/tenure-cluster"}
	defer program.Remove()
	d.say("──▶", "go build ./%s", program.Folder)
	if d.program, err = program.Build(); err != nil {
		return nil, fmt.Errorf("%w\nrun this program in the directory cluster of a clone", err)
	}
	err = d.newNetwork()
	defer d.network.Remove()
	defer d.close()
	if err == nil {
		err = d.start(ctx)
	}
	switch {
	case err != nil:
		return nil, err
	case d.idle > 0:
		return nil, d.measureIdle(ctx)
	}
	if err = d.steps(ctx); err == nil {
		err = d.finish(ctx)
	}
	return d.result, err
}

// start starts the machines, and waits until a node leads.
func (d *director) start(ctx context.Context) error {
	if err := d.newMachines(); err != nil {
		return err
	}
	for _, m := range d.machines {
		if err := d.startStore(m); err != nil {
			return err
		}
	}
	if err := d.await(ctx, "all members", func() bool { return d.activeLocked() != nil && d.allSaidLocked() }); err != nil {
		return err
	}
	if d.idle > 0 {
		return nil
	}
	dialling, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	var err error
	if d.prober, err = startProber(dialling, d.stores()); err != nil {
		return err
	}
	stores := make(map[string]machines.Store)
	for _, m := range d.gateways {
		stores[m.name] = machines.Store{
			Address: func() string { return m.address },
			Serves:  func() time.Time { d.mu.Lock(); defer d.mu.Unlock(); return m.serves },
		}
	}
	d.overlap = machines.StartOverlap(stores, probeKey)
	return d.startNodes(ctx, false)
}

// startNodes starts the nodes anew, and waits until one leads.
func (d *director) startNodes(ctx context.Context, instant bool) error {
	d.instant = instant
	for _, m := range d.gateways {
		if m.node != nil {
			m.node.Kill()
		}
	}
	d.mu.Lock()
	d.leader = ""
	d.mu.Unlock()
	for _, m := range d.gateways {
		if err := d.startNode(m, instant); err != nil {
			return err
		}
	}
	if err := d.await(ctx, "a node that leads", func() bool { return d.leader != "" }); err != nil {
		return err
	}
	if !sleep.For(ctx, undisturbed) {
		return errInterrupted
	}
	return nil
}

// close ends everything.
func (d *director) close() {
	if d.prober != nil {
		d.prober.close()
		_, _ = d.overlap.Close() // again, unless a step failed
	}
	for _, m := range d.machines {
		m.kill()
	}
}

// heardStore notes what the process of a store or the witness said.
func (d *director) heardStore(m *machine, line string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, state := range []string{saysListening, saysStandby, saysMember} {
		if strings.HasPrefix(line, state) {
			m.state, m.said = state, time.Now()
			if state == saysListening {
				m.serves = m.said
			}
			d.heardLocked("store-"+m.name, state)
		}
	}
}

// heard notes an event of a node.
func (d *director) heard(line []byte) {
	var e pair.Event
	if json.Unmarshal(line, &e) != nil {
		return // cut short by SIGKILL
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	switch {
	case e.Kind == pair.KindWrite:
		d.result.writes.Add(e)
		if e.Late {
			d.heardLocked(e.Node, "late write "+e.Outcome)
		}
	case e.Phase == string(election.Active):
		d.leader, d.token, d.leaderAt = e.Node, e.Token, e.At
		d.changes++
		d.heardLocked(e.Node, fmt.Sprintf("ACTIVE, token %v", e.Token))
	default:
		if e.Node == d.leader && e.Phase == string(election.Draining) {
			d.leader = ""
			d.changes++
		}
		d.heardLocked(e.Node, e.Phase)
	}
}

// activeLocked returns the machine whose store is active, or nil.
func (d *director) activeLocked() (active *machine) {
	for _, m := range d.gateways {
		if m.state == saysListening && (active == nil || m.said.After(active.said)) {
			active = m
		}
	}
	return active
}

// allSaidLocked reports whether each machine has said what its process does.
func (d *director) allSaidLocked() bool {
	for _, m := range d.machines {
		if m.state == "" {
			return false
		}
	}
	return true
}

// leadingLocked returns the machine whose node leads, or nil.
func (d *director) leadingLocked() *machine {
	for _, m := range d.gateways {
		if m.nodeName() == d.leader {
			return m
		}
	}
	return nil
}

// await waits until done, which is called with the mutex held.
func (d *director) await(ctx context.Context, what string, done func() bool) error {
	limit := d.ttl + patience
	for end := time.Now().Add(limit); ; {
		d.mu.Lock()
		ok := done()
		d.mu.Unlock()
		switch {
		case ok:
			return nil
		case time.Now().After(end):
			return fmt.Errorf("waited %v in vain for %s; --logs shows why", limit, what)
		case !sleep.For(ctx, time.Millisecond):
			return errInterrupted
		}
	}
}

func (d *director) say(name, format string, arguments ...any) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.sayLocked(name, fmt.Sprintf(format, arguments...))
}

// sayLocked adds a line to the timeline.
func (d *director) sayLocked(name, what string) {
	fmt.Fprintf(d.out, "%8.3f s  %-7s  %s\n", time.Since(d.began).Seconds(), name, what)
}

// heardLocked adds what a process said to the timeline, unless steps are repeated.
func (d *director) heardLocked(name, what string) {
	if d.repeat == 1 {
		d.sayLocked(name, what)
	}
}

// finish compares what was said with what the store holds.
func (d *director) finish(ctx context.Context) error {
	if !sleep.For(ctx, undisturbed) {
		return errInterrupted
	}
	for _, m := range d.gateways {
		m.node.Kill() // no write comes later
	}
	reading, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	entry, err := d.prober.client.Get(reading, pair.CounterKey(pairRun))
	if err != nil {
		return err
	}
	var last pair.Counter
	if err := json.Unmarshal(entry.Value, &last); err != nil {
		return fmt.Errorf("the protected key holds %q: %w", entry.Value, err)
	}
	answers, overlaps := d.overlap.Close()
	d.prober.mu.Lock()
	defer d.prober.mu.Unlock()
	d.mu.Lock()
	defer d.mu.Unlock()
	r := d.result
	r.writes.History.Saw(entry.Version, last.Token)
	r.writes.CheckStale(&r.checks)
	if slices.ContainsFunc(r.rows, func(row *row) bool { return row.late }) {
		r.late.CheckLate(&r.checks, "the late write was refused by a store that took over")
	}
	r.checks.Add("no answered write was lost", len(d.prober.wrong) == 0, "%d writes answered to the prober; wrong: %q", d.prober.answered, d.prober.wrong)
	r.checks.Add("the store holds the last accepted count, or one after it", entry.Version.Compare(r.writes.Highest.Version) >= 0 && last.Count >= r.writes.Highest.Count,
		"count %d by %s", last.Count, last.Node)
	r.checks.Add("two stores never answered at once", len(overlaps) == 0, "%d answers, to requests each %v; wrong: %q", answers, machines.AskEvery, overlaps)
	return nil
}
