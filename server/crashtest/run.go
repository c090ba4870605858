package crashtest

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"sync"
	"time"

	"github.com/tenurelock/tenure/internal/failpoint"
	"github.com/tenurelock/tenure/internal/sleep"
	"github.com/tenurelock/tenure/transport"
)

// Life says how one life of a store ends.
type Life struct {
	// Point is where the store kills itself; empty: nowhere, and Kill ends its life.
	Point failpoint.Point
	// Pass is at which pass of the point; 1 is the first.
	Pass int
	// Pause is how long the store waits at the point before it kills itself. Its other
	// goroutines go on meanwhile, so what left too early has time to arrive.
	Pause time.Duration
	// Slow is how long each commit takes in addition, at most.
	Slow time.Duration
	// Clock is by how much the system's clock of the store is ahead of the clients' clocks; less
	// than zero: behind.
	Clock time.Duration
}

// A Store is what Run crashes. Start, Died and Kill are called by one goroutine, Dial by several.
type Store interface {
	// Start starts the store on the data of its former lives, and returns when clients can
	// reach it. If it kills itself before that, the error is ErrDied.
	Start(ctx context.Context, life Life) error
	// Died returns a channel that is closed when the present life is over.
	Died() <-chan struct{}
	// Kill ends the present life without a warning, if it is not over, and returns when the
	// store can do nothing any more.
	Kill() error
	// Dial returns a client that connects again by itself in each life, and DialRaw opens a connection to
	// the present one. The caller closes them.
	Dial(ctx context.Context, clientID string, options transport.ClientOptions) (*transport.Client, error)
	DialRaw(ctx context.Context) (net.Conn, error)
	// Points returns the points at which the store can kill itself.
	Points() []failpoint.Point
}

// A Former is a Store of several processes, in which one that was frozen may go on after another
// one took over. It must not answer then.
type Former interface {
	// Former leads to the process that was active before the present one and was frozen.
	Former() *Target
}

// ErrDied is the error of Store.Start when the life was over before clients could reach the
// store.
var ErrDied = errors.New("the store killed itself while it started")

// Options configures Run.
type Options struct {
	// Cycles is how often the store is killed.
	Cycles int
	// Seed makes the choices of the run, but not the order in which clients are served.
	Seed uint64
	// Strict says that the store is strict: see statestore.Options.
	Strict bool
	// TTL is the lifetime of the leases; default 2 s. It should be longer than the store takes
	// to start.
	TTL time.Duration
}

const (
	startTimeout   = time.Minute
	requestTimeout = 2 * time.Second

	// lifetime is about how long the store lives in a cycle.
	lifetime = time.Second
	// randomly is how many clients do random operations, and contenders how many contend for each lease.
	randomly   = 6
	contests   = 2
	contenders = 3
	// skew is how far the clock of one client is ahead of the others.
	skew = 40 * time.Second
	// patience bounds the check of one history. A history without a verdict is a violation.
	patience = 30 * time.Second
	// A life that no failpoint ends lasts until so many requests were answered, or so long.
	requestsInLife = 200
	longestLife    = 20 * time.Second
)

// Run kills the store again and again while clients use it, and checks what they see. It returns
// after the first violation, and when ctx ends. The error says why the run itself failed;
// violations are in the report.
func Run(ctx context.Context, store Store, options Options) (*Report, error) {
	options.TTL = cmp.Or(options.TTL, 2*time.Second)
	r := newRecorder()
	h := &harness{
		options: options, store: store, recorder: r,
		random:    rand.New(rand.NewPCG(options.Seed, 1)),
		registers: &registers{recorder: r, strict: options.Strict},
	}
	for i := range contests {
		h.contests = append(h.contests, &contest{recorder: r, name: fmt.Sprintf("lease/%d", i), ttl: options.TTL})
	}
	for i := range 2 {
		h.redeliveries = append(h.redeliveries,
			&redeliveries{recorder: r, clientID: fmt.Sprintf("again-%d", i), dial: store.DialRaw})
	}
	err := h.run(ctx)
	r.report.Cycles, r.report.Took = h.cycles, r.now()
	return &r.report, err
}

type harness struct {
	options  Options
	store    Store
	recorder *recorder
	random   *rand.Rand // of run alone
	cycles   int

	registers    *registers
	contests     []*contest
	redeliveries []*redeliveries

	sessions []*session
	audit    *session // of them; it only reads and watches
	tasks    sync.WaitGroup
}

func (h *harness) run(ctx context.Context) (err error) {
	if err := h.start(ctx, Life{}); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, h.store.Kill()) }()
	work, stop := context.WithCancel(ctx)
	defer h.close()
	defer stop()
	if err := h.dial(ctx); err != nil {
		return err
	}
	h.work(work)
	for h.cycles < h.options.Cycles && ctx.Err() == nil {
		if err := h.cycle(work); err != nil {
			return err
		}
		h.cycles++
		select {
		case <-h.recorder.broken:
			return nil
		default:
		}
	}
	return context.Cause(ctx)
}

// close stops all clients, and waits for the checks.
func (h *harness) close() {
	for _, s := range h.sessions {
		_ = s.Close() // ends its requests
	}
	h.tasks.Wait()
	h.registers.retire(0)
	h.registers.checks.Wait()
}

