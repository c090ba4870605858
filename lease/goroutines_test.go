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
	"github.com/tenurelock/tenure/statestore"
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

// A tenure that ends while the program has not asked for its contexts: they have ended when it does.
func TestAContextThatIsAskedForLateHasEndedWithItsCause(t *testing.T) {
	inBubble(t, func(t *testing.T, store *transporttest.Store) {
		n := newNode(t, store, "node-a", lease.Options{EndOnDisconnect: true})
		tenure := n.mustAcquire(t)
		n.conn.Cut()
		synctest.Wait()
		for name, ctx := range map[string]context.Context{"Context": tenure.Context(), "TokenContext": tenure.TokenContext()} {
			if cause := context.Cause(ctx); cause == nil || cause.Error() != context.Cause(tenure.Context()).Error() {
				t.Errorf("%s ended with %v, want %v", name, cause, context.Cause(tenure.Context()))
			}
		}
	})
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

// A tenure that begins late, because its process stood still, brings channels that are closed. They must not replace the channels of tenures that have begun meanwhile.
func TestATenureThatBeginsLateHidesNoEndFromAnother(t *testing.T) {
	for _, test := range []struct {
		name    string
		options lease.Options
		end     func(*testing.T, *transporttest.Store, node) // of all tenures so far
	}{
		{"lost connection", lease.Options{NoWatch: true, EndOnDisconnect: true}, func(t *testing.T, _ *transporttest.Store, n node) {
			n.conn.Cut()
			n.conn.Restore()
		}},
		{"another store", lease.Options{NoWatch: true}, func(t *testing.T, store *transporttest.Store, n node) {
			if err := store.Replace(statestore.Options{}); err != nil {
				t.Fatal(err)
			}
			_, _ = n.client.Get(t.Context(), "any") // its answer shows the other store
		}},
	} {
		t.Run(test.name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, store *transporttest.Store) {
				n := newNode(t, store, "node-a", lease.Options{})
				mustTryAcquire(t, n.Lease) // the client knows the store
				g, slow := newGate(t), test.options
				slow.Clock = atReading(beginning, g.pass)
				g.shut.Store(true)
				begun := make(chan struct{})
				go func() {
					defer close(begun)
					tenure, err := n.another(t, "late", slow).TryAcquire(t.Context())
					if err == nil && context.Cause(tenure.Context()) == nil {
						t.Error("the late tenure begins, though what it holds has ended")
					}
				}()
				await.Receive(g.reached)
				test.end(t, store, n) // the late one is over before it begins
				other := mustTryAcquire(t, n.another(t, "other", test.options))
				g.open()
				await.Receive(begun)
				synctest.Wait()
				if context.Cause(other.Context()) != nil {
					t.Fatalf("the other tenure: %v", context.Cause(other.Context()))
				}
				ctx := other.Context()
				test.end(t, store, n)
				synctest.Wait()
				if ctx.Err() == nil { // no method looks first: only its goroutine can have ended it
					t.Error("the context of the other tenure goes on")
				}
			})
		})
	}
}

// slowToClose is a connection that is lost some time after its Close began.
type slowToClose struct {
	*transporttest.Conn
	gate *gate
}

func (c slowToClose) Close() error {
	c.gate.pass()
	return c.Conn.Close()
}

// Invariant 42: no tenure begins at a client that is being closed, whether its connection is lost yet or not.
func TestInvariant42CloseEndsATenureThatBeginsMeanwhile(t *testing.T) {
	inBubble(t, func(t *testing.T, store *transporttest.Store) {
		disconnects, ends, begins := newGate(t), newGate(t), newGate(t)
		client, err := transport.NewClient(slowToClose{store.Connect("node-a"), disconnects}, transport.ClientOptions{})
		if err != nil {
			t.Fatal(err)
		}
		n := node{client: client}
		mustTryAcquire(t, n.another(t, "first", lease.Options{
			EndOnDisconnect: true, // so that it waits for the end of the connection
			Trace:           &lease.Trace{Ended: func(lease.TraceInfo) { ends.pass() }},
		}))
		for _, g := range []*gate{disconnects, ends, begins} {
			g.shut.Store(true)
		}
		late := make(chan error, 1)
		go func() {
			_, err := n.another(t, "late", lease.Options{Clock: atReading(beginning, begins.pass)}).TryAcquire(t.Context())
			late <- err
		}()
		await.Receive(begins.reached)
		closing, closed := time.Now(), make(chan error, 1)
		go func() { closed <- client.Close() }()
		await.Receive(ends.reached) // the first tenure is over, because the client is closed
		disconnects.open()
		synctest.Wait()
		begins.open()
		if err := await.Receive(late); !errors.Is(err, transport.ErrClosed) {
			t.Errorf("a tenure begins while the client closes: %v, want ErrClosed", err)
		}
		ends.open()
		if err := await.Receive(closed); err != nil {
			t.Error(err)
		}
		if waited := time.Since(closing); waited > 0 {
			t.Errorf("Close took %v", waited)
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
