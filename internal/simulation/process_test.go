package simulation

import (
	"context"
	"errors"
	"fmt"
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

var (
	errCrashed  = errors.New("crashed")
	errLeft     = errors.New("left")
	errResigned = errors.New("resigned")
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

	once   sync.Once
	dead   chan struct{} // closed when the end begins
	work   sync.WaitGroup
	ending sync.WaitGroup

	mu      sync.Mutex
	resigns func() // ends the present tenure; nil: there is none

	succeeded atomic.Bool // another process takes the client id, or has it
}

func (p *process) newClient() *transport.Client {
	client, err := transport.NewClient(&link{p.conn, p}, transport.ClientOptions{Now: p.node.wall})
	if err != nil {
		panic(err)
	}
	return client
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

func (p *process) cut() { p.conn.Cut() }

func (p *process) reconnect() {
	select {
	case <-p.dead:
	default:
		p.conn.Restore()
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

func (p *process) leaseOptions() lease.Options {
	return lease.Options{
		TTL: ttl, Margin: margin, Jitter: jitter, Clock: p.node.clock.now,
		InstantFailover: p.node.sim.instant, EndOnDisconnect: p.node.fragile,
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
		unlink := context.AfterFunc(tenure.Context(), func() { cancel(context.Cause(tenure.Context())) })
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
		TTL: ttl, Lease: leaseOptions, Claim: []string{dataKey}, HoldOff: holdOff, Rank: p.node.rank,
	}
	options.Observer = func(t election.Status) { p.node.sim.tracef("%s: %v", p.name, t) }
	e, err := election.New(p.client, lockKey, options)
	if err != nil {
		panic(err)
	}
	for p.ctx.Err() == nil {
		err := e.Run(p.ctx, func(ctx context.Context, term *election.Term) error {
			p.setResign(func() { e.Resign() })
			defer p.setResign(nil)
			p.node.sim.checker.begin(p, term.Tenure())
			if p.node.happens(0.1) && !p.node.sim.isCalm() {
				return errResigned
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
