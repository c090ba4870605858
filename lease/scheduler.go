package lease

import (
	"context"
	"sync"
	"time"

	"github.com/tenurelock/tenure/internal/priority"
	"github.com/tenurelock/tenure/transport"
)

// scheduler wakes the tenures of one client when they are due. It has one goroutine, however many
// tenures there are. That goroutine waits for time and for events, and for nothing else: it starts
// requests without waiting for them, and each function of the program that a tenure calls runs in a
// goroutine of its own. So no tenure waits for a request or a function of another, and no function can
// keep a tenure alive that is over.
//
// A scheduler begins with the first tenure of its client, as a task of the client. It ends when the
// client does, or when there has been no tenure for some time: a program that obtains and releases
// in turns does not start a goroutine for each tenure. It ends each tenure of a client that is closed, and
// waits until each has ended and all functions of the program have returned.
type scheduler struct {
	client *transport.Client
	origin time.Time     // of the times below
	look   chan struct{} // holds an item if the goroutine has to look which tenures are due
	start  sync.Once
	calls  sync.WaitGroup // goroutines that call functions of the program

	mu      sync.Mutex
	waiting *priority.Queue[Tenure] // the tenures that are not over; the one that is due first leaves first
	wakesAt time.Duration           // when the goroutine wakes by itself; 0: it does not sleep
	tenures int                     // that have begun, and whose end is not reported yet
	idle    time.Duration           // when the latest tenure ended, if there is none
	cause   error                   // why the client has ended; nil before
	over    bool                    // the goroutine is about to end
	signals signals

	// The tenures that go by SystemClock; the one for which the clock has to be read most often leaves
	// first. A tenure with a clock of the program is due often enough by its own schedule.
	looking *priority.Queue[Tenure]
	clock   Clock         // SystemClock, but in a test; nil before the first of them
	ahead   time.Duration // how far it was ahead of Go's time when it was looked at last
}

// signals are channels that are closed when tenures are over: when another store answers, and when
// a connection is lost. A client has one of each at a time, and one for the connection of its Will.
// The tenures that began before the present one are over.
type signals struct {
	replaced, lost, will <-chan struct{}
}

// lingers is how long a scheduler without tenures goes on.
const lingers = time.Second

// schedulers has the scheduler of each *transport.Client with tenures. It is no field of the client,
// because the client knows nothing of leases.
var schedulers sync.Map

func newScheduler(client *transport.Client) *scheduler {
	return &scheduler{
		client: client,
		origin: time.Now(),
		look:   make(chan struct{}, 1),
		waiting: priority.New(
			func(a, b *Tenure) bool { return a.dueAt < b.dueAt },
			func(t *Tenure) *int { return &t.place },
		),
		looking: priority.New(
			func(a, b *Tenure) bool { return a.lookEvery() < b.lookEvery() },
			func(t *Tenure) *int { return &t.lookPlace },
		),
	}
}

// join makes the scheduler of the client drive t from now on. It reports false if the client is closed.
func (t *Tenure) join() bool {
	for client := t.lease.client; ; {
		known, found := schedulers.Load(client)
		if !found {
			known, _ = schedulers.LoadOrStore(client, newScheduler(client))
		}
		s := known.(*scheduler)
		s.start.Do(func() {
			if !client.Go(s.run) {
				s.ended(transport.ErrClosed)
				schedulers.CompareAndDelete(client, s)
			}
		})
		switch added, closed := s.add(t); {
		case added:
			return true
		case closed:
			return false
		} // else it has just ended, and another one begins
	}
}

// add takes a tenure on. It is not due until wake says when it is. Without success, closed says that
// the client has ended.
func (s *scheduler) add(t *Tenure) (added, closed bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.over || s.cause != nil {
		return false, s.cause != nil
	}
	t.scheduler, t.dueAt = s, never
	s.waiting.Push(t)
	s.tenures++
	if t.lease.systemClock {
		if s.clock == nil {
			s.clock = t.lease.options.Clock
			s.ahead = s.clock() - s.now()
		}
		s.looking.Push(t)
		// After a moment without a tenure the goroutine may sleep longer than that. Of many tenures that follow
		// each other only the first wakes it: it then wakes early enough for the others.
		if s.now()+t.lookEvery() < s.wakesAt {
			signal(s.look)
		}
	}
	now := s.signals
	if t.replaced != nil {
		now.replaced = newer(now.replaced, t.replaced)
	}
	if t.will != nil {
		now.will = newer(now.will, t.lost)
	} else if t.lost != nil {
		now.lost = newer(now.lost, t.lost)
	}
	if now != s.signals {
		s.signals = now
		s.findEndedLocked() // those that began with the earlier channels
		signal(s.look)      // it has to wait for the new ones
	}
	return true, false
}

// newer returns the signal to wait for when a tenure brings its own. A tenure that joins late, because a
// function of the program held it up, may bring one that was given long ago: it is over, as begin
// finds out, and others wait for a later one.
func newer(present, own <-chan struct{}) <-chan struct{} {
	if isClosed(own) {
		return present
	}
	return own // a client closes each before it makes the next
}

// now is the scheduler's time.
func (s *scheduler) now() time.Duration { return time.Since(s.origin) }

