//go:build unix

package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/tenurelock/tenure/cluster/member"
	"github.com/tenurelock/tenure/election"
	"github.com/tenurelock/tenure/hlc"
	"github.com/tenurelock/tenure/internal/pair"
	"github.com/tenurelock/tenure/internal/sleep"
)

const (
	members = 3
	// patience is how long, beyond the times to live, each step may take before the run fails.
	patience = 30 * time.Second
	// undisturbed is how long everything works before something happens to it.
	undisturbed = 2 * time.Second
)

// store is a process of the store, with a network of its own to each member of etcd.
type store struct {
	name, address string
	networks      []*proxy
	process       *pair.Process

	// Guarded by director.mu.
	state string // what it said last
	said  int    // how often it said something
}

// director runs everything and causes the faults.
type director struct {
	settings
	out    io.Writer
	began  time.Time
	etcd   []*member.Member
	stores []*store
	nodes  map[string]*pair.Process
	prober *prober

	mu      sync.Mutex // guards what processes say
	result  *result
	leader  string // the node that leads; empty if none
	token   hlc.Token
	changes int // of leader
}

// direct runs all steps.
func direct(ctx context.Context, s settings, out io.Writer) (*result, error) {
	d := &director{settings: s, out: out, began: time.Now(), nodes: make(map[string]*pair.Process),
		result: &result{writes: pair.NewWrites()}}
	dir, err := os.MkdirTemp("", "failover") // a short name: it has sockets
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	defer d.close()
	if err := d.start(ctx, dir); err != nil {
		return nil, err
	}
	for _, step := range []func(context.Context) error{d.killStore, d.freezeStore, d.cutStore, d.stopStore, d.freezeNodeAndKillStore, d.finish} {
		if err := step(ctx); err != nil {
			return nil, err
		}
	}
	return d.result, nil
}

// start starts etcd, the stores and the pair, and waits until a node leads.
func (d *director) start(ctx context.Context, dir string) error {
	endpoints, err := d.startEtcd(dir)
	if err != nil {
		return err
	}
	fmt.Fprintf(d.out, "Three members of etcd run here, and three processes share a store in it.\n")
	addresses, err := freeAddresses(members)
	if err != nil {
		return err
	}
	for i, address := range addresses {
		st := &store{name: fmt.Sprintf("store-%d", i+1), address: address}
		d.stores = append(d.stores, st)
		for _, endpoint := range endpoints {
			network, err := newProxy(endpoint)
			if err != nil {
				return err
			}
			st.networks = append(st.networks, network)
		}
		if err := d.startStore(st); err != nil {
			return err
		}
	}
	if err := d.await(ctx, "an active store", func() bool { return d.activeLocked() != nil }); err != nil {
		return err
	}
	stores := "mqtt://" + strings.Join(addresses, ",mqtt://")
	dialling, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	if d.prober, err = startProber(dialling, stores); err != nil {
		return err
	}
	fmt.Fprintf(d.out, "Two nodes campaign for a lease with a TTL of %v; the active one counts every %v.\n\n", d.ttl, pair.WriteEvery)
	for _, name := range []string{"node-a", "node-b"} {
		d.nodes[name], err = pair.Start(name, d.heard, nil,
			"--role", roleNode, "--name", name, "--stores", stores, "--ttl", d.ttl.String(), fmt.Sprintf("--verbose=%t", d.verbose))
		if err != nil {
			return err
		}
	}
	return d.await(ctx, "a node that leads", func() bool { return d.leader != "" })
}

// startEtcd starts the members, and returns where they serve the stores.
func (d *director) startEtcd(dir string) (endpoints []string, err error) {
	free, err := freeAddresses(2 * members)
	if err != nil {
		return nil, err
	}
	var cluster []string
	for i := range members {
		cluster = append(cluster, fmt.Sprintf("m%d=http://%s", i, free[i]))
	}
	for i := range members {
		m, err := member.Start(member.Options{
			Name: fmt.Sprintf("m%d", i), Cluster: strings.Join(cluster, ","), Dir: filepath.Join(dir, fmt.Sprint(i)), ClientURL: "http://" + free[members+i],
		})
		if err != nil {
			return nil, err
		}
		d.etcd = append(d.etcd, m)
	}
	return free[members:], nil
}

