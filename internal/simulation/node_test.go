package simulation

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tenurelock/tenure/election"
	"github.com/tenurelock/tenure/fencing"
	"github.com/tenurelock/tenure/internal/await"
	"github.com/tenurelock/tenure/internal/sleep"
	"github.com/tenurelock/tenure/lease"
	"github.com/tenurelock/tenure/transport"
	"github.com/tenurelock/tenure/transport/transporttest"
)

// clock is the steady clock of one machine: at its own rate, and counting the time of a
// suspend that was none to anybody else.
type clock struct {
	origin  time.Time
	offset  time.Duration
	rate    float64
	jumped  atomic.Int64
	jumping atomic.Int64 // how often
}

func (c *clock) now() time.Duration {
	return c.offset + time.Duration(float64(time.Since(c.origin))*c.rate) + time.Duration(c.jumped.Load())
}

// node is one machine: its clocks, its network, and one process at a time that is alive,
// beside those that another took the name from.
type node struct {
	sim        *simulation
	id         string
	seed       uint64
	hasty      bool // ends its tenures when the connection drops
	rank       int  // of its elector
	elects     bool // uses an Elector; otherwise a Lease
	clock      clock
	wallOffset atomic.Int64
	denied     atomic.Int64 // how many faults make the store refuse it everything
	rejected   atomic.Int64 // how many faults reject its requests in front of the store
	ill        atomic.Int64 // how many faults make it unfit to lead

	mu        sync.Mutex
	random    *rand.Rand // for what the node's main goroutine does
	dice      map[string]dice
	weather   weather
	usual     weather       // what it is when no fault makes it worse
	quiet     int           // how many faults keep notifications away
	suspended chan struct{} // closed when the machine wakes; nil while it is awake
	process   *process
	processes []*process // all there were
}

// cut ends the node's connection, which is made again when lasts is over.
func (n *node) cut(lasts time.Duration) {
	process := n.current()
	process.conn.Cut()
	time.AfterFunc(lasts, process.reconnect)
}

// stepWall makes the node's wall clock differ from true time.
func (n *node) stepWall(by time.Duration) { n.wallOffset.Store(int64(by)) }

// fallIll makes the node unfit to lead for some time.
func (n *node) fallIll(lasts time.Duration) {
	n.ill.Add(1)
	n.sim.checker.mustNotLead(n.current(), lasts)
	time.AfterFunc(lasts, func() { n.ill.Add(-1) })
}