// wake makes t due at a time. It may be called with the tenure's lock held.
func (s *scheduler) wake(t *Tenure, at time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.dueLocked(t, at)
}

// doubt makes t due now, with the news that its key may have another value. It is called by the
// client, with the client's lock held.
func (s *scheduler) doubt(t *Tenure) {
	s.mu.Lock()
	defer s.mu.Unlock()
	t.doubted = true
	s.dueLocked(t, 0)
}

func (s *scheduler) dueLocked(t *Tenure, at time.Duration) {
	if !s.waiting.Has(t) { // it is over
		return
	}
	if t.doubted {
		at = 0
	}
	t.dueAt = at
	s.waiting.Fix(t)
	if at < s.wakesAt {
		signal(s.look)
	}
}

// remove forgets a tenure that is over.
func (s *scheduler) remove(t *Tenure) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.waiting.Remove(t)
	s.looking.Remove(t)
}

// reported notes that nothing of a tenure is under way any more, and no function of the program.
func (s *scheduler) reported() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.tenures--
	s.idle = s.now()
	if s.cause != nil || s.tenures == 0 && s.wakesAt > s.idle+lingers {
		signal(s.look)
	}
}

// calling runs f, which calls functions of the program, in a goroutine of its own. It does nothing once
// nothing of a tenure is left.
func (s *scheduler) calling(f func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.over {
		s.calls.Go(f)
	}
}

// visit is a tenure that is due.
type visit struct {
	tenure *Tenure
	event  event
}

func (s *scheduler) run(client context.Context) {
	defer s.calls.Wait()
	timer := time.NewTimer(lingers)
	defer timer.Stop()
	closed := client.Done()
	var visits []visit
	for {
		var until time.Duration
		var signals signals
		var over bool
		visits, until, signals, over = s.due(visits[:0])
		if over {
			return
		}
		if len(visits) > 0 {
			for _, visit := range visits {
				visit.tenure.drive(visit.event)
			}
			clear(visits) // a tenure that is over is garbage
			continue
		}
		timer.Reset(until - s.now()) // the time is read only now: an earlier pause makes the timer no later
		select {
		case <-timer.C:
		case <-s.look:
		case <-signals.replaced:
			s.ended(nil)
		case <-signals.lost:
			s.ended(nil)
		case <-signals.will:
			s.ended(nil)
		case <-closed:
			closed = nil
			s.ended(context.Cause(client))
		}
	}
}

// due returns the tenures that are due, or else until when none is, and what to wait for meanwhile.
func (s *scheduler) due(visits []visit) (_ []visit, until time.Duration, _ signals, over bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.now()
	s.wakesAt = 0
	s.lookLocked(now)
	for t := s.waiting.First(); t != nil && t.dueAt <= now; t = s.waiting.First() {
		v := visit{tenure: t}
		if t.doubted {
			v.event, t.doubted = event{kind: doubted}, false
		}
		if s.cause != nil {
			v.event = event{kind: ended, err: s.cause}
		}
		// It stays in the queue until it is over, so that no end of all tenures misses it.
		t.dueAt = never
		s.waiting.Fix(t)
		visits = append(visits, v)
	}
	if len(visits) > 0 {
		return visits, 0, signals{}, false
	}
	next := never
	if first := s.waiting.First(); first != nil {
		next = first.dueAt
	}
	if s.tenures == 0 {
		if next = s.idle + lingers; s.cause != nil || next <= now {
			s.over = true
			schedulers.CompareAndDelete(s.client, s)
			return nil, 0, signals{}, true
		}
	}
	if first := s.looking.First(); first != nil {
		next = min(next, now+first.lookEvery())
	}
	s.wakesAt = next
	return visits, next, s.signals, false
}

// lookLocked makes all tenures due that go by SystemClock if that went on while Go's time, by which
// they wait, stood still: the machine was suspended.
func (s *scheduler) lookLocked(now time.Duration) {
	if s.looking.Len() == 0 {
		return
	}
	ahead := s.clock() - now
	if jump := ahead - s.ahead; jump > -time.Millisecond && jump < time.Millisecond {
		return // what is less is less than timers are late
	}
	s.ahead = ahead
	for _, t := range s.waiting.Items() {
		if t.lease.systemClock {
			t.dueAt = 0
		}
	}
	s.waiting.Init()
}

// ended makes due each tenure that is over because one of its signals was given, or all if the client
// has ended. cause is why it has; nil: it has not, as far as the caller knows.
func (s *scheduler) ended(cause error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if cause != nil { // the connection of a client that has ended is lost too, a moment later
		s.cause = cause
	}
	s.findEndedLocked()
	for _, given := range []*<-chan struct{}{&s.signals.replaced, &s.signals.lost, &s.signals.will} {
		if isClosed(*given) {
			*given = nil
		}
	}
}

func (s *scheduler) findEndedLocked() {
	for _, t := range s.waiting.Items() {
		if s.cause != nil || isClosed(t.lost) || isClosed(t.replaced) {
			t.dueAt = 0
		}
	}
	s.waiting.Init()
}

// signal makes one receiver of a channel with room for one item look again.
func signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}
