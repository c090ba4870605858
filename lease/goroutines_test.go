package lease_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime"
	"strings"
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

// Invariant 45: a function of one tenure that blocks delays no renewal of another tenure of the same
// client.
func TestAFunctionThatBlocksDelaysNoOtherTenure(t *testing.T) {
	failed := transporttest.Fault{LoseReply: true}
	for _, test := range []struct {
		name  string
		fault transporttest.Fault // of the first tenure's renewals
		lease func(*gate) lease.Options
	}{
		{name: "Trace.Renewed", lease: func(g *gate) lease.Options {
			return lease.Options{Trace: &lease.Trace{Renewed: func(lease.TraceInfo) { g.pass() }}}
		}},
		{name: "Trace.RenewalFailed", fault: failed, lease: func(g *gate) lease.Options {
			return lease.Options{Trace: &lease.Trace{RenewalFailed: func(lease.TraceInfo) { g.pass() }}}
		}},
		{name: "Trace.Ended", fault: failed, lease: func(g *gate) lease.Options {
			return lease.Options{Trace: &lease.Trace{Ended: func(lease.TraceInfo) { g.pass() }}}
		}},
		{name: "Logger", fault: failed, lease: func(g *gate) lease.Options {
			return lease.Options{Logger: g.logger(slog.LevelInfo)}
		}},
	} {
		t.Run(test.name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, store *transporttest.Store) {
				g := newGate(t)
				n := newNode(t, store, "node-a", lease.Options{})
				t.Cleanup(func() { g.open(); _ = n.client.Close() })
				first := mustTryAcquire(t, n.another(t, "first", test.lease(g)))
				var others []*lease.Tenure
				for i := range 20 {
					others = append(others, mustTryAcquire(t, n.another(t, fmt.Sprint("other ", i), lease.Options{})))
				}
				n.conn.SetFault(func(request transport.Request) transporttest.Fault {
					if strings.Contains(string(request.Payload), "first") {
						return test.fault
					}
					return transporttest.Fault{}
				})
				g.shut.Store(true)
				await.Receive(g.reached)
				time.Sleep(5 * ttl)
				if first.Err() == nil {
					t.Error("the first tenure goes on, so its function does not block it")
				}
				for _, other := range others {
					if left := other.Remaining(); left < ttl/2 || other.Err() != nil {
						t.Errorf("%v: of a tenure with nothing that blocks %v is left", other, left)
					}
				}
			})
		})
	}
}

// Invariant 42: a tenure has one goroutine, also while a request is under way. It ends with it.
func TestInvariant42ATenureHasOneGoroutineThatEndsWithIt(t *testing.T) {
	inBubble(t, func(t *testing.T, store *transporttest.Store) {
		n := newNode(t, store, "node-a", lease.Options{})
		synctest.Wait()
		before := runtime.NumGoroutine()
		const tenures = 500
		var held []*lease.Tenure
		for i := range tenures {
			held = append(held, mustTryAcquire(t, n.another(t, fmt.Sprint("lease ", i), lease.Options{NoWatch: true})))
		}
		for range 10 {
			time.Sleep(ttl / 6)
			synctest.Wait()
			if got := runtime.NumGoroutine() - before; got > tenures+3 { // the client has one for all, and the process may have a few others
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
		if got := runtime.NumGoroutine() - before; got > 2 {
			t.Errorf("%d goroutines are left without a tenure", got)
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
							await.Receive(tenure.Done())
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
			if cause := context.Cause(ctx); cause == nil || cause.Error() != tenure.Err().Error() {
				t.Errorf("%s ended with %v, want %v", name, cause, tenure.Err())
			}
		}
	})
}

// A tenure that begins late, because a function of the program held it up, brings channels that are
// closed. They must not replace the channels of tenures that have begun meanwhile.
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
				slow.Trace = &lease.Trace{Acquired: func(context.Context, lease.TraceInfo) { g.pass() }}
				g.shut.Store(true)
				begun := make(chan struct{})
				go func() {
					defer close(begun)
					tenure, err := n.another(t, "late", slow).TryAcquire(t.Context())
					if err == nil && tenure.Err() == nil {
						t.Error("the late tenure begins, though what it holds has ended")
					}
				}()
				await.Receive(g.reached)
				test.end(t, store, n) // the late one is over before it begins
				other := mustTryAcquire(t, n.another(t, "other", test.options))
				g.open()
				await.Receive(begun)
				synctest.Wait()
				if other.Err() != nil {
					t.Fatalf("the other tenure: %v", other.Err())
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
			_, err := n.another(t, "late", lease.Options{
				Trace: &lease.Trace{Acquired: func(context.Context, lease.TraceInfo) { begins.pass() }},
			}).TryAcquire(t.Context())
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
			await.Receive(tenure.Done())
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
