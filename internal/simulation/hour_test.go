package simulation

import (
	"context"
	"fmt"
	mathrand "math/rand"
	"math/rand/v2"
	"runtime"
	"runtime/debug"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tenurelock/tenure/internal/await"
	"github.com/tenurelock/tenure/internal/random"
	"github.com/tenurelock/tenure/internal/sleep"
	"github.com/tenurelock/tenure/statestore"
	"github.com/tenurelock/tenure/transport/transporttest"
)

// The keys, and the settings of the nodes.
const (
	lockKey = "press-7/active"
	dataKey = "press-7/count" // protected; no client deletes it and it has no TTL

	commitTime = 3*time.Millisecond + 137*time.Nanosecond // of a journal

	ttl    = 10 * time.Second
	margin = time.Second // of TTL: clocks may differ in rate by less than a tenth
	jitter = time.Second
	// requestTimeout and renewEvery are the defaults of lease.Options.
	requestTimeout = ttl / 6
	renewEvery     = ttl / 6
	holdOff        = time.Second // of an elector; it grows eightfold
	rankDelay      = ttl / 8     // of an elector of rank 1; rank 2 waits twice as long
)

// The hour.
const (
	hour    = time.Hour
	calmAt  = 57 * time.Minute // the last fault is over, the last held message has arrived
	lastAt  = 58 * time.Minute // the leader goes
	sampled = time.Second

	// recovery is how long pauses that began under faults can last. The longest is the longest
	// hold-off of an elector.
	recovery   = 9*holdOff + holdOff + requestTimeout + 2*rankDelay
	calmWithin = recovery + ttl + jitter
	// slack is for the messages themselves.
	slack      = 200 * time.Millisecond
	lastWithin = ttl + jitter + 2*rankDelay + slack
)

// Result is the result of one seed.
type Result struct {
	// Violations are the promises that were broken.
	Violations []string
	// Trace is what happened, if it was asked for.
	Trace []string
	// Tenures, Requests and Faults count. Ends counts the tenures by how they ended.
	Tenures, Requests, Faults int
	Ends                      map[string]int
}

// simulation is one seed.
type simulation struct {
	began   time.Time
	store   *transporttest.Store
	nodes   []*node
	checker *checker
	tracing bool

	random  *rand.Rand             // of the main goroutine
	journal *transporttest.Journal // nil: the store is in memory
	stores  int                    // how many there were so far

	// What the seed decides about the whole hour.
	gentle          bool          // only gentle faults happen
	strict          bool          // the store is strict
	anonymous       bool          // the store has no identity
	restarts        bool          // the store is restarted at times, without its data
	backups         bool          // the store's disk is lost at times, and a backup restored
	holdOff         time.Duration // of a store that was restarted, or restored
	instant         bool          // a lost connection releases the lease
	noNotifications bool          // there are none any more when it is calm

	storeTurn chan struct{} // full while the store ends or starts
	crashes   int           // of the store so far; guarded by storeTurn

	mu     sync.Mutex
	calm   bool // there are no faults any more, and no leader resigns
	faults int
	trace  []string
}

// Run simulates one seed, and keeps a trace if tracing is true. Tracing changes nothing else.
// Two calls must not overlap, because a process has some of the generators once. A goroutine
// that is left when the hour is over makes the test fail.
func Run(t *testing.T, seed uint64, tracing bool) Result {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	runtime.GC()
	defer debug.SetGCPercent(debug.SetGCPercent(-1))
	defer random.Seed(seed)()
	//lint:ignore SA1019 package backoff draws from the global generator
	mathrand.Seed(int64(seed))
	var result Result
	synctest.Test(t, func(t *testing.T) {
		s := &simulation{began: time.Now(), tracing: tracing, storeTurn: make(chan struct{}, 1), random: rand.New(rand.NewPCG(seed, 1))}
		// A strict store makes more promises than are checked here, and must break none.
		s.strict = s.random.IntN(4) == 0
		if seed%2 == 0 {
			s.journal = new(transporttest.Journal)
			s.journal.SetLatency(commitTime)
			if s.backups = seed%4 == 2; s.backups {
				s.holdOff = ttl
			}
		}
		store, err := transporttest.NewDurableStore(s.nextStore(), s.journal)
		if err != nil {
			t.Fatal(err)
		}
		defer store.Close()
		store.Speak([]statestore.Dialect{statestore.Deployed, statestore.Documented}[s.random.IntN(2)])
		s.store = store
		s.checker = newChecker(s)
		store.Tap(s.checker.applied)
		s.run(seed)
		store.Close() // which waits for requests that are under way
		result = Result{
			Violations: s.checker.violations,
			Trace:      s.trace,
			Tenures:    len(s.checker.tenures),
			Requests:   s.checker.requests,
			Faults:     s.faults,
			Ends:       s.checker.ends,
		}
	})
	return result
}

// run goes through the hour. When it returns, all processes have ended.
func (s *simulation) run(seed uint64) {
	s.noNotifications = s.random.IntN(2) == 0
	s.instant = s.random.IntN(3) == 0
	s.gentle = s.random.IntN(4) == 0
	ranked := s.random.IntN(3) == 0
	s.restarts = s.random.IntN(2) == 0
	if s.restarts && s.random.IntN(2) == 0 {
		s.holdOff = ttl
	}
	s.anonymous = s.random.IntN(4) == 0
	s.store.HideIdentity(s.anonymous)
	wild := s.random.IntN(3) > 0 // clocks differ in rate
	for i := range 3 + s.random.IntN(3) {
		n := newNode(s, string(rune('a'+i)), rand.New(rand.NewPCG(seed, uint64(2+i))))
		if !s.gentle {
			n.usual, n.network = good, good
		}
		n.fragile = s.random.IntN(4) == 0
		if wild {
			n.clock.rate = 0.93 + 0.14*s.random.Float64()
		}
		if ranked {
			n.rank = n.random.IntN(3)
		}
		// Each seed has at least one Elector and one Lease.
		n.elects = i == 0 || i > 1 && s.random.IntN(2) == 0
		s.nodes = append(s.nodes, n)
		s.tracef("%s: rate %.4f, elects %v", n.id, n.clock.rate, n.elects)
	}
	s.store.Authorize(s.authorized)
	for _, n := range s.nodes {
		n.start()
	}
	sampling, stop := context.WithCancel(context.Background())
	sampler := make(chan struct{})
	go func() {
		defer close(sampler)
		for sleep.For(sampling, sampled-7919*time.Nanosecond) { // never at the instant of another event
			s.checker.sample()
		}
	}()

	s.injectFaults()
	s.sleepUntil(calmAt)
	s.endFaults()
	s.sleepUntil(lastAt)
	s.lastFault()
	s.sleepUntil(hour)

	stop()
	await.Receive(sampler)
	for _, n := range s.nodes {
		n.stop()
	}
	s.checker.finish()
}

// nextStore returns the options of another store.
func (s *simulation) nextStore() statestore.Options {
	s.stores++
	return statestore.Options{Strict: s.strict, HoldOff: s.holdOff}
}

func (s *simulation) elapsed() time.Duration { return time.Since(s.began) }

func (s *simulation) sleepUntil(at time.Duration) { time.Sleep(at - s.elapsed()) }

func (s *simulation) isCalm() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.calm
}

// tracef notes an event. The text begins with the node, the process or the client.
func (s *simulation) tracef(format string, arguments ...any) {
	if !s.tracing {
		return
	}
	line := fmt.Sprintf("%13.6f ", s.elapsed().Seconds()) + fmt.Sprintf(format, arguments...)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.trace = append(s.trace, line)
}