// freeAddresses returns addresses of this machine on which no process listens now.
func freeAddresses(n int) (free []string, err error) {
	for range n {
		listener, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return nil, err
		}
		defer listener.Close()
		free = append(free, listener.Addr().String())
	}
	return free, nil
}

func (d *director) startStore(st *store) error {
	var endpoints []string
	for _, network := range st.networks {
		endpoints = append(endpoints, "http://"+network.listener.Addr().String())
	}
	p, err := pair.Start(st.name, func(line []byte) { d.heardStore(st, string(line)) }, nil,
		"--role", roleStore, "--name", st.name, "--address", st.address, "--etcd", strings.Join(endpoints, ","),
		"--etcd-ttl", d.etcdTTL.String(), fmt.Sprintf("--verbose=%t", d.verbose))
	st.process = p
	return err
}

// close ends everything. The stores end before etcd.
func (d *director) close() {
	if d.prober != nil {
		d.prober.close()
	}
	for _, p := range d.nodes {
		if p != nil {
			p.Kill()
		}
	}
	for _, st := range d.stores {
		if st.process != nil {
			st.process.Kill()
		}
		for _, network := range st.networks {
			network.close()
		}
	}
	var ending sync.WaitGroup
	for _, m := range d.etcd {
		ending.Go(m.Close)
	}
	ending.Wait()
}

// heardStore notes what a store said.
func (d *director) heardStore(st *store, line string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	st.state = line
	st.said++
	d.sayLocked(st.name, line)
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
			d.sayLocked(e.Node, "late write "+e.Outcome)
		}
	case e.Phase == election.Active.String():
		d.leader, d.token = e.Node, e.Token
		d.changes++
		d.sayLocked(e.Node, fmt.Sprintf("ACTIVE, token %v", e.Token))
	default:
		if e.Node == d.leader && e.Phase == election.Draining.String() {
			d.leader = ""
			d.changes++
		}
		d.sayLocked(e.Node, e.Phase)
	}
}

// activeLocked returns the store that is active, or nil.
func (d *director) activeLocked() *store {
	for _, st := range d.stores {
		if st.state == saysActive {
			return st
		}
	}
	return nil
}

