package lease_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tenurelock/tenure/internal/await"
	"github.com/tenurelock/tenure/lease"
	"github.com/tenurelock/tenure/transport"
	"github.com/tenurelock/tenure/transport/transporttest"
)

// another returns a lease with another name on the client of n.
func (n node) another(t *testing.T, name string, options lease.Options) *lease.Lease {
	t.Helper()
	options.TTL = ttl
	l, err := lease.New(n.client, name, options)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

func mustTryAcquire(t *testing.T, l *lease.Lease) *lease.Tenure {
	t.Helper()
	tenure, err := l.TryAcquire(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return tenure
}

// goroutines returns how many goroutines there are. The runtime reads its lists of them while the world stands
// still: runtime.NumGoroutine is wrong by dozens while one of these lists moves to another.
func goroutines() int {
	all, _ := runtime.GoroutineProfile(make([]runtime.StackRecord, 1))
	return all
}

// Invariant 42: a tenure has one goroutine, also while a request is under way. It ends with it.
func TestInvariant42ATenureHasOneGoroutineThatEndsWithIt(t *testing.T) {
	inBubble(t, func(t *testing.T, store *transporttest.Store) {
		n := newNode(t, store, "node-a", lease.Options{})
		synctest.Wait()
		before := goroutines()
		const tenures = 500
		var held []*lease.Tenure
		for i := range tenures {
			held = append(held, mustTryAcquire(t, n.another(t, fmt.Sprint("lease ", i), lease.Options{NoWatch: true})))
		}
		for range 10 {
			time.Sleep(ttl / 6)
			synctest.Wait()
			if got := goroutines() - before; got > tenures+3 { // the client has one for all, and the process may have a few others
				t.Errorf("%d goroutines for %d tenures, want one for each", got, tenures)
			}
		}
		for _, tenure := range held {
			mustToken(t, tenure)
			if err := tenure.Release(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		synctest.Wait()
		if left := goroutines() - before; left > 2 {
			t.Errorf("%d goroutines are left without a tenure", left)
		}
	})
}

// Tenures begin and end in many goroutines while the client connects, loses its connection and
// closes. synctest.Test fails if a goroutine is left.
func TestInvariant42TenuresThatBeginWhileTheClientClosesLeaveNothing(t *testing.T) {
	for _, options := range []lease.Options{{}, {EndOnDisconnect: true}, {NoWatch: true}} {
		inBubble(t, func(t *testing.T, store *transporttest.Store) {
			var begun, ended atomic.Int64
			options.Trace = &lease.Trace{
				Acquired: func(context.Context, lease.TraceInfo) { begun.Add(1) },
				Ended:    func(lease.TraceInfo) { ended.Add(1) },
			}
			n := newNode(t, store, "node-a", lease.Options{})
			n.conn.SetFault(func(transport.Request) transporttest.Fault {
				return transporttest.Fault{HoldReply: time.Millisecond}
			})
			ctx, cancel := context.WithCancel(t.Context())
			var working sync.WaitGroup
			for i := range 30 {
				l := n.another(t, fmt.Sprint("lease ", i), options)
				working.Go(func() {
					for ctx.Err() == nil {
						tenure, err := l.Acquire(ctx)
						if err != nil {
							return
						}
						time.Sleep(time.Duration(i) * ttl / 20)
						if i%3 > 0 {
							_ = tenure.Release(ctx)
						} else {
							await.Receive(tenure.Context().Done())
						}
					}
				})
			}
			for range 3 {
				time.Sleep(2 * ttl)
				n.conn.Cut()
				time.Sleep(ttl / 4)
				n.conn.Restore()
			}
			time.Sleep(2 * ttl)
			if err := n.client.Close(); err != nil {
				t.Error(err)
			}
			if begun.Load() == 0 || begun.Load() != ended.Load() {
				t.Errorf("when Close has returned, %d tenures have begun and %d have ended", begun.Load(), ended.Load())
			}
			cancel()
			await.Done(working.Wait)
		})
	}
}

func TestAContextThatIsAskedForLateHasTheCauseThatCameFirst(t *testing.T) {
	inBubble(t, func(t *testing.T, store *transporttest.Store) {
		n := newNode(t, store, "node-a", lease.Options{})
		tenure := n.mustAcquire(t)
		n.conn.Cut()
		time.Sleep(ttl * 85 / 100) // past GracePeriod, and before the deadline
		tenure.FencedOut(errors.New("a newer token was seen"))
		if cause := context.Cause(tenure.Context()); !errors.Is(cause, lease.ErrDeadlinePassed) {
			t.Errorf("Context ended with %v, want the renewals that failed before", cause)
		}
		if cause := context.Cause(tenure.TokenContext()); !errors.Is(cause, lease.ErrFencedOut) {
			t.Errorf("TokenContext ended with %v", cause)
		}
	})
}

// beginning is the reading of its clock, from 1, with which a tenure begins, in a TryAcquire of one request.
const beginning = 4

// atReading returns a clock that calls do after one of its readings, counted from 1.
func atReading(number int64, do func()) func() time.Duration {
	var readings atomic.Int64
	return func() time.Duration {
		now := lease.SystemClock()
		if readings.Add(1) == number {
			do()
		}
		return now
	}
}

// pausing is a clock on virtual time. One of its readings, counted from 1, is followed by a pause, as of
// a goroutine that gets no processor.
type pausing struct {
	readings, after atomic.Int64
	pause           time.Duration
	went            atomic.Int64 // when the pause was over, as a time since 1970; 0: it has not begun
}

func (p *pausing) clock() func() time.Duration {
	steady := lease.SystemClock
	return func() time.Duration {
		now := steady()
		if p.readings.Add(1) == p.after.Load() {
			time.Sleep(p.pause)
			p.went.Store(time.Now().UnixNano())
		}
		return now
	}
}

// Invariant 8: a goroutine that stands still between its look at the clock and what it decides from that
// wakes no tenure late: the context ends when it is due, if the pause is over by then.
func TestInvariant8APauseAfterALookAtTheClockMakesNoContextEndLate(t *testing.T) {
	const pause = 30 * time.Millisecond
	judged := 0
	for reading := int64(1); ; reading++ {
		var paused bool
		inBubble(t, func(t *testing.T, store *transporttest.Store) {
			clock := &pausing{pause: pause}
			n := newNode(t, store, "node-a", lease.Options{Clock: clock.clock(), NoWatch: true})
			tenure := n.mustAcquire(t)
			acquired := time.Now()
			n.conn.Cut()
			clock.after.Store(clock.readings.Load() + reading)
			await.Receive(tenure.Context().Done())
			ended := time.Now()
			went := clock.went.Load()
			if paused = went > 0 && went <= ended.UnixNano(); !paused {
				return
			}
			due := acquired.Add(ttl - ttl/10 - ttl/10)
			if time.Unix(0, went).After(due) {
				return
			}
			judged++
			if late := ended.Sub(due); late > 0 {
				t.Errorf("with a pause after reading %d, the context ends %v late", reading, late)
			}
		})
		if !paused {
			break
		}
	}
	if judged < 5 {
		t.Errorf("only %d readings of the clock were followed by a pause, so this tests little", judged)
	}
}
