package crashtest

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"math/rand/v2"
	"net"
	"sync"
	"sync/atomic"
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
	// Dial returns a client that connects again by itself in each life. The caller closes it.
	Dial(ctx context.Context, clientID string, options transport.ClientOptions) (*transport.Client, error)
	// Points returns the points at which the store can kill itself.
	Points() []failpoint.Point
}

// A RawDialer is a Store over MQTT, to which a client can deliver requests again. Run tests that
// only with such a store.
type RawDialer interface {
	// DialRaw opens a connection to the present life of the store. The caller closes it.
	DialRaw(ctx context.Context) (net.Conn, error)
}

// A Partitioner is a Store between which and its clients the network can fail.
type Partitioner interface {
	// Partition keeps what is sent from passing in the ways that are chosen, for the clients that
	// hit chooses, until heal is called. Then it passes, late. It is called by one goroutine.
	Partition(toStore, toClients bool, hit func(clientID string) bool) (heal func())
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

// Options configures Run. The zero value is ready for use.
type Options struct {
	// Cycles is how often the store is killed; default 10.
	Cycles int
	// Seed makes the choices of the run, but not the order in which clients are served.
	Seed uint64
	// Strict says that the store is strict: see statestore.Options.
	Strict bool
	// TTL is the lifetime of the leases; default 2 s. It should be longer than the store takes
	// to start.
	TTL time.Duration
	// Life is about how long the store lives in a cycle; default 1 s.
	Life time.Duration
	// Clients is how many clients do random operations; default 6. There are eight others.
	Clients int
	// Patience bounds the check of one history; default 30 s. A history without a verdict is a
	// violation.
	Patience time.Duration
	// Skew is how far the clock of one client is ahead of the others; default 40 s.
	Skew time.Duration
	// Progress, if not nil, is called after each cycle.
	Progress func(cycle int, report *Report)
}

func (o *Options) complete() {
	o.Cycles = cmp.Or(o.Cycles, 10)
	o.TTL = cmp.Or(o.TTL, 2*time.Second)
	o.Life = cmp.Or(o.Life, time.Second)
	o.Clients = cmp.Or(o.Clients, 6)
	o.Patience = cmp.Or(o.Patience, 30*time.Second)
	o.Skew = cmp.Or(o.Skew, 40*time.Second)
}

const (
	startTimeout   = time.Minute
	auditTimeout   = 20 * time.Second
	requestTimeout = 2 * time.Second

	counterKeys = 4
	contests    = 2
	contenders  = 3
	// A life that no failpoint ends lasts until so many requests were answered, or so long.
	requestsInLife = 200
	longestLife    = 20 * time.Second
	// auditedGone is how many keys that were seen gone are read after each restart.
	auditedGone = 16
)

// Run kills the store again and again while clients use it, and checks what they see. It returns
// after the first violation, and when ctx ends. The error says why the run itself failed;
// violations are in the report.
func Run(ctx context.Context, store Store, options Options) (*Report, error) {
	options.complete()
	h := &harness{
		options:  options,
		store:    store,
		recorder: newRecorder(),
		random:   rand.New(rand.NewPCG(options.Seed, 1)),
		report:   Report{Deaths: make(map[string]int), began: time.Now()},
	}
	h.registers = newRegisters(h.recorder, options.Strict, options.Patience)
	h.counters = newCounters(h.recorder, counterKeys)
	h.gone = &goneKeys{recorder: h.recorder}
	h.renewals = &renewals{recorder: h.recorder, ttl: 2 * options.TTL}
	for i := range contests {
		h.contests = append(h.contests, newContest(h.recorder, i, options.TTL))
	}
	if raw, ok := store.(RawDialer); ok {
		for i := range 2 {
			h.redeliveries = append(h.redeliveries, newRedeliveries(h.recorder, i, raw.DialRaw))
		}
	}
	err := h.run(ctx)
	h.summarize()
	return &h.report, err
}

type harness struct {
	options  Options
	store    Store
	recorder *recorder
	random   *rand.Rand // of run alone
	report   Report

	registers    *registers
	counters     *counters
	gone         *goneKeys
	renewals     *renewals
	contests     []*contest
	redeliveries []*redeliveries // none if the store has no RawDialer

	visited    atomic.Int64 // requests to a process that was deposed
	partitions atomic.Int64

	audit    *session
	sessions []*session
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
	for h.report.Cycles < h.options.Cycles && ctx.Err() == nil {
		if err := h.cycle(work); err != nil {
			return err
		}
		h.report.Cycles++
		if h.options.Progress != nil {
			h.summarize()
			h.options.Progress(h.report.Cycles, &h.report)
		}
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
	h.registers.close()
}

// dial makes the clients.
func (h *harness) dial(ctx context.Context) error {
	for i := range h.options.Clients + 8 {
		options := transport.ClientOptions{RequestTimeout: requestTimeout}
		if i == 0 {
			options.Now = func() time.Time { return time.Now().Add(h.options.Skew) }
		}
		s, err := h.session(ctx, i, options)
		if err != nil {
			return err
		}
		h.sessions = append(h.sessions, s)
	}
	h.audit = h.sessions[len(h.sessions)-1]
	return nil
}

func (h *harness) session(ctx context.Context, number int, options transport.ClientOptions) (*session, error) {
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	client, err := h.store.Dial(ctx, fmt.Sprintf("client-%d", number), options)
	if err != nil {
		return nil, err
	}
	return &session{Client: client, recorder: h.recorder, number: number}, nil
}

// work makes the clients use the store until ctx ends.
func (h *harness) work(ctx context.Context) {
	for i := range h.options.Clients {
		random := h.newRandom()
		h.tasks.Go(func() { h.registers.use(ctx, h.sessions[i], random) })
	}
	others := h.sessions[h.options.Clients:]
	for i, key := range h.counters.keys {
		writer, reader := others[i%2], others[2+i%2]
		random, randomReads := h.newRandom(), h.newRandom()
		h.tasks.Go(func() { h.counters.write(ctx, writer, key, random) })
		h.tasks.Go(func() {
			for ctx.Err() == nil {
				h.counters.read(ctx, reader, key)
				sleep.For(ctx, time.Duration(randomReads.IntN(20))*time.Millisecond)
			}
		})
		h.tasks.Go(func() { h.counters.watch(ctx, reader, key) })
	}
	for i := range 2 {
		random := h.newRandom()
		h.tasks.Go(func() { h.gone.use(ctx, others[2+i], random) })
	}
	for i, of := range []*session{h.sessions[0], others[7]} {
		random := h.newRandom()
		s := &session{Client: of.Client, recorder: h.recorder, number: of.number, turn: turnOfRenewals}
		h.tasks.Go(func() { h.renewals.renew(ctx, s, fmt.Sprintf("renewed/%d", i), random) })
	}
	for _, c := range h.contests {
		for i := range contenders {
			random := h.newRandom()
			h.tasks.Go(func() { c.contend(ctx, others[4+i], random) })
		}
		random := h.newRandom()
		h.tasks.Go(func() {
			for ctx.Err() == nil {
				c.probe(ctx, others[2])
				c.intrude(ctx, others[3], random)
				sleep.For(ctx, time.Duration(random.IntN(30))*time.Millisecond)
			}
		})
	}
	if store, ok := h.store.(Former); ok {
		h.tasks.Go(func() { h.visit(ctx, store.Former()) })
	}
	if store, ok := h.store.(Partitioner); ok {
		random := h.newRandom()
		h.tasks.Go(func() { h.partition(ctx, store, random) })
	}
	for _, d := range h.redeliveries {
		random := h.newRandom()
		h.tasks.Go(func() { d.deliver(ctx, others[3], random) })
	}
	h.rotate(ctx)
}

// partition makes the network fail between the store and all clients, or some, now and then.
func (h *harness) partition(ctx context.Context, store Partitioner, random *rand.Rand) {
	for sleep.For(ctx, time.Duration(random.Int64N(int64(2*h.options.Life)))) {
		toStore, toClients, all := random.IntN(3) > 0, random.IntN(3) > 0, random.IntN(2) == 0
		if !toStore && !toClients {
			continue
		}
		lasts := time.Duration(random.Int64N(int64(h.options.Life / 2)))
		if random.IntN(8) == 0 {
			lasts = h.options.TTL / 2
		}
		which := random.Uint64()
		heal := store.Partition(toStore, toClients, func(clientID string) bool {
			return all || (hashOf(clientID)^which)%2 == 0
		})
		h.partitions.Add(1)
		sleep.For(ctx, lasts)
		heal()
	}
}

func hashOf(text string) uint64 {
	hash := fnv.New64a()
	_, _ = hash.Write([]byte(text)) // never fails, says its documentation
	return hash.Sum64()
}

func (h *harness) newRandom() *rand.Rand {
	return rand.New(rand.NewPCG(h.random.Uint64(), h.random.Uint64()))
}

// visit asks a process that was deposed, again and again until ctx ends.
func (h *harness) visit(ctx context.Context, former *Target) {
	for ctx.Err() == nil {
		dialling, cancel := context.WithTimeout(ctx, time.Second)
		client, err := former.Dial(dialling, "visitor", transport.ClientOptions{RequestTimeout: 200 * time.Millisecond})
		cancel()
		if err == nil {
			visitor := &session{Client: client, recorder: h.recorder, number: len(h.sessions)}
			for _, key := range h.counters.keys {
				h.visited.Add(1)
				h.counters.read(ctx, visitor, key)
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
		h.report.Deaths[string(life.Point)]++
		err = h.store.Start(ctx, Life{})
	}
	if err != nil && ctx.Err() == nil && h.report.Cycles > 0 {
		h.recorder.violated(StartsAgain, "%v", err)
	}
	if err != nil {
		return fmt.Errorf("crashtest: start the store: %w", err)
	}
	return nil
}

// cycle kills the store, starts it again, and compares.
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
	h.report.outages = append(h.report.outages, restart.Ready-restart.Dead)
	h.recorder.restarted(restart)
	if h.recorder.turn.Load() != turnOfAll {
		h.recorder.turn.Store(turnOfRedeliveries)
		sleep.For(ctx, turn/2)
		h.recorder.turn.Store(turnOfAll)
	}
	for _, c := range h.contests {
		c.restarted(restart)
	}
	h.rotate(ctx)
	lasts := h.options.Life/5 + time.Duration(h.random.Int64N(int64(h.options.Life)))
	if life.Point != "" {
		lasts = 2 * h.options.Life
	}
	end := time.NewTimer(lasts)
	defer end.Stop()
	enough := h.recorder.requests() + requestsInLife
	h.compare(ctx)
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-h.store.Died():
			h.report.Deaths[cmp.Or(string(life.Point), "by itself")]++
			return nil
		case <-end.C:
		}
		if h.recorder.requests() >= enough || h.recorder.now() > restart.Ready+longestLife {
			h.end(ctx)
			return nil
		}
		end.Reset(h.options.Life / 10) // the machine is busy
	}
}

// end lets a life end that no failpoint ends: at any time, or while there are only renewals.
func (h *harness) end(ctx context.Context) {
	if len(h.redeliveries) == 0 || h.random.IntN(4) > 0 {
		h.report.Deaths["at any time"]++
		return
	}
	h.report.Deaths["while leases are renewed and nothing else"]++
	h.recorder.turn.Store(turnOfRenewals)
	sleep.For(ctx, turn)
}

// turn is how long it is the turn of some clients only: long enough for the requests of the others
// to be answered.
const turn = 60 * time.Millisecond

// choose returns how the next life ends.
func (h *harness) choose() Life {
	points := h.store.Points()
	n := h.random.IntN(3*len(points)/2 + 1)
	life := Life{Pause: time.Duration(h.random.IntN(10)) * time.Millisecond}
	if h.random.IntN(3) == 0 { // else it is right again
		life.Clock = clockErrors[h.random.IntN(len(clockErrors))]
		h.report.Clocks++
	}
	if h.random.IntN(3) == 0 {
		life.Slow = time.Duration(1+h.random.IntN(20)) * time.Millisecond
	}
	if n >= len(points) {
		return life
	}
	most := 20 // about as often as a point is passed in a second of a slow store
	switch points[n] {
	case failpoint.AfterApply, failpoint.BeforeReply, failpoint.BeforeNotification:
		most = 100
	}
	life.Point, life.Pass = points[n], 1+h.random.IntN(most)
	return life
}

// clockErrors are by how much the clock of a store may be wrong when it starts.
var clockErrors = []time.Duration{-time.Hour, -10 * time.Second, -time.Second, time.Second, 10 * time.Second, time.Hour}

// compare reads everything that is known to be there or to be gone. It stops early if the store
// dies.
func (h *harness) compare(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, auditTimeout)
	defer cancel()
	for _, key := range h.counters.keys {
		if !h.counters.read(ctx, h.audit, key) {
			return
		}
	}
	for _, c := range h.contests {
		if !c.audit(ctx, h.audit) {
			return
		}
	}
	if h.gone.audit(ctx, h.audit, auditedGone) {
		h.report.Compared++
	}
}