// dial makes the clients.
func (h *harness) dial(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	for i := range randomly + contenders + 1 {
		options := transport.ClientOptions{RequestTimeout: requestTimeout}
		if i == 0 {
			options.Now = func() time.Time { return time.Now().Add(skew) }
		}
		client, err := h.store.Dial(ctx, fmt.Sprintf("client-%d", i), options)
		if err != nil {
			return err
		}
		h.sessions = append(h.sessions, &session{Client: client, recorder: h.recorder, number: i})
	}
	h.audit = h.sessions[len(h.sessions)-1]
	return nil
}

// do runs a task with random numbers of its own.
func (h *harness) do(task func(*rand.Rand)) {
	random := rand.New(rand.NewPCG(h.random.Uint64(), h.random.Uint64()))
	h.tasks.Go(func() { task(random) })
}

// work makes the clients use the store until ctx ends.
func (h *harness) work(ctx context.Context) {
	h.rotate(ctx)
	for i := range randomly {
		h.do(func(random *rand.Rand) { h.registers.use(ctx, h.sessions[i], random) })
	}
	for _, c := range h.contests {
		for i := range contenders {
			h.do(func(random *rand.Rand) { c.contend(ctx, h.sessions[randomly+i], random) })
		}
	}
	if store, ok := h.store.(Former); ok {
		h.do(func(random *rand.Rand) { h.visit(ctx, store.Former(), random) })
	}
	for _, d := range h.redeliveries {
		h.do(func(random *rand.Rand) { d.deliver(ctx, h.audit, random) })
	}
}

// visit asks a process that was deposed, again and again until ctx ends.
func (h *harness) visit(ctx context.Context, former *Target, random *rand.Rand) {
	for ctx.Err() == nil {
		dialling, cancel := context.WithTimeout(ctx, time.Second)
		client, err := former.Dial(dialling, "visitor", transport.ClientOptions{RequestTimeout: 200 * time.Millisecond})
		cancel()
		if err == nil {
			visitor := &session{Client: client, recorder: h.recorder, number: len(h.sessions)}
			for range 4 {
				h.registers.visit(ctx, visitor, random)
			}
			_ = client.Close()
		}
		sleep.For(ctx, 10*time.Millisecond)
	}
}

// rotate brings new registers.
func (h *harness) rotate(ctx context.Context) {
	of := h.registers.rotate()
	h.tasks.Go(func() { h.registers.watch(ctx, h.audit, of) })
}

// start starts the store, again if it kills itself meanwhile.
func (h *harness) start(ctx context.Context, life Life) error {
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	err := h.store.Start(ctx, life)
	if errors.Is(err, ErrDied) && life.Point != "" {
		h.recorder.count("killed "+string(life.Point), 1)
		err = h.store.Start(ctx, Life{})
	}
	if err != nil && ctx.Err() == nil && h.cycles > 0 {
		h.recorder.violated("the store does not start again: %v", err)
	}
	if err != nil {
		return fmt.Errorf("crashtest: start the store: %w", err)
	}
	return nil
}

// cycle kills the store, and starts it again.
func (h *harness) cycle(ctx context.Context) error {
	if err := h.store.Kill(); err != nil {
		return err
	}
	restart := Restart{Dead: h.recorder.now()}
	if store, ok := h.store.(interface{ DeadFor() time.Duration }); ok { // it can end by itself, and go on elsewhere
		restart.Dead -= store.DeadFor()
	}
	life := h.choose()
	if err := h.start(ctx, life); err != nil {
		return err
	}
	restart.Ready = h.recorder.now()
	h.recorder.restarted(restart)
	h.rotate(ctx)
	least := restart.Ready + lifetime/5 + time.Duration(h.random.Int64N(int64(lifetime)))
	if life.Point != "" {
		least = restart.Ready + 2*lifetime
	}
	enough := h.recorder.count(answered, 0) + requestsInLife
	look := time.NewTicker(lifetime / 50)
	defer look.Stop()
	for now := restart.Ready; now < least ||
		now < restart.Ready+longestLife && h.recorder.count(answered, 0) < enough; now = h.recorder.now() {
		select {
		case <-ctx.Done():
			return nil
		case <-h.store.Died():
			h.recorder.count("killed "+cmp.Or(string(life.Point), "by itself"), 1)
			return nil
		case <-look.C:
		}
	}
	h.recorder.count("killed at any time", 1)
	return nil
}

// choose returns how the next life ends.
func (h *harness) choose() Life {
	points := h.store.Points()
	n := h.random.IntN(3*len(points)/2 + 1)
	life := Life{Pause: time.Duration(h.random.IntN(10)) * time.Millisecond}
	if h.random.IntN(3) == 0 { // else it is right again
		life.Clock = clockErrors[h.random.IntN(len(clockErrors))]
		h.recorder.count(wrongClocks, 1)
	}
	if h.random.IntN(3) == 0 {
		life.Slow = time.Duration(1+h.random.IntN(20)) * time.Millisecond
	}
	if n >= len(points) {
		return life
	}
	life.Point, life.Pass = points[n], 1+h.random.IntN(80) // or the life ends without it
	return life
}

// clockErrors are by how much the clock of a store may be wrong when it starts.
var clockErrors = []time.Duration{-time.Hour, -10 * time.Second, -time.Second, time.Second, 10 * time.Second, time.Hour}
