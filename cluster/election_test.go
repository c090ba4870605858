package cluster

import (
	"context"
	"flag"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tenurelock/tenure/internal/await"
	"github.com/tenurelock/tenure/internal/sleep"
)

var electionSeeds = flag.Int("election.seeds", 25, "how many minutes of elections to simulate")

// register is the election key in an etcd that answers in any time, loses requests and answers, and
// is linearizable.
type register struct {
	mu     sync.Mutex
	random *rand.Rand
	seen   observation
	cut    map[int]bool // processes whose requests are lost
}

// travel is one way of a message of process i. It reports whether the message arrives.
func (r *register) travel(ctx context.Context, i int) bool {
	r.mu.Lock()
	pause, lost := time.Duration(r.random.ExpFloat64()*float64(2*time.Millisecond)), r.cut[i] || r.random.IntN(50) == 0
	if r.random.IntN(20) == 0 {
		pause = time.Duration(r.random.Int64N(int64(time.Second)))
	}
	r.mu.Unlock()
	return sleep.For(ctx, pause+1) && !lost
}

func (r *register) read(ctx context.Context, i int) (observation, error) {
	if !r.travel(ctx, i) {
		return observation{}, errNoAnswer
	}
	r.mu.Lock()
	seen := r.seen
	r.mu.Unlock()
	if !r.travel(ctx, i) {
		return observation{}, errNoAnswer
	}
	return seen, nil
}

// write changes the key if it still has the revision, and returns its new one, or 0.
func (r *register) write(ctx context.Context, i int, revision int64, b claim) (won int64, err error) {
	if !r.travel(ctx, i) {
		return 0, errNoAnswer
	}
	r.mu.Lock()
	if r.seen.revision == revision {
		r.seen = observation{known: true, used: true, revision: revision + 1, claim: b}
		won = revision + 1
	}
	r.mu.Unlock()
	if !r.travel(ctx, i) {
		return 0, errNoAnswer
	}
	return won, nil
}

// contender is a process of the simulation. It campaigns at any moment: nothing but liveness
// rests on who leads raft.
type contender struct {
	register *register
	index    int
	clock    func() time.Duration
	validity time.Duration

	mu      sync.Mutex
	present *standing
	last    claim
}

// stands reports whether the process would answer now.
func (c *contender) stands() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.present != nil && c.present.check() == nil
}

func (c *contender) run(ctx context.Context, random *rand.Rand) {
	for sleep.For(ctx, time.Duration(random.Int64N(int64(2*time.Second)))) {
		seen, err := c.register.read(ctx, c.index)
		if err != nil {
			continue
		}
		b := claim{Term: fmt.Sprint(c.index, random.Uint64())}
		wait := b.inherit(seen, c.last, c.validity)
		c.last = b
		won, err := c.register.write(ctx, c.index, seen.revision, b)
		if err != nil || won == 0 {
			continue
		}
		c.lead(ctx, won, b, answersFrom(c.clock(), wait), time.Duration(random.Int64N(int64(5*time.Second))))
	}
}

// lead keeps a standing for a while, or until it ends, and resigns.
func (c *contender) lead(ctx context.Context, won int64, b claim, from, most time.Duration) {
	prove := func(ctx context.Context, _ uint32) proof {
		p := proof{began: c.clock()}
		seen, err := c.register.read(ctx, c.index)
		if p.err = err; err == nil && seen.revision != won {
			p.err = ErrDeposed
		}
		return p
	}
	first := prove(ctx, 0)
	if first.err != nil {
		return
	}
	s := newStanding(c.clock, c.validity, first.began, from)
	c.mu.Lock()
	c.present = s
	c.mu.Unlock()
	leading, cancel := context.WithTimeout(ctx, most)
	defer cancel()
	s.keep(leading, prove)
	s.over(ErrClosed)
	b.Resigned = c.clock() >= from
	c.last = b
	_, _ = c.register.write(ctx, c.index, won, b)
}

// Processes campaign, are cut off, resign and lose messages at random, with clocks whose rates differ by
// nearly the margin, and with different standings. Two never answer at once, and some do.
func TestInvariant35InAMinuteOfElectionsTwoProcessesNeverAnswerAtOnce(t *testing.T) {
	for seed := range uint64(*electionSeeds) {
		synctest.Test(t, func(t *testing.T) { simulateElections(t, seed) })
	}
}

func simulateElections(t *testing.T, seed uint64) {
	random := rand.New(rand.NewPCG(seed, 1))
	r := &register{random: rand.New(rand.NewPCG(seed, 2)), seen: observation{known: true}, cut: make(map[int]bool)}
	ctx, stop := context.WithTimeout(t.Context(), time.Minute)
	defer stop()
	started := time.Now()
	var contenders []*contender
	var running sync.WaitGroup
	for i, rate := range []float64{0.955, 1.045, 0.955 + 0.09*random.Float64()} {
		c := &contender{register: r, index: i, validity: 200*time.Millisecond + time.Duration(random.Int64N(int64(800*time.Millisecond)))}
		c.clock = func() time.Duration { return time.Duration(float64(time.Since(started)) * rate) }
		contenders = append(contenders, c)
		running.Go(func() { c.run(ctx, rand.New(rand.NewPCG(seed, uint64(10+i)))) })
	}
	answered := 0
	for sleep.For(ctx, 500*time.Microsecond) {
		standing := 0
		for _, c := range contenders {
			if c.stands() {
				standing++
			}
		}
		answered += standing
		if standing > 1 {
			t.Fatalf("seed %d: %d processes may answer after %v", seed, standing, time.Since(started))
		}
		if random.IntN(2000) == 0 {
			r.mu.Lock()
			i := random.IntN(len(contenders))
			r.cut[i] = !r.cut[i]
			r.mu.Unlock()
		}
	}
	await.Done(running.Wait)
	if answered == 0 {
		t.Errorf("seed %d: no process answered", seed)
	}
}

func TestAClaimSaysWhatTheProcessesBeforeLeave(t *testing.T) {
	const own, long = time.Second, 3 * time.Second
	held := claim{Term: "a", Standing: long}
	resigned := claim{Term: "a", Standing: long, Resigned: true}
	for _, test := range []struct {
		name   string
		seen   observation
		last   claim
		wait   time.Duration
		silent bool
	}{
		{"there was none", observation{known: true}, claim{}, 0, false},
		{"one that may be alive", observation{used: true, revision: 7, claim: held}, claim{}, long, true},
		{"one that resigned", observation{used: true, revision: 7, claim: resigned}, claim{}, 0, false},
		{"an own one that has ended", observation{used: true, revision: 7, claim: held}, resigned, 0, false},
		{"one that resigned after one that fell silent", observation{used: true, revision: 7, claim: claim{Term: "b", Resigned: true, Silent: true}}, claim{}, 0, true},
		{"one that was deleted by hand", observation{used: true}, claim{}, MaxStanding, true},
	} {
		var b claim
		if wait := b.inherit(test.seen, test.last, own); wait != test.wait || b.Silent != test.silent || b.Standing != max(own, wait) {
			t.Errorf("%s: it waits %v, and its claim is %+v; want %v, silent %t", test.name, wait, b, test.wait, test.silent)
		}
	}
}