func newNode(s *simulation, id string, random *rand.Rand) *node {
	n := &node{sim: s, id: id, seed: random.Uint64(), random: random, dice: make(map[string]dice)}
	n.clock = clock{origin: s.began, offset: time.Duration(random.Int64N(int64(1000 * time.Hour))), rate: 1}
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

func (n *node) setWeather(w weather, lasts time.Duration) {
	n.mu.Lock()
	n.weather = w
	n.mu.Unlock()
	time.AfterFunc(lasts, func() {
		n.mu.Lock()
		defer n.mu.Unlock()
		n.weather = n.usual
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
	n.clock.jumping.Add(1)
	n.clock.jumped.Add(int64(by))
}

// suspend stops the machine: no process on it sends anything, or learns of an answer. Its
// clock shows more than that, as if it had lasted longer.
func (n *node) suspend(lasts, beyond time.Duration) {
	n.mu.Lock()
	if n.suspended != nil {
		n.mu.Unlock()
		return
	}
	wake := make(chan struct{})
	n.suspended = wake
	n.mu.Unlock()
	n.jump(beyond)
	time.AfterFunc(lasts, func() {
		n.mu.Lock()
		n.suspended = nil
		n.mu.Unlock()
		close(wake)
		n.sim.tracef("%s: awake", n.id)
	})
}

// start begins a process. One that is alive on the machine loses its name to it.
func (n *node) start() {
	n.mu.Lock()
	old := n.process
	number := len(n.processes) + 1
	n.mu.Unlock()
	p := &process{node: n, number: number, dead: make(chan struct{}), name: fmt.Sprintf("%s%d", n.id, number)}
	p.ctx, p.cancel = context.WithCancelCause(context.Background())
	p.conn = n.sim.store.Connect(n.id)
	p.conn.SetFault(n.fate)
	p.conn.SetNotificationFault(n.hint)
	n.mu.Lock()
	p.conn.Silence(n.quiet > 0)
	n.process = p
	n.processes = append(n.processes, p)
	n.mu.Unlock()
	n.sim.tracef("%s: starts", p.name)
	client, err := transport.NewClient(&link{p.conn, p}, transport.ClientOptions{Now: n.wall})
	if err != nil {
		panic(err)
	}
	p.client = client
	p.work.Go(p.run)
	if old != nil {
		// It may live on for a while without a name.
		time.AfterFunc(n.draw(30*time.Second), func() { n.leave(old) })
	}
}

// crash ends the process as SIGKILL does: nothing leaves any more, and whatever it
// believed nobody acts on.
func (n *node) crash() {
	p := n.current()
	p.once.Do(func() {
		close(p.dead)
		p.conn.Cut()
		n.sim.checker.forget(p)
		p.end(errCrashed)
	})
}

// leave ends a process in good order.
func (n *node) leave(p *process) {
	p.once.Do(func() {
		close(p.dead)
		p.closing.Store(true)
		p.end(errLeft)
	})
}

// stop ends all that is left on the node, and waits for it.
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

var (
	errCrashed = errors.New("crashed")
	errLeft    = errors.New("left")
	errGaveUp  = errors.New("gave up")
	errIll     = errors.New("ill")
)

// process is one run of a program on a node.
type process struct {
	node   *node
	number int
	name   string
	conn   *transporttest.Conn
	client *transport.Client
	ctx    context.Context
	cancel context.CancelCauseFunc

	once    sync.Once
	dead    chan struct{} // closed when it is on its way out
	closing atomic.Bool
	work    sync.WaitGroup
	ending  sync.WaitGroup

	mu     sync.Mutex
	resign func() // gives up the lease
}

// end closes the client while the program still uses it, as programs do.
func (p *process) end(cause error) {
	p.ending.Go(func() {
		p.cancel(cause)
		if err := p.client.Close(); err != nil {
			p.node.sim.checker.violation("%s: close: %v", p.name, err)
		}
		await.Done(p.work.Wait)
		p.node.sim.tracef("%s: is gone", p.name)
	})
}

func (p *process) reconnect() {
	select {
	case <-p.dead:
	default:
		p.conn.Restore()
	}
}

func (p *process) setResign(resign func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.resign = resign
}

func (p *process) giveUp() {
	p.mu.Lock()
	resign := p.resign
	p.mu.Unlock()
	if resign != nil {
		resign()
	}
}

// awake waits while the machine is suspended.
func (p *process) awake() {
	p.node.mu.Lock()
	suspended := p.node.suspended
	p.node.mu.Unlock()
	if suspended == nil {
		return
	}
	select {
	case <-suspended:
	case <-p.ctx.Done():
	}
}

func (p *process) leaseOptions() lease.Options {
	return lease.Options{
		TTL: ttl, Margin: margin, Jitter: jitter, Clock: p.node.clock.now,
		InstantFailover: p.node.sim.instant, EndOnDisconnect: p.node.hasty,
	}
}

// endsWithConnection reports whether the node's tenures end with their connection.
func (n *node) endsWithConnection() bool { return n.sim.instant || n.hasty }

func isClosed(signal <-chan struct{}) bool {
	select {
	case <-signal:
		return true
	default:
		return false
	}
}

func (p *process) run() {
	if p.node.elects {
		p.elect()
	} else {
		p.hold()
	}
}

// hold acquires and releases the lease, again and again.
func (p *process) hold() {
	l, err := lease.New(p.client, lockKey, p.leaseOptions())
	if err != nil {
		panic(err)
	}
	for p.ctx.Err() == nil {
		tenure, err := p.acquire(l)
		if err != nil {
			p.node.sim.tracef("%s: acquire: %v", p.name, err)
			p.node.sim.checker.failed(p, err)
			if errors.Is(err, transport.ErrClosed) || errors.Is(err, transport.ErrSessionTakenOver) {
				return
			}
			sleep.For(p.ctx, p.node.draw(time.Second))
			continue
		}
		h := p.node.sim.checker.begin(p, tenure)
		p.node.sim.checker.fresh(h)
		guard := fencing.NewGuard(p.client, tenure)
		ctx, cancel := context.WithCancelCause(p.ctx)
		unlink := context.AfterFunc(tenure.Context(), func() { cancel(tenure.Err()) })
		var bored *time.Timer
		if p.node.happens(0.7) {
			bored = time.AfterFunc(p.node.draw(5*time.Minute), func() {
				if !p.node.sim.isCalm() {
					cancel(errGaveUp)
				}
			})
		}
		p.setResign(func() { cancel(errGaveUp) })
		if _, err := guard.Claim(ctx, dataKey); err == nil {
			p.count(ctx, guard)
		} else {
			p.node.sim.tracef("%s: claim: %v", p.name, err)
			// Nobody leads without a claim.
		}
		p.setResign(nil)
		cancel(nil)
		unlink()
		if bored != nil {
			bored.Stop()
		}
		p.release(h, tenure)
		sleep.For(p.ctx, p.node.draw(3*time.Second))
	}
}

// acquire waits for the lease, sometimes not for long.
func (p *process) acquire(l *lease.Lease) (*lease.Tenure, error) {
	ctx, cancel := context.WithCancel(p.ctx)
	defer cancel()
	if !p.node.sim.isCalm() && p.node.happens(0.3) {
		defer time.AfterFunc(p.node.draw(30*time.Second), cancel).Stop()
		if p.node.happens(0.2) {
			return l.TryAcquire(ctx)
		}
	}
	return l.Acquire(ctx)
}

func (p *process) release(h *holding, tenure *lease.Tenure) {
	h.releasing.Store(true)
	ctx, cancel := context.WithTimeout(context.Background(), ttl)
	defer cancel()
	err := tenure.Release(ctx)
	p.node.sim.tracef("%s: released: %v", p.name, err)
	if err == nil {
		h.released.Store(true)
	}
}

// elect leads whenever an Elector says so.
func (p *process) elect() {
	leaseOptions := p.leaseOptions()
	leaseOptions.TTL = 0 // an election has its own
	options := election.Options{
		TTL: ttl, Lease: leaseOptions, Claim: []string{dataKey}, HoldOff: holdOff, Rank: p.node.rank, RankDelay: rankDelay,
	}
	options.Health = func(context.Context) error {
		if p.node.ill.Load() > 0 {
			return errIll
		}
		return nil
	}
	options.Observer = func(t election.Transition) {
		p.node.sim.tracef("%s: %v, %v", p.name, t.Phase, t.Cause)
		p.node.sim.checker.phase(p, t.Phase)
	}
	e, err := election.New(p.client, lockKey, options)
	if err != nil {
		panic(err)
	}
	for p.ctx.Err() == nil {
		err := e.Run(p.ctx, func(ctx context.Context, term *election.Term) error {
			p.setResign(term.Resign)
			defer p.setResign(nil)
			p.node.sim.checker.begin(p, term.Tenure())
			if p.node.happens(0.1) && !p.node.sim.isCalm() {
				return errGaveUp
			}
			p.count(ctx, term.Guard())
			return nil
		})
		p.node.sim.tracef("%s: campaign ended: %v", p.name, err)
		p.node.sim.checker.campaignEnded(p, err)
		if errors.Is(err, transport.ErrClosed) || errors.Is(err, transport.ErrSessionTakenOver) {
			return
		}
		sleep.For(p.ctx, p.node.draw(time.Second))
	}
}

// count is the work of a leader: it reads a number, which it has claimed, and counts on,
// until ctx ends. Sometimes it is slow to notice that.
func (p *process) count(ctx context.Context, guard *fencing.Guard) {
	number, ok := p.read(ctx)
	for ok && (ctx.Err() == nil || p.node.happens(0.8)) {
		number++
		ok = p.write(ctx, guard, number)
		wait := 500*time.Millisecond + p.node.draw(6*time.Second)
		sleep.For(ctx, wait)
	}
	if !p.node.sim.isCalm() && p.node.happens(0.3) {
		sleep.For(p.ctx, p.node.draw(15*time.Second)) // winds up
		p.write(ctx, guard, number+1)                 // what nobody may see any more once another counts
	}
}

// read reads the number until it is there.
func (p *process) read(ctx context.Context) (number int, ok bool) {
	for ctx.Err() == nil {
		p.awake()
		attempt, cancel := context.WithTimeout(ctx, 2*time.Second)
		entry, err := p.client.Get(attempt, dataKey)
		cancel()
		if err == nil {
			text, _, _ := strings.Cut(string(entry.Value), " ")
			number, _ = strconv.Atoi(text) // the empty value counts as zero
			return number, true
		}
		sleep.For(ctx, p.node.draw(200*time.Millisecond))
	}
	return 0, false
}

// write writes one number until it is known to be there.
func (p *process) write(ctx context.Context, guard *fencing.Guard, number int) (ok bool) {
	for {
		p.awake()
		// A write that was begun is finished even if ctx ends.
		attempt, cancel := context.WithTimeout(context.WithoutCancel(ctx), 2*time.Second)
		_, err := guard.Set(attempt, dataKey, fmt.Appendf(nil, "%d %s", number, p.name))
		cancel()
		switch {
		case err == nil:
			return true
		case !errors.Is(err, transport.ErrOutcomeUnknown) && !errors.Is(err, transport.ErrNotSent):
			p.node.sim.tracef("%s: write %d: %v", p.name, number, err)
			return false
		case ctx.Err() != nil:
			return false
		}
		sleep.For(ctx, p.node.draw(200*time.Millisecond))
	}
}

// link is a process's end of the connection. A process that stands still sends nothing and
// learns nothing, whatever has become of the time it allowed for that.
type link struct {
	*transporttest.Conn
	process *process
}

// RoundTrip implements transport.Conn.
func (l *link) RoundTrip(ctx context.Context, request transport.Request) (transport.Reply, error) {
	l.process.awake()
	sent := l.process.node.sim.checker.sending(l.process, request)
	reply, err := l.reject(ctx, request)
	l.process.awake()
	l.process.node.sim.checker.answered(l.process, sent, reply, err)
	return reply, err
}

// reject makes a request, unless something in front of the store rejects it: for good, or
// for a reason that leaves open whether it was applied.
func (l *link) reject(ctx context.Context, request transport.Request) (transport.Reply, error) {
	n := l.process.node
	if n.rejected.Load() == 0 {
		return l.Conn.RoundTrip(ctx, request)
	}
	n.mu.Lock()
	d := n.diceLocked("reject " + kindOf(request))
	chance := d.Float64()
	n.mu.Unlock()
	switch {
	case chance < 0.3: // over quota
		return transport.Reply{}, &transport.RejectedError{Code: 0x97}
	case chance < 0.5:
		return transport.Reply{}, fmt.Errorf("%w: %w", transport.ErrOutcomeUnknown, &transport.RejectedError{Code: 503})
	case chance < 0.7:
		if _, err := l.Conn.RoundTrip(ctx, request); err != nil {
			return transport.Reply{}, err
		}
		return transport.Reply{}, fmt.Errorf("%w: %w", transport.ErrOutcomeUnknown, &transport.RejectedError{Code: 500})
	}
	return l.Conn.RoundTrip(ctx, request)
}
