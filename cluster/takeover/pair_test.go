//go:build unix

package takeover_test

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net"
	"os"
	"sync"
	"time"

	"github.com/tenurelock/tenure/cluster"
	"github.com/tenurelock/tenure/cluster/member"
	"github.com/tenurelock/tenure/internal/await"
	"github.com/tenurelock/tenure/internal/failpoint"
	"github.com/tenurelock/tenure/internal/sleep"
	"github.com/tenurelock/tenure/server/crashtest"
	"github.com/tenurelock/tenure/server/standby"
)

// serve is a child: a gateway of the pair. It stands by and serves, as tenure-cluster does.
func serve(ctx context.Context, task crashtest.Task) error {
	var options member.Options
	if err := json.Unmarshal([]byte(task.Arguments["member"]), &options); err != nil {
		return err
	}
	logger := slog.New(slog.NewTextHandler(os.Stderr, nil))
	options.Logger = logger
	m, err := member.Start(options)
	if err != nil {
		return err
	}
	defer m.Close()
	socket, err := standby.Listen(task.Arguments["listen"])
	if err != nil {
		return err
	}
	candidate, err := cluster.Open(ctx, m.Configure(cluster.Options{Address: socket.Addr().String(), Logger: logger}))
	if err != nil {
		return errors.Join(err, socket.Close())
	}
	defer candidate.Close()
	replica := &standby.Replica{
		Listener: socket,
		Campaign: func(ctx context.Context) (standby.Journal, error) {
			task.Announce("")
			journal, err := candidate.Campaign(ctx)
			if err != nil {
				return nil, err // not a nil *Journal in an interface
			}
			return journal, nil
		},
		Open: func(ctx context.Context, journal standby.Journal, socket net.Listener) (standby.Store, error) {
			return crashtest.Open(ctx, task, journal, socket)
		},
		StandByAfter: func(err error) bool {
			return errors.Is(err, cluster.ErrDeposed) || errors.Is(err, cluster.ErrDeadlinePassed)
		},
	}
	return replica.Run(ctx)
}

// gateway is a machine with a member of etcd and a store, in a child.
type gateway struct {
	name   string
	listen string // the address of its store; port 0: any port
	member member.Options

	// Guarded by pair.mu.
	child   *crashtest.Child
	said    bool      // whether the child has said anything
	address string    // of its store; empty: it stands by
	serves  time.Time // when it began to serve last
}

// pair is a store on two gateways and a witness. Kill harms the active one in one way.
type pair struct {
	crashtest.Target
	way      way
	network  *network
	gateways [2]*gateway
	random   *rand.Rand
	ctx      context.Context // ends with the test
	life     crashtest.Life
	heal     func() error // undoes what was done to the victim
	former   crashtest.Target
	deaths   map[string]int // how often the active one ended in which way
	tasks    sync.WaitGroup // that listen to children
	heals    sync.WaitGroup

	mu     sync.Mutex
	active *gateway
	lost   time.Time     // when it was lost by itself, since Kill; zero: it was not
	victim *gateway      // until it is healed
	over   chan struct{} // closed when the active one no longer is
	faults []error       // of what runs beside
}

const (
	awakes   = 300 * time.Millisecond // at the latest, after another took over
	ends     = 20 * time.Second       // in which a process ends, or stands by
	startsIn = 60 * time.Second
)

// Start implements crashtest.Store: it waits until one of the gateways is active.
func (p *pair) Start(_ context.Context, life crashtest.Life) error {
	await.Done(p.heals.Wait)
	p.life = life
	for _, g := range p.gateways {
		switch {
		case g == p.victim:
		case g.child == nil || isDead(g.child):
			if err := p.launch(g); err != nil {
				return err
			}
		default:
			if err := g.child.Arm(life); err != nil {
				return err
			}
		}
	}
	var dead *gateway
	if !p.awaits(startsIn, func() bool {
		for _, g := range p.gateways {
			if p.active == nil && g != p.victim && isDead(g.child) {
				dead = g
			}
		}
		return p.active != nil || dead != nil
	}) {
		err := errors.New("no gateway became active")
		for _, g := range p.gateways {
			_ = g.child.Kill()
			err = fmt.Errorf("%w\n%s:\n%s", err, g.name, g.child.Output())
		}
		return err
	}
	if p.victim != nil {
		p.heals.Go(p.healVictim)
	}
	p.mu.Lock()
	if p.active != nil {
		p.SetAddress(p.active.address)
	}
	p.mu.Unlock()
	if dead != nil {
		return cmp.Or(dead.child.Kill(), crashtest.ErrDied)
	}
	return nil
}

