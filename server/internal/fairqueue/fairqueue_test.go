package fairqueue

import (
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tenurelock/tenure/internal/await"
)

// work takes one turn of a length, on the clock of a bubble.
func (p *Place) work(d time.Duration) {
	p.Begin()
	time.Sleep(d)
	p.End()
}

// keepBusy has places take turns of a length without pause, until stop is called.
func keepBusy(all *Scheduler, places int, d time.Duration) (stop func()) {
	var tasks sync.WaitGroup
	over := make(chan struct{})
	for range places {
		place := all.NewPlace()
		tasks.Go(func() {
			for {
				select {
				case <-over:
					return
				default:
					place.work(d)
				}
			}
		})
	}
	return func() {
		close(over)
		await.Done(tasks.Wait)
	}
}

// However many connections keep the line busy, one that asks now and then waits only for
// the turn under way.
func TestAnIdlePlaceGoesBeforeBusyOnes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		all := New(1)
		stop := keepBusy(all, 200, Budget)
		idle := all.NewPlace()
		time.Sleep(100 * time.Millisecond) // a new place is not ahead of others yet
		for i := range 100 {
			time.Sleep(10*time.Millisecond + time.Duration(i)*time.Microsecond)
			asked := time.Now()
			idle.Begin()
			if waited := time.Since(asked); waited > Budget {
				t.Errorf("turn %d came after %v; want %v at most", i, waited, Budget)
			}
			time.Sleep(10 * time.Microsecond)
			idle.End()
		}
		stop()
	})
}

// The operating system interrupts a thread for milliseconds. A client with short turns must not wait for
// rounds because that happened in one of its own.
func TestAnInterruptedTurnCostsNoRounds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		all := New(1)
		const turn = 50 * time.Microsecond
		stop := keepBusy(all, 200, turn)
		place := all.NewPlace()
		time.Sleep(100 * time.Millisecond) // a new place is not ahead of others yet
		for i := range 300 {
			time.Sleep(5 * time.Millisecond)
			asked := time.Now()
			place.Begin()
			if waited := time.Since(asked); waited > 2*turn {
				t.Errorf("turn %d came after %v; want %v at most", i, waited, 2*turn)
			}
			if i%100 == 50 {
				time.Sleep(3 * time.Millisecond)
			} else {
				time.Sleep(10 * time.Microsecond)
			}
			place.End()
		}
		stop()
	})
}

// Places that keep the line busy get the same time, not the same number of turns.
func TestBusyPlacesShareTheTimeEqually(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		all := New(1)
		var tasks sync.WaitGroup
		stop := make(chan struct{})
		lengths := []time.Duration{Budget / 2, Budget, 3 * Budget, Budget / 2, Budget, 3 * Budget, Budget / 2, Budget, 3 * Budget}
		used := make([]time.Duration, len(lengths))
		for i, turn := range lengths {
			place := all.NewPlace()
			tasks.Go(func() {
				for {
					select {
					case <-stop:
						return
					default:
						place.work(turn)
						used[i] += turn
					}
				}
			})
		}
		time.Sleep(time.Second)
		close(stop)
		await.Done(tasks.Wait)
		if shortest, longest := slices.Min(used), slices.Max(used); longest-shortest > 2*charge {
			t.Errorf("in a second the places used %v", used)
		}
	})
}

// A client gains nothing by sending each request over a new connection.
func TestNewPlacesGoBehindThoseThatWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		all := New(1)
		holder, waiter := all.NewPlace(), all.NewPlace()
		holder.Begin()
		var mu sync.Mutex
		var order []string
		var tasks sync.WaitGroup
		queue := func(name string, p *Place) {
			tasks.Go(func() {
				p.Begin()
				mu.Lock()
				order = append(order, name)
				mu.Unlock()
				p.End()
			})
			synctest.Wait()
		}
		waiter.mark = all.now - Budget // it has been idle for a while
		queue("new 1", all.NewPlace())
		queue("new 2", all.NewPlace())
		queue("old", waiter)
		holder.End()
		await.Done(tasks.Wait)
		if want := []string{"old", "new 1", "new 2"}; !slices.Equal(order, want) {
			t.Errorf("the order was %q; want %q", order, want)
		}
	})
}

// Waiting in idleness earns no credit: a place that was idle for an hour does not own the
// next hour.
func TestAnIdlePlaceSavesNothingUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		all := New(1)
		idle := all.NewPlace()
		stop := keepBusy(all, 1, Budget)
		time.Sleep(time.Hour / 100)
		for range 10 {
			asked := time.Now()
			for range 4 {
				idle.work(Budget)
			}
			if took := time.Since(asked); took < 6*Budget {
				t.Errorf("four turns took %v: the busy place got fewer than two in between", took)
			}
		}
		stop()
	})
}

// A turn that does not end, because something in it waits, makes the others wait for a
// while and no longer. When it ends after all there are as many turns as before.
func TestATurnThatStallsIsReplaced(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, n := range []int{1, 2} {
			all := New(n)
			var stalled []*Place
			for range n {
				place := all.NewPlace()
				place.Begin()
				stalled = append(stalled, place)
			}
			stop := keepBusy(all, 5, Budget)
			place, asked := all.NewPlace(), time.Now()
			place.work(Budget)
			if took := time.Since(asked); took > stall+20*Budget {
				t.Errorf("with %d stalled turns another took %v", n, took)
			}
			asked = time.Now()
			for range 10 {
				place.work(Budget)
			}
			if took := time.Since(asked); took > 100*Budget {
				t.Errorf("with %d turns replaced, ten others took %v", n, took)
			}
			for _, p := range stalled {
				p.End()
			}
			stop()
			time.Sleep(2 * stall)
			all.mu.Lock() // the timer has written them
			given, allowed := all.given, all.allowed
			all.mu.Unlock()
			if given != 0 || allowed != n {
				t.Errorf("in the end %d turns have not ended, and %d are given at a time; want none and %d", given, allowed, n)
			}
		}
	})
}

func TestATurnIsSpentAfterItsBudget(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		place := New(1).NewPlace()
		if place.Spent() {
			t.Error("spent before it began")
		}
		place.Begin()
		time.Sleep(Budget - 1)
		if place.Spent() {
			t.Error("spent too early")
		}
		time.Sleep(time.Nanosecond)
		if !place.Spent() {
			t.Error("not spent")
		}
		place.Begin() // does nothing in a turn
		if !place.Spent() {
			t.Error("a second Begin renewed the budget")
		}
		place.End()
		if place.Spent() {
			t.Error("spent outside of a turn")
		}
		place.End() // does nothing
		place.Begin()
		if place.Spent() {
			t.Error("a new turn is spent")
		}
	})
}

// Every place gets all its turns, and none is left over.
func TestNoTurnIsLost(t *testing.T) {
	const n, places, rounds = 3, 50, 500
	all := New(n)
	var tasks sync.WaitGroup
	for i := range places {
		tasks.Go(func() {
			place := all.NewPlace()
			for range rounds {
				place.Begin()
				for j := 0; j < i && !place.Spent(); j++ {
				}
				place.End()
			}
		})
	}
	await.Done(tasks.Wait)
	if all.given != 0 || len(all.waiting) != 0 {
		t.Errorf("in the end %d turns have not ended and %d places wait; want none", all.given, len(all.waiting))
	}
}

func TestATurnAllocatesNothing(t *testing.T) {
	place := New(1).NewPlace()
	if got := testing.AllocsPerRun(100, func() { place.Begin(); place.Spent(); place.End() }); got != 0 {
		t.Errorf("a turn allocates %v times", got)
	}
}
