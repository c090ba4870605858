// Package fairqueue gives connections fair turns: to process what they have read, and to write.
//
// A server has one goroutine for each connection. Go's scheduler lets a goroutine that always has
// something to do run until it is preempted, after 10 ms. So two hundred connections that send
// without pause make each other connection wait for a second. With this package, a goroutine
// takes a turn before it processes what it has read, and ends the turn before it waits for its
// client or writes to it:
//
//	scheduler := fairqueue.New(0) // one for the server
//	place := scheduler.NewPlace() // one for each connection
//
//	for each packet in what was read {
//		place.Begin() // waits for a turn; in a turn it does nothing
//		process(packet)
//		if place.Spent() {
//			place.End() // let others run; the next Begin waits
//			flush()
//		}
//	}
//	place.End() // outside of a turn it does nothing
//	flush()
//
// # Order
//
// Turns are shared by time, not by number: this is start-time fair queueing. Each place has a mark,
// the time that it has used. A turn of 50 µs raises the mark by 50 µs, and the waiting place
// with the lowest mark is next. The mark of an idle place falls behind the others, so the place
// goes first when it comes back. This credit has a bound: the mark is raised to at least one
// [Budget] below the mark at which turns of the others begin now.
//
// So a client that sends a request now and then waits for little but the present turns, however
// many others send without pause. Those share the rest equally. The credit must be a whole budget:
// busy places advance together, in rounds, and without credit the second request of a round
// would wait for its end.
//
// # Bounds
//
// Only a place with a lower mark overtakes a waiting place, and each turn raises a mark.
// Between two turns of a place, each other place gets no more time than the place had in its own
// last turn, one budget of credit, and one more turn. A new place has no credit, so that a client
// gains nothing with new connections. A turn counts for four times the usual length of the turns of its
// place at most, and for four budgets at most, however long it took: the operating system may have
// interrupted it. Under two hundred busy connections, one such turn of a client that sends a short
// request now and then would otherwise cost it a dozen rounds, a quarter of a second.
//
// # What it does not do
//
// A turn is not interrupted: it ends when its goroutine calls End. A goroutine that blocks in a turn
// (on a socket, or in a function of the embedding program) blocks all others. If no turn begins or ends for
// 10 ms while a place waits, the present ones no longer count, and twice as many are given at a time, until
// turns end again.
package fairqueue

import (
	"cmp"
	"runtime"
	"slices"
	"sync"
	"time"
)

// Budget is how long a turn should last, enough for some tens of requests: after that time
// [Place.Spent] returns true. A shorter one costs throughput, since replies are written at the
// end of each turn. A longer one delays each other connection by as much.
const Budget = 200 * time.Microsecond

// charge is the longest time that a turn counts for.
const charge = 4 * Budget

// leastUsual bounds from below how long the turns of a place are taken to last, so that four times as
// much is soon enough for one that begins to do more.
const leastUsual = Budget / 32

// stall is how long no turn has begun or ended before the present ones count as stalled.
const stall = 10 * time.Millisecond

// mostTurns bounds how many turns are given at a time because others are stalled.
const mostTurns = 1024

// Scheduler gives turns to places. It is safe for concurrent use, and has no goroutine.
type Scheduler struct {
	epoch  time.Time
	normal int // how many turns are given at a time, unless some are stalled

	mu      sync.Mutex
	allowed int // how many are given at a time now
	given   int // turns of this round that have not ended
	round   uint64
	latest  time.Duration // when a turn began or ended, since the epoch
	now     time.Duration // the mark at which the latest turn began
	waiting []*Place      // the next one last; empty unless all turns that are allowed are given
	timer   *time.Timer   // calls relieve; nil before the first wait
	watched bool          // the timer is running
}

// New returns a Scheduler that gives n turns at a time. 0 or less means one fewer than the processors
// that Go uses now, and at least one.
//
// That leaves one processor for the network: while there is always a goroutine to run, Go's
// scheduler polls the network only every 10 ms. On two processors, under two
// hundred connections that send without pause, another client's request took 8 to 14 ms at
// p99 with one turn at a time, 12 to 150 ms with two, and 70 to 160 ms without turns. The work
// outside of turns (reading and writing) keeps the last processor busy: eight such connections
// get the same throughput either way, two hundred get a fifth less.
func New(n int) *Scheduler {
	if n <= 0 {
		n = max(runtime.GOMAXPROCS(0)-1, 1)
	}
	return &Scheduler{epoch: time.Now(), normal: n, allowed: n}
}

