package simulation

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tenurelock/tenure/internal/await"
)

// clock is the steady clock of one machine. It has its own rate, and counts the time of
// suspends, of which a part does not pass elsewhere.
type clock struct {
	origin time.Time
	offset time.Duration
	rate   float64
	jumped atomic.Int64
	jumps  atomic.Int64 // how often
	// stops holds what it shows while the machine is suspended, since no timer fires then. Those of a bubble do.
	stops atomic.Pointer[time.Duration]
}

func (c *clock) now() time.Duration {
	if stopped := c.stops.Load(); stopped != nil {
		return *stopped
	}
	return c.offset + time.Duration(float64(time.Since(c.origin))*c.rate) + time.Duration(c.jumped.Load())
}

// node is one machine: its clocks, its network, and one process at a time, beside processes
// that lost their client id to a later one.
type node struct {
	sim        *simulation
	id         string
	seed       uint64
	fragile    bool // its tenures end when the connection drops
	rank       int  // of its elector
	elects     bool // uses an Elector; otherwise a Lease
	clock      clock
	wallOffset atomic.Int64

	denied atomic.Int64 // how many faults make the store refuses all its requests

	mu        sync.Mutex
	random    *rand.Rand // for what the node's main goroutine does
	dice      map[string]dice
	network   network
	usual     network       // when no fault makes it worse
	quiet     int           // how many faults keep notifications away
	suspended chan struct{} // closed when the machine wakes; nil while it is awake
	process   *process
	processes []*process // all there were
}

// stepWall makes the node's wall clock differ from true time.
func (n *node) stepWall(by time.Duration) {
	n.wallOffset.Store(int64(by))
}

func newNode(s *simulation, id string, random *rand.Rand) *node {
	n := &node{sim: s, id: id, seed: random.Uint64(), random: random, dice: make(map[string]dice)}
	n.clock.origin, n.clock.offset, n.clock.rate = s.began, time.Duration(random.Int64N(int64(1000*time.Hour))), 1
	n.wallOffset.Store(random.Int64N(int64(40*time.Second)) - int64(20*time.Second))
	return n
}

// wall is the time of day on the machine.
func (n *node) wall() time.Time { return time.Now().Add(time.Duration(n.wallOffset.Load())) }

// draw returns a duration of at least zero and less than limit.
func (n *node) draw(limit time.Duration) time.Duration {
	n.mu.Lock()
	defer n.mu.Unlock()
	return time.Duration(n.random.Int64N(int64(limit)))
}

func (n *node) happens(p float64) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.random.Float64() < p
}

func (n *node) current() *process {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.process
}

func (n *node) setNetwork(net network, lasts time.Duration) {
	n.mu.Lock()
	n.network = net
	n.mu.Unlock()
	time.AfterFunc(lasts, func() {
		n.mu.Lock()
		defer n.mu.Unlock()
		n.network = n.usual
	})
}

func (n *node) silence(on bool) {
	n.mu.Lock()
	if on {
		n.quiet++
	} else {
		n.quiet = max(n.quiet-1, 0)
	}
	quiet, process := n.quiet > 0, n.process
	n.mu.Unlock()
	process.conn.Silence(quiet)
}

func (n *node) jump(by time.Duration) {
	n.clock.jumps.Add(1)
	n.clock.jumped.Add(int64(by))
}

// suspend lets the machine sleep. What is under way goes on when it wakes: requests whose bounds are past by then,
// writes of a holder that has checked its tenure before, and replies. Its clock has counted the time, and beyond more.
func (n *node) suspend(lasts, beyond time.Duration) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.suspended != nil {
		return
	}
	wake, now := make(chan struct{}), n.clock.now()
	n.suspended = wake
	n.clock.stops.Store(&now)
	time.AfterFunc(lasts, func() {
		n.mu.Lock()
		defer n.mu.Unlock()
		n.jump(beyond)
		n.clock.stops.Store(nil)
		n.suspended = nil
		close(wake)
		n.sim.tracef("%s: awake", n.id)
	})
}

// start starts a process. A process that runs on the machine loses its client id to it.
func (n *node) start() {
	n.mu.Lock()
	old := n.process
	number := len(n.processes) + 1
	n.mu.Unlock()
	p := &process{node: n, number: number, dead: make(chan struct{}), name: fmt.Sprintf("%s%d", n.id, number)}
	p.ctx, p.cancel = context.WithCancelCause(context.Background())
	if old != nil {
		old.succeeded.Store(true) // before the old one can notice
	}
	p.conn = n.sim.store.Connect(n.id)
	p.conn.SetFault(n.requestFault)
	p.conn.SetNotificationFault(n.notificationFault)
	n.mu.Lock()
	p.conn.Silence(n.quiet > 0)
	n.process = p
	n.processes = append(n.processes, p)
	n.mu.Unlock()
	n.sim.tracef("%s: starts", p.name)
	p.client = p.newClient()
	p.work.Go(p.run)
	if old != nil {
		// It may run on for a while without its client id.
		time.AfterFunc(n.draw(30*time.Second), func() { n.leave(old) })
	}
}

// crash ends the process as SIGKILL does: nothing leaves any more, and nothing acts on
// what the process believed.
func (n *node) crash() {
	p := n.current()
	p.once.Do(func() {
		close(p.dead)
		p.cut()
		n.sim.checker.forget(p)
		p.end(errCrashed)
	})
}

// leave ends a process in good order.
func (n *node) leave(p *process) {
	p.once.Do(func() {
		close(p.dead)
		p.end(errLeft)
	})
}

// stop ends all processes of the node, and waits for that.
func (n *node) stop() {
	n.leave(n.current())
	n.mu.Lock()
	processes := n.processes
	n.mu.Unlock()
	for _, p := range processes {
		n.leave(p)
		await.Done(p.ending.Wait)
	}
}

// endsWithConnection reports whether the node's tenures end with their connection.
func (n *node) endsWithConnection() bool { return n.sim.instant || n.fragile }
