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
// A place with something to do now and then needs no goroutine that waits: its turn starts one. See
// [Scheduler.NewTask].
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
	"container/heap"
	"runtime"
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
	waiting queue         // empty unless all turns that are allowed are given
	arrived uint64        // counts the places that have waited
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
	start     func() bool   // of NewTask; nil otherwise
	turn      chan struct{} // receives the turn; nil before the first wait
	in        bool
	begun     time.Duration // since the epoch; valid in a turn
	usual     time.Duration // how long its turns last, on average

	// Guarded by Scheduler.mu.
	mark    time.Duration
	arrival uint64 // orders equal marks
	round   uint64 // in which its turn was given
	starts  bool   // its turn calls start
}

// NewPlace returns the place of a new connection.
func (s *Scheduler) NewPlace() *Place {
	s.mu.Lock()
	defer s.mu.Unlock()
	return &Place{scheduler: s, mark: s.now, usual: Budget}
}

// NewTask returns a place whose turns begin in goroutines of their own, see [Place.Start]. start begins the
// goroutine, which calls End; or it reports false, since there is nothing to do any more, and the turn is
// over. It is called with a lock held, and must call nothing of this package.
func (s *Scheduler) NewTask(start func() bool) *Place {
	p := s.NewPlace()
	p.start = start
	return p
}

// Start makes the turn of a task begin when it comes first. It does not wait. The next Start may come after
// the end of that turn.
func (p *Place) Start() {
	s := p.scheduler
	s.mu.Lock()
	defer s.mu.Unlock()
	p.starts = true
	s.queueLocked(p)
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
	// At least a nanosecond, so that the mark rises even if the clock is coarse.
	used := max(min(time.Since(p.scheduler.epoch)-p.begun, 4*p.usual, charge), 1)
	p.usual = max(p.usual+(used-p.usual)/8, leastUsual)
	p.scheduler.end(p, used)
}

// begin gives a turn to a place. If there is none, it queues the place and reports false.
func (s *Scheduler) begin(p *Place) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.given < s.allowed {
		p.mark = max(p.mark, s.now-Budget)
		s.begunLocked(p)
		return true
	}
	if p.turn == nil {
		p.turn = make(chan struct{}, 1)
	}
	s.queueLocked(p)
	return false
}

// queueLocked queues a place, whose turn begins at once if there is one.
func (s *Scheduler) queueLocked(p *Place) {
	p.mark = max(p.mark, s.now-Budget)
	s.arrived++
	p.arrival = s.arrived
	heap.Push(&s.waiting, p)
	s.giveLocked()
}

// begunLocked notes that the turn of a place begins.
func (s *Scheduler) begunLocked(p *Place) {
	s.given++
	s.now = max(s.now, p.mark)
	s.latest = time.Since(s.epoch)
	p.round = s.round
}

// end charges a turn to its place, and gives it to the next place.
func (s *Scheduler) end(p *Place, used time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	p.mark += used
	if p.round == s.round {
		s.given--
		s.latest = time.Since(s.epoch)
	}
	s.giveLocked()
}

// giveLocked gives turns to the next places. While one has to wait, it watches for turns that stall.
func (s *Scheduler) giveLocked() {
	for s.given < s.allowed && len(s.waiting) > 0 {
		next := heap.Pop(&s.waiting).(*Place)
		s.begunLocked(next)
		if !next.starts {
			next.turn <- struct{}{} // has room: a place waits for one turn
			continue
		}
		next.starts, next.in, next.begun = false, true, s.latest
		if !next.start() {
			next.in = false
			s.given--
		}
	}
	switch {
	case s.watched || len(s.waiting) == 0:
		return
	case s.timer == nil:
		s.timer = time.AfterFunc(stall, s.relieve)
	default:
		s.timer.Reset(stall)
	}
	s.watched = true
}

// relieve declares the present turns stalled if none has begun or ended for stall. Otherwise fewer are given
// from now on.
func (s *Scheduler) relieve() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.watched = false
	if len(s.waiting) == 0 {
		s.allowed = s.normal
		return
	}
	if time.Since(s.epoch)-s.latest >= stall {
		s.round++
		s.given = 0
		s.allowed = min(2*s.allowed, mostTurns)
	} else {
		s.allowed = max(s.allowed/2, s.normal)
	}
	s.giveLocked()
}

// queue implements heap.Interface: the lowest mark first.
type queue []*Place

func (q queue) Len() int { return len(q) }

func (q queue) Less(i, j int) bool {
	if q[i].mark != q[j].mark {
		return q[i].mark < q[j].mark
	}
	return q[i].arrival < q[j].arrival
}

func (q queue) Swap(i, j int) { q[i], q[j] = q[j], q[i] }
func (q *queue) Push(p any)   { *q = append(*q, p.(*Place)) }

func (q *queue) Pop() any {
	last := len(*q) - 1
	popped := (*q)[last]
	(*q)[last] = nil
	*q = (*q)[:last]
	return popped
}