// Place is the place of a connection in the queue for turns. It belongs to one goroutine at a time,
// the one that processes what the connection sends. Outside of a turn it holds nothing. It
// needs no closing.
type Place struct {
	scheduler *Scheduler
	turn      chan struct{} // receives the turn; nil before the first wait
	in        bool
	begun     time.Duration // since the epoch; valid in a turn
	usual     time.Duration // how long its turns last, on average

	// Guarded by Scheduler.mu.
	mark  time.Duration
	round uint64 // in which its turn was given
}

// NewPlace returns the place of a new connection.
func (s *Scheduler) NewPlace() *Place {
	s.mu.Lock()
	defer s.mu.Unlock()
	return &Place{scheduler: s, mark: s.now, usual: Budget}
}

// Begin begins a turn, and waits for it if other places come first. In a turn it does nothing.
func (p *Place) Begin() {
	if p.in {
		return
	}
	if !p.scheduler.begin(p) {
		<-p.turn
	}
	p.in, p.begun = true, time.Since(p.scheduler.epoch)
}

// Yield ends the turn and waits for the next one, if the turn has lasted long enough.
func (p *Place) Yield() {
	if p.Spent() {
		p.End()
		p.Begin()
	}
}

// Spent reports whether the turn has lasted for [Budget] and should end. Outside of a turn it
// reports false.
func (p *Place) Spent() bool {
	return p.in && time.Since(p.scheduler.epoch)-p.begun >= Budget
}

// End ends the turn, and gives it to the next waiting place. Outside of a turn it does nothing.
func (p *Place) End() {
	if !p.in {
		return
	}
	p.in = false
	s := p.scheduler
	now := time.Since(s.epoch)
	// At least a nanosecond, so that the mark rises even if the clock is coarse.
	used := max(min(now-p.begun, 4*p.usual, charge), 1)
	p.usual = max(p.usual+(used-p.usual)/8, leastUsual)
	s.mu.Lock()
	defer s.mu.Unlock()
	p.mark += used
	if p.round == s.round {
		s.given--
		s.latest = now
	}
	s.giveLocked()
}

// begin gives a turn to a place. If there is none, it queues the place and reports false.
func (s *Scheduler) begin(p *Place) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	p.mark = max(p.mark, s.now-Budget)
	if s.given < s.allowed {
		s.beginLocked(p)
		return true
	}
	if p.turn == nil {
		p.turn = make(chan struct{}, 1)
	}
	behind, _ := slices.BinarySearchFunc(s.waiting, p.mark,
		func(other *Place, mark time.Duration) int { return cmp.Compare(mark, other.mark) })
	s.waiting = slices.Insert(s.waiting, behind, p)
	s.giveLocked()
	return false
}

// beginLocked notes that the turn of a place begins.
func (s *Scheduler) beginLocked(p *Place) {
	s.given++
	s.now = max(s.now, p.mark)
	s.latest = time.Since(s.epoch)
	p.round = s.round
}

// giveLocked gives turns to the next places. While one has to wait, it watches for turns that stall.
func (s *Scheduler) giveLocked() {
	for last := len(s.waiting) - 1; s.given < s.allowed && last >= 0; last-- {
		next := s.waiting[last]
		s.waiting = slices.Delete(s.waiting, last, last+1)
		s.beginLocked(next)
		next.turn <- struct{}{} // has space: a place waits for one turn
	}
	if s.watched || len(s.waiting) == 0 {
		return
	}
	s.watched = true
	if s.timer == nil {
		s.timer = time.AfterFunc(stall, s.relieve)
	} else {
		s.timer.Reset(stall)
	}
}

// relieve declares the present turns stalled if none has begun or ended for stall. Otherwise fewer are given
// from now on.
func (s *Scheduler) relieve() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.watched = false
	switch {
	case len(s.waiting) == 0:
		s.allowed = s.normal
	case time.Since(s.epoch)-s.latest >= stall:
		s.round++
		s.given = 0
		s.allowed = min(2*s.allowed, mostTurns)
	default:
		s.allowed = max(s.allowed/2, s.normal)
	}
	s.giveLocked()
}