func (p *pair) launch(g *gateway) error {
	encoded, err := json.Marshal(g.member)
	if err != nil {
		return err
	}
	task := crashtest.Task{Life: p.life, Arguments: map[string]string{"member": string(encoded), "listen": g.listen}}
	child, err := crashtest.Launch(task, func(program string) []string { return p.network.Command(g.name, program) })
	if err != nil {
		return err
	}
	p.mu.Lock()
	g.child, g.said, g.address = child, false, ""
	p.mu.Unlock()
	p.tasks.Go(func() {
		for {
			select {
			case <-p.ctx.Done():
				return
			case address := <-child.Ready():
				p.heard(g, child, address)
			case <-child.Died():
				p.heard(g, child, "")
				return
			}
		}
	})
	return nil
}

// heard notes that a gateway serves at an address, or no longer.
func (p *pair) heard(g *gateway, child *crashtest.Child, address string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if g.child != child {
		return
	}
	g.said = true
	if g.address = address; address != "" {
		g.serves = time.Now()
	}
	switch {
	case g == p.victim, address == "" && g != p.active:
		return
	case p.active != nil: // Run must know before clients meet the next one
		close(p.over)
		p.lost = time.Now()
		p.SetAddress("")
	}
	p.active = nil
	if address != "" {
		p.active, p.over = g, make(chan struct{})
	}
}

func isDead(child *crashtest.Child) bool {
	select {
	case <-child.Died():
		return true
	default:
		return false
	}
}

// DeadFor returns for how long the active one was gone already when Kill was called.
func (p *pair) DeadFor() (d time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.lost.IsZero() {
		d = time.Since(p.lost)
	}
	p.lost = time.Time{}
	return d
}

// Died implements crashtest.Store.
func (p *pair) Died() <-chan struct{} {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.over
}

// Kill implements crashtest.Store.
func (p *pair) Kill() error {
	await.Done(p.heals.Wait) // one gateway is harmed at a time
	p.mu.Lock()
	g := p.active
	for _, one := range p.gateways {
		if one.child != nil && isDead(one.child) {
			g = one
		}
	}
	p.victim = g // what it says now comes from before
	if p.active == g {
		p.active = nil
	}
	p.mu.Unlock()
	how, err := "lost its standing", error(nil)
	switch {
	case g == nil:
	case isDead(g.child):
		how, p.heal, err = "killed itself at a step", func() error { return p.launch(g) }, g.child.Kill() // or ended in another way
	default:
		if p.way.lives {
			p.former.SetAddress(p.Address())
		}
		how, p.heal, err = p.way.harm(p, g)
	}
	p.deaths[how]++
	return err
}

// healVictim undoes what was done to the victim, a while after another one took over. It must
// notice that it was deposed.
func (p *pair) healVictim() {
	time.Sleep(rand.N(awakes))
	p.mu.Lock()
	g := p.victim
	p.victim = nil
	p.mu.Unlock()
	at := time.Now()
	if err := p.heal(); err != nil {
		p.failed(err)
		return
	}
	if !p.awaits(ends, func() bool { return g.said && (g.address == "" || g.serves.After(at)) }) {
		p.failed(errors.Join(fmt.Errorf("gateway %s neither stands by nor serves again", g.name), g.child.Kill(), p.launch(g)))
	}
}

// awaits waits until done, which is called with the mutex held, and reports whether that came.
func (p *pair) awaits(limit time.Duration, done func() bool) bool {
	for end := time.Now().Add(limit); ; sleep.For(context.Background(), time.Millisecond) {
		p.mu.Lock()
		ok := done()
		p.mu.Unlock()
		if ok || time.Now().After(end) {
			return ok
		}
	}
}

func (p *pair) failed(err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.faults = append(p.faults, err)
}

// close kills all processes, and returns what went wrong beside.
func (p *pair) close() error {
	await.Done(p.heals.Wait)
	for _, g := range p.gateways {
		if g.child != nil {
			_ = g.child.Kill()
		}
	}
	await.Done(p.tasks.Wait)
	return errors.Join(p.faults...)
}

// Former implements crashtest.Former.
func (p *pair) Former() *crashtest.Target { return &p.former }

// Points implements crashtest.Store.
func (p *pair) Points() []failpoint.Point {
	if p.way.name != killed.name {
		return nil
	}
	return []failpoint.Point{failpoint.DuringLoad, failpoint.AfterApply, failpoint.BeforeCommit, failpoint.AfterCommit,
		failpoint.BeforeNotification, failpoint.BeforeReply}
}