// await waits until done, which is called with the mutex held.
func (d *director) await(ctx context.Context, what string, done func() bool) error {
	limit := d.ttl + d.etcdTTL + patience
	for end := time.Now().Add(limit); ; {
		d.mu.Lock()
		ok := done()
		d.mu.Unlock()
		switch {
		case ok:
			return nil
		case time.Now().After(end):
			return fmt.Errorf("waited %v in vain for %s", limit, what)
		case !sleep.For(ctx, time.Millisecond):
			return errors.New("interrupted")
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
	fmt.Fprintf(d.out, "%7.3f s  %-7s  %s\n", time.Since(d.began).Seconds(), name, what)
}

// harm lets everything work for a while, causes a fault of the active store, and waits until
// another one has answered a write. The node that leads is to keep its lease if keeps.
func (d *director) harm(ctx context.Context, name string, keeps bool, cause func(*store) error) (victim *store, err error) {
	if !sleep.For(ctx, undisturbed) {
		return nil, errors.New("interrupted")
	}
	d.mu.Lock()
	victim = d.activeLocked()
	token, changes := d.token, d.changes
	d.sayLocked("──▶", name+": "+victim.name)
	victim.state = "" // whatever it says from now on is new
	d.mu.Unlock()
	f := &fault{name: name, keeps: keeps}
	d.result.faults = append(d.result.faults, f)
	at := time.Now()
	if err := cause(victim); err != nil {
		return nil, err
	}
	if err := d.await(ctx, "another store", func() bool { return d.activeLocked() != nil }); err != nil {
		return nil, err
	}
	if err := d.await(ctx, "an answer to a write", func() bool { return d.prober.latest().After(at) }); err != nil {
		return nil, err
	}
	f.gap = d.prober.latest().Sub(at)
	d.say("──▶", "no write was answered for %v", f.gap.Round(time.Millisecond))
	if !keeps {
		return victim, nil
	}
	if !sleep.For(ctx, undisturbed) { // long enough for renewals
		return nil, errors.New("interrupted")
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	f.lease = "kept"
	if d.changes != changes || d.token != token {
		f.lease = "LOST"
	}
	d.result.checks.Add("the lease was kept: "+name, f.lease == "kept", "token %v", d.token)
	return victim, nil
}

// standsBy waits until a store says that it stands by.
func (d *director) standsBy(ctx context.Context, st *store) error {
	return d.await(ctx, st.name+" to stand by", func() bool { return st.state == saysStandby })
}

// restart starts a store that has ended.
func (d *director) restart(ctx context.Context, st *store) error {
	<-st.process.Exited()
	if err := d.startStore(st); err != nil {
		return err
	}
	return d.standsBy(ctx, st)
}

func (d *director) killStore(ctx context.Context) error {
	victim, err := d.harm(ctx, "active store killed (SIGKILL)", true, func(st *store) error {
		st.process.Kill()
		return nil
	})
	if err != nil {
		return err
	}
	return d.restart(ctx, victim)
}

// freezeStore stops the active store and wakes it when another answers. It must then answer
// nothing that it had received before.
func (d *director) freezeStore(ctx context.Context) error {
	victim, err := d.harm(ctx, "active store frozen (SIGSTOP)", true, func(st *store) error { return st.process.Freeze() })
	if err != nil {
		return err
	}
	d.say("──▶", "SIGCONT to %s, which goes on where it stopped", victim.name)
	if err := victim.process.Wake(); err != nil {
		return err
	}
	return d.standsBy(ctx, victim)
}

// cutStore cuts the active store off from etcd. Its clients still reach it.
func (d *director) cutStore(ctx context.Context) error {
	cut := func(st *store, cut bool) {
		for _, network := range st.networks {
			network.set(cut)
		}
	}
	victim, err := d.harm(ctx, "active store cut off from etcd", true, func(st *store) error {
		cut(st, true)
		return nil
	})
	if err != nil {
		return err
	}
	d.say("──▶", "the network of %s is mended", victim.name)
	cut(victim, false)
	return d.standsBy(ctx, victim)
}

func (d *director) stopStore(ctx context.Context) error {
	victim, err := d.harm(ctx, "active store stopped (SIGTERM)", true, func(st *store) error { return st.process.Signal(syscall.SIGTERM) })
	if err != nil {
		return err
	}
	return d.restart(ctx, victim)
}

// freezeNodeAndKillStore makes the store that takes over judge a late write by what it loaded.
func (d *director) freezeNodeAndKillStore(ctx context.Context) error {
	d.mu.Lock()
	frozen, late := d.leader, len(d.result.writes.Late)
	d.mu.Unlock()
	victim, err := d.harm(ctx, "leading node frozen, active store killed", false, func(st *store) error {
		if err := d.nodes[frozen].Freeze(); err != nil {
			return err
		}
		st.process.Kill()
		return nil
	})
	if err != nil {
		return err
	}
	if err := d.await(ctx, "the other node to lead", func() bool { return d.leader != "" && d.leader != frozen }); err != nil {
		return err
	}
	d.mu.Lock()
	d.result.faults[len(d.result.faults)-1].lease = "passed to " + d.leader
	d.mu.Unlock()
	if !sleep.For(ctx, undisturbed) {
		return errors.New("interrupted")
	}
	d.say("──▶", "SIGCONT to %s, which goes on where it stopped", frozen)
	if err := d.nodes[frozen].Wake(); err != nil {
		return err
	}
	if err := d.await(ctx, frozen+" to write late", func() bool { return len(d.result.writes.Late) > late }); err != nil {
		return err
	}
	return d.restart(ctx, victim)
}

// finish compares what was said with what the store holds.
func (d *director) finish(ctx context.Context) error {
	if !sleep.For(ctx, undisturbed) {
		return errors.New("interrupted")
	}
	for _, p := range d.nodes {
		p.Kill() // no write comes later
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
	d.prober.mu.Lock()
	defer d.prober.mu.Unlock()
	d.mu.Lock()
	defer d.mu.Unlock()
	r := d.result
	r.writes.History.Saw(entry.Version, last.Token)
	r.writes.CheckStale(&r.checks)
	r.writes.CheckLate(&r.checks, "the late write was refused by a store that took over")
	r.checks.Add("no answered write was lost", len(d.prober.wrong) == 0, "%d writes answered to the prober; wrong: %q", d.prober.answered, d.prober.wrong)
	r.checks.Add("the store holds the last accepted count, or one after it", entry.Version.Compare(r.writes.Highest.Version) >= 0 && last.Count >= r.writes.Highest.Count,
		"count %d by %s", last.Count, last.Node)
	return nil
}
