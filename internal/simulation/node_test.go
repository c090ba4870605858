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

// clock is the steady clock of one machine. It has its own rate, and counts the time of
// suspends, which does not pass elsewhere.
type clock struct {
	origin time.Time
	offset time.Duration
	rate   float64
	jumped atomic.Int64
	jumps  atomic.Int64 // how often
}

func (c *clock) now() time.Duration {
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
	twoClients bool // writes through a second client
	clock      clock
	wallOffset atomic.Int64

	// How many faults of each kind there are at the moment.
	denied    atomic.Int64 // the store refuses all its requests
	rejected  atomic.Int64 // something in front of the store rejects some of its requests
	unhealthy atomic.Int64 // its health check fails
	blocking  atomic.Int64 // functions of its program block often

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

// writerID is the client id of the second client.
func (n *node) writerID() string { return n.id + "-writer" }

// stepWall makes the node's wall clock differ from true time.
func (n *node) stepWall(by time.Duration) { n.wallOffset.Store(int64(by)) }

// turnUnhealthy makes the health check fail. It lasts for some time.
func (n *node) turnUnhealthy(lasts time.Duration) {
	n.unhealthy.Add(1)
	n.sim.checker.mustNotLead(n.current(), lasts)
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

// suspend stops the machine: no process on it sends anything or gets a reply. Its clock
// shows more than that time when it wakes, as if the suspend had lasted longer.
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

func (n *node) isSuspended() bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.suspended != nil
}

// start starts a process. A process that runs on the machine loses its client id to it.
func (n *node) start() {
	n.mu.Lock()
	old := n.process
	number := len(n.processes) + 1
	n.mu.Unlock()
	p := &process{node: n, number: number, dead: make(chan struct{}), name: fmt.Sprintf("%s%d", n.id, number)}
	p.ctx, p.cancel = context.WithCancelCause(context.Background())
	p.conn = n.connect(n.id)
	p.writerConn = p.conn
	if n.twoClients {
		p.writerConn = n.connect(n.writerID())
	}
	n.mu.Lock()
	p.conn.Silence(n.quiet > 0)
	n.process = p
	n.processes = append(n.processes, p)
	n.mu.Unlock()
	n.sim.tracef("%s: starts", p.name)
	p.client = p.newClient(p.conn)
	p.writer = p.client
	if n.twoClients {
		p.writer = p.newClient(p.writerConn)
	}
	p.work.Go(p.run)
	if old != nil {
		// It may run on for a while without its client id.
		time.AfterFunc(n.draw(30*time.Second), func() { n.leave(old) })
	}
}

func (n *node) connect(id string) *transporttest.Conn {
	conn := n.sim.store.Connect(id)
	conn.SetFault(n.requestFault)
	conn.SetNotificationFault(n.notificationFault)
	return conn
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

var (
	errCrashed   = errors.New("crashed")
	errLeft      = errors.New("left")
	errResigned  = errors.New("resigned")
	errUnhealthy = errors.New("unhealthy")
)

// process is one run of a program on a node. Without a second client the writer is the
// client, and the connections are the same, too.
type process struct {
	node             *node
	number           int
	name             string
	conn, writerConn *transporttest.Conn
	client, writer   *transport.Client
	ctx              context.Context
	cancel           context.CancelCauseFunc

	once   sync.Once
	dead   chan struct{} // closed when the end begins
	work   sync.WaitGroup
	ending sync.WaitGroup

	mu      sync.Mutex
	resigns func()            // ends the present tenure; nil: there is none
	elector *election.Elector // nil if the node uses a Lease

	leads atomic.Bool // the function of the elector runs
}

func (p *process) newClient(conn *transporttest.Conn) *transport.Client {
	client, err := transport.NewClient(&link{conn, p}, transport.ClientOptions{Now: p.node.wall})
	if err != nil {
		panic(err)
	}
	return client
}

// end closes the clients while the program still uses them, as programs do.
func (p *process) end(cause error) {
	p.ending.Go(func() {
		p.cancel(cause)
		err := p.client.Close()
		if p.writer != p.client {
			err = errors.Join(err, p.writer.Close())
		}
		if err != nil {
			p.node.sim.checker.violation("%s: close: %v", p.name, err)
		}
		await.Done(p.work.Wait)
		p.node.sim.tracef("%s: is gone", p.name)
	})
}

func (p *process) cut() {
	p.conn.Cut()
	p.writerConn.Cut()
}

func (p *process) reconnect() {
	select {
	case <-p.dead:
	default:
		p.conn.Restore()
		p.writerConn.Restore()
	}
}

func (p *process) setResign(resign func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.resigns = resign
}

// resign ends the present tenure, if there is one.
func (p *process) resign() {
	p.mu.Lock()
	resign := p.resigns
	p.mu.Unlock()
	if resign != nil {
		resign()
	}
}

// status returns the status of the process's elector, and whether it has one.
func (p *process) status() (status election.Status, elects bool) {
	p.mu.Lock()
	elector := p.elector
	p.mu.Unlock()
	if elector == nil {
		return election.Status{}, false
	}
	return elector.Status(), true
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
		InstantFailover: p.node.sim.instant, EndOnDisconnect: p.node.fragile,
	}
}

// endsWithConnection reports whether the node's tenures end with their connection.
func (n *node) endsWithConnection() bool { return n.sim.instant || n.fragile }

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
		guard := fencing.NewGuard(p.writer, tenure)
		ctx, cancel := context.WithCancelCause(p.ctx)
		unlink := context.AfterFunc(tenure.Context(), func() { cancel(tenure.Err()) })
		var resigns *time.Timer
		if p.node.happens(0.7) {
			resigns = time.AfterFunc(p.node.draw(5*time.Minute), func() {
				if !p.node.sim.isCalm() {
					cancel(errResigned)
				}
			})
		}
		p.setResign(func() { cancel(errResigned) })
		if _, err := guard.Claim(ctx, dataKey); err == nil {
			p.count(ctx, guard)
		} else {
			p.node.sim.tracef("%s: claim: %v", p.name, err) // it does not lead without a claim
		}
		p.setResign(nil)
		cancel(nil)
		unlink()
		if resigns != nil {
			resigns.Stop()
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
		if p.node.unhealthy.Load() > 0 {
			return errUnhealthy
		}
		p.node.block("the health check")
		return nil
	}
	options.Standby = func(ctx context.Context) error {
		sleep.For(ctx, hour)
		p.node.block("the standby function")
		return nil
	}
	options.Observer = func(t election.Transition) {
		p.node.sim.tracef("%s: %v", p.name, t)
		p.node.sim.checker.phase(p, t)
		p.node.block("the observer")
	}
	e, err := election.New(p.client, lockKey, options)
	if err != nil {
		panic(err)
	}
	p.mu.Lock()
	p.elector = e
	p.mu.Unlock()
	for p.ctx.Err() == nil {
		err := e.Run(p.ctx, func(ctx context.Context, term *election.Term) error {
			p.leads.Store(true)
			defer p.leads.Store(false)
			p.setResign(term.Resign)
			defer p.setResign(nil)
			p.node.sim.checker.begin(p, term.Tenure())
			if p.node.happens(0.1) && !p.node.sim.isCalm() {
				return errResigned
			}
			guard := term.Guard()
			if p.node.twoClients {
				guard = fencing.NewGuard(p.writer, term.Tenure())
			}
			p.count(ctx, guard)
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
	for late := 0; ok && (ctx.Err() == nil || late < 20 && p.node.happens(0.8)); {
		if ctx.Err() != nil {
			late++
		}
		number++
		ok = p.write(ctx, guard, number)
		wait := 500*time.Millisecond + p.node.draw(6*time.Second)
		sleep.For(ctx, wait)
	}
	if !p.node.sim.isCalm() && p.node.happens(0.3) {
		sleep.For(p.ctx, p.node.draw(15*time.Second)) // it returns late
		p.write(ctx, guard, number+1)                 // refused if another node counts
	}
}

// read reads the number until it is there.
func (p *process) read(ctx context.Context) (number int, ok bool) {
	for ctx.Err() == nil {
		p.awake()
		attempt, cancel := context.WithTimeout(ctx, 2*time.Second)
		entry, err := p.writer.Get(attempt, dataKey)
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

// write writes one number until the store has confirmed it.
func (p *process) write(ctx context.Context, guard *fencing.Guard, number int) (ok bool) {
	for {
		p.awake()
		// A write goes on if ctx ends.
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

// link is a process's end of a connection. A process on a suspended machine sends nothing and
// gets nothing, also when the timeout of a request has passed.
type link struct {
	*transporttest.Conn
	process *process
}

// RoundTrip implements transport.Conn.
func (l *link) RoundTrip(ctx context.Context, request transport.Request) (transport.Reply, error) {
	l.process.awake()
	sent := l.process.node.sim.checker.sending(l.process, request)
	sent.second = l.Conn != l.process.conn
	reply, err := l.rejectSome(ctx, request)
	l.process.awake()
	l.process.node.sim.checker.answered(l.process, sent, reply, err)
	return reply, err
}

// rejection is how something in front of the store rejects a request.
type rejection struct {
	percent int
	code    int
	applied bool // the store gets the request all the same
	unknown bool // the client does not know whether it does
}

var rejections = []rejection{
	{percent: 30, code: 0x97}, // quota exceeded
	{percent: 20, code: 503, unknown: true},
	{percent: 20, code: 500, applied: true, unknown: true},
}

// rejectSome makes a request, unless a fault rejects it.
func (l *link) rejectSome(ctx context.Context, request transport.Request) (transport.Reply, error) {
	n := l.process.node
	if n.rejected.Load() == 0 {
		return l.Conn.RoundTrip(ctx, request)
	}
	n.mu.Lock()
	at := n.diceLocked("reject " + kindOf(request)).IntN(100)
	n.mu.Unlock()
	for _, r := range rejections {
		if at -= r.percent; at >= 0 {
			continue
		}
		if r.applied {
			if _, err := l.Conn.RoundTrip(ctx, request); err != nil {
				return transport.Reply{}, err
			}
		}
		err := error(&transport.RejectedError{Code: r.code})
		if r.unknown {
			err = fmt.Errorf("%w: %w", transport.ErrOutcomeUnknown, err)
		}
		return transport.Reply{}, err
	}
	return l.Conn.RoundTrip(ctx, request)
}
