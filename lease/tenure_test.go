package lease_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tenurelock/tenure/hlc"
	"github.com/tenurelock/tenure/internal/await"
	"github.com/tenurelock/tenure/lease"
	"github.com/tenurelock/tenure/statestore"
	"github.com/tenurelock/tenure/transport"
	"github.com/tenurelock/tenure/transport/transporttest"
)

func TestInvariant1DeadlineCountsFromTheSendingOfTheRequest(t *testing.T) {
	inBubble(t, func(t *testing.T, store *transporttest.Store) {
		n := newNode(t, store, "node-a", lease.Options{Margin: 200 * time.Millisecond})
		const slow = 300 * time.Millisecond // within RequestTimeout
		n.scripted("SET", always(transporttest.Fault{HoldReply: slow}))
		tenure := n.mustAcquire(t)
		limit := tenure.Remaining()
		if want := ttl - 200*time.Millisecond - slow; limit != want {
			t.Errorf("after a reply that took %v: remaining %v, want %v", slow, limit, want)
		}
		for range 5000 { // the same for renewals: several follow in the next seconds
			time.Sleep(time.Millisecond)
			if got := tenure.Remaining(); got > limit {
				t.Fatalf("after a renewal whose reply took %v: remaining %v, at most %v can be known", slow, got, limit)
			}
		}
	})
}

func TestInvariants2And3TheDeadlineIsCheckedInsideTheCallAndCountsSuspendedTime(t *testing.T) {
	inBubble(t, func(t *testing.T, store *transporttest.Store) {
		var suspend skewed
		tenure := newNode(t, store, "node-a", lease.Options{Clock: suspend.clock()}).mustAcquire(t)
		synctest.Wait()
		mustToken(t, tenure)
		suspend.jump(time.Hour)
		mustBeOver(t, tenure, lease.ErrDeadlinePassed)
		if got := tenure.Remaining(); got != 0 {
			t.Errorf("Remaining after the suspend: %v, want 0", got)
		}
	})
}

// A renewal is answered past the deadline of the tenure, and not past the deadline that it would set.
func TestInvariant5ARenewalAnsweredAfterTheProcessStoodStillRevivesNothing(t *testing.T) {
	inBubble(t, func(t *testing.T, store *transporttest.Store) {
		var stop skewed
		n := newNode(t, store, "node-a", lease.Options{Clock: stop.clock()})
		tenure := n.mustAcquire(t)
		renewed := n.scripted("SET", func(number int64) transporttest.Fault {
			if number == 1 {
				stop.jump(17 * ttl / 20)
			}
			return transporttest.Fault{}
		})
		time.Sleep(ttl / 6)
		if renewed() == 0 {
			t.Fatal("no renewal was sent")
		}
		mustBeOver(t, tenure, lease.ErrDeadlinePassed) // another may have held the lease in between
	})
}

func TestInvariant6ALostReplyKeepsTheTenureAndItsToken(t *testing.T) {
	for _, fault := range []transporttest.Fault{{LoseRequest: true}, {LoseReply: true}, {HoldReply: ttl}} {
		inBubble(t, func(t *testing.T, store *transporttest.Store) {
			n := newNode(t, store, "node-a", lease.Options{})
			tenure := n.mustAcquire(t)
			token := mustToken(t, tenure)
			renewals := n.scripted("SET", func(number int64) transporttest.Fault {
				if number%2 == 1 {
					return fault
				}
				return transporttest.Fault{}
			})
			time.Sleep(20 * ttl)
			if got := mustToken(t, tenure); got != token || renewals() < 20 {
				t.Errorf("%+v: after %d attempts in 20 TTL the token %v is %v", fault, renewals(), token, got)
			}
		})
	}
}

func TestInvariant6ARefusedRenewalEndsTheTenureAtOnce(t *testing.T) {
	inBubble(t, func(t *testing.T, store *transporttest.Store) {
		n := newNode(t, store, "node-a", lease.Options{NoWatch: true}) // or a notification would be quicker
		tenure := n.mustAcquire(t)
		if _, err := n.client.Set(t.Context(), name, []byte("operator:1"), transport.SetOptions{}); err != nil {
			t.Fatal(err)
		}
		began := time.Now()
		await.Receive(tenure.Context().Done())
		if waited := time.Since(began); waited > ttl/6 {
			t.Errorf("noticed after %v, want by the next renewal", waited)
		}
		mustBeOver(t, tenure, lease.ErrLost)
	})
}

func TestInvariant8TheContextEndsBeforeTheDeadlineAndThatBeforeTheStoresExpiry(t *testing.T) {
	inBubble(t, func(t *testing.T, store *transporttest.Store) {
		n := newNode(t, store, "node-a", lease.Options{Margin: 200 * time.Millisecond, GracePeriod: 300 * time.Millisecond})
		other := newNode(t, store, "other", lease.Options{})
		tenure := n.mustAcquire(t)
		token := mustToken(t, tenure)
		n.conn.Cut()
		acquired := time.Now()
		await.Receive(tenure.Context().Done())
		if got, want := time.Since(acquired), ttl-500*time.Millisecond; got != want {
			t.Errorf("the context ended after %v, want %v", got, want)
		}
		if err := context.Cause(tenure.Context()); !errors.Is(err, lease.ErrDeadlinePassed) {
			t.Errorf("cause %v, want ErrDeadlinePassed", err)
		}
		time.Sleep(300*time.Millisecond - time.Nanosecond)
		if got := mustToken(t, tenure); got != token {
			t.Errorf("token %v while the work winds up, want %v", got, token)
		}
		time.Sleep(time.Nanosecond)
		mustBeOver(t, tenure, lease.ErrDeadlinePassed)
		if holder, err := other.Holder(t.Context()); err != nil || !holder.Held {
			t.Errorf("the store gave the lease away at the tenure's deadline: %+v, %v", holder, err)
		}
	})
}

func TestInvariant9ATenureEndsOnceWithItsFirstCause(t *testing.T) {
	evidence := errors.New("the resource has seen a newer token")
	for _, test := range []struct {
		end  func(*transporttest.Store, *lease.Tenure, node)
		want error
	}{
		{func(_ *transporttest.Store, tenure *lease.Tenure, _ node) { _ = tenure.Release(context.Background()) }, lease.ErrReleased},
		{func(_ *transporttest.Store, tenure *lease.Tenure, _ node) { tenure.FencedOut(evidence) }, lease.ErrFencedOut},
		{func(_ *transporttest.Store, _ *lease.Tenure, n node) { _ = n.client.Close() }, transport.ErrClosed},
		{func(store *transporttest.Store, _ *lease.Tenure, _ node) { store.Connect("node-a") }, transport.ErrSessionTakenOver},
		{func(_ *transporttest.Store, _ *lease.Tenure, n node) { n.conn.Cut() }, lease.ErrDeadlinePassed},
		{func(_ *transporttest.Store, tenure *lease.Tenure, _ node) { tenure.StopRenewing() }, lease.ErrDeadlinePassed},
	} {
		inBubble(t, func(t *testing.T, store *transporttest.Store) {
			n := newNode(t, store, "node-a", lease.Options{})
			tenure := n.mustAcquire(t)
			test.end(store, tenure, n)
			await.Receive(tenure.TokenContext().Done())
			for _, again := range []func(){
				func() {}, func() { _ = tenure.Release(t.Context()) }, func() { tenure.FencedOut(evidence) },
			} {
				again()
				mustBeOver(t, tenure, test.want)
			}
		})
	}
}

func TestInvariants11And12TokensRiseFromTenureToTenureAndStayWithinOne(t *testing.T) {
	inBubble(t, func(t *testing.T, store *transporttest.Store) {
		a, b := twoNodes(t, store, lease.Options{})
		var last hlc.Token
		for i := range 10 {
			tenure := []node{a, b}[i%2].mustAcquire(t)
			token := mustToken(t, tenure)
			if token.Compare(last) <= 0 {
				t.Fatalf("tenure %d has token %v after %v", i, token, last)
			}
			last = token
			time.Sleep(3 * ttl) // many renewals
			if got := mustToken(t, tenure); got != token {
				t.Fatalf("renewals changed the token from %v to %v", token, got)
			}
			mustRelease(t, tenure)
		}
	})
}

func TestInvariant26AForgedDeletionEndsNothingAndAFloodOfThemAsksTheStoreSeldom(t *testing.T) {
	inBubble(t, func(t *testing.T, store *transporttest.Store) {
		n := newNode(t, store, "node-a", lease.Options{})
		tenure := n.mustAcquire(t)
		synctest.Wait()
		questions := n.scripted("GET", harmless)
		const length = ttl / 2
		for began := time.Now(); time.Since(began) < length; time.Sleep(time.Millisecond) {
			n.forgeDeletion()
		}
		mustToken(t, tenure)
		if got, limit := questions(), int64(length/(ttl/50))+1; got == 0 || got > limit {
			t.Errorf("the store was asked %d times, want at least once and at most %d times", got, limit)
		}
	})
}

func TestATenureEndsAtOnceWhenItsKeyIsDeleted(t *testing.T) {
	for _, test := range []struct {
		name  string
		after time.Duration // of its life, before the first renewal
		cut   bool          // it has no connection meanwhile
		by    string        // another value; empty: it is deleted
		want  error
	}{
		{"deleted", ttl / 10, false, "", lease.ErrDeleted},
		{"deleted before the watch begins", 0, false, "", lease.ErrDeleted},
		{"deleted while the connection is down", ttl / 20, true, "", lease.ErrDeleted},
		{"overwritten", ttl / 10, false, "other:1", lease.ErrLost},
	} {
		t.Run(test.name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, store *transporttest.Store) {
				n, other := twoNodes(t, store, lease.Options{})
				tenure := n.mustAcquire(t)
				time.Sleep(test.after)
				if test.cut {
					n.conn.Cut()
				}
				_, err := other.client.Del(t.Context(), name, transport.DelOptions{})
				if test.by != "" {
					_, err = other.client.Set(t.Context(), name, []byte(test.by), transport.SetOptions{})
				}
				if err != nil {
					t.Fatal(err)
				}
				n.conn.Restore()
				if test.after == 0 {
					time.Sleep(ttl / 10)
				}
				synctest.Wait()
				mustBeOver(t, tenure, test.want)
			})
		})
	}
}

func TestInvariant42ATenureHasOneGoroutineThatEndsWithIt(t *testing.T) {
	inBubble(t, func(t *testing.T, store *transporttest.Store) {
		n := newNode(t, store, "node-a", lease.Options{})
		goroutines := func() int { // runtime.NumGoroutine is wrong by dozens while the runtime moves its lists
			synctest.Wait()
			all, _ := runtime.GoroutineProfile(make([]runtime.StackRecord, 1))
			return all
		}
		before := goroutines()
		const tenures = 500
		var held []*lease.Tenure
		for i := range tenures {
			held = append(held, mustTryAcquire(t, n.another(t, fmt.Sprint("lease ", i), lease.Options{NoWatch: true})))
		}
		for range 10 {
			time.Sleep(ttl / 6)
			if got := goroutines() - before; got > tenures+3 { // the client has one for all, and the process may have a few others
				t.Errorf("%d goroutines for %d tenures, want one for each", got, tenures)
			}
		}
		for _, tenure := range held {
			mustToken(t, tenure)
			mustRelease(t, tenure)
		}
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
			n.conn.SetFault(func(transporttest.Request) transporttest.Fault {
				return transporttest.Fault{HoldReply: time.Millisecond}
			})
			var working sync.WaitGroup
			for i := range 30 {
				l := n.another(t, fmt.Sprint("lease ", i), options)
				working.Go(func() {
					for {
						tenure, err := l.Acquire(t.Context())
						if err != nil {
							return
						}
						time.Sleep(time.Duration(i) * ttl / 20)
						if i%3 > 0 {
							_ = tenure.Release(t.Context())
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
			await.Done(working.Wait)
		})
	}
}

// A closed client cannot release the lease, so the error must say that it may be held. A gauge of the tenures that
// are held would be wrong for ever if a beginning were traced without an end.
func TestInvariant19ACloseWhileATenureBeginsLeavesNoSilentHolder(t *testing.T) {
	failed := 0
	for reading := int64(beginning - 1); reading <= beginning+1; reading++ {
		inBubble(t, func(t *testing.T, store *transporttest.Store) {
			var calls traced
			n := newNode(t, store, "node-a", lease.Options{})
			n.knowsStore(t)
			closed := make(chan struct{})
			l := n.another(t, "another", lease.Options{Trace: calls.trace(), Clock: atReading(reading, func() {
				go func() { // not in the goroutine of a tenure, for which Close waits
					defer close(closed)
					_ = n.client.Close()
				}()
				time.Sleep(time.Millisecond)
			})})
			_, err := l.TryAcquire(t.Context())
			if err != nil {
				failed++
			}
			if err != nil && (!errors.Is(err, transport.ErrClosed) || !errors.Is(err, transport.ErrOutcomeUnknown)) {
				t.Errorf("TryAcquire: %v, want ErrClosed and ErrOutcomeUnknown", err)
			}
			await.Receive(closed)
			got := strings.Join(calls.all(), "\n")
			if acquired := strings.Count(got, "acquired"); acquired > 1 || strings.Count(got, "ended client_closed") != acquired {
				t.Errorf("with a pause after reading %d of the clock it traced\n%s", reading, got)
			}
		})
	}
	if failed == 0 {
		t.Error("each time a tenure began, so this tests little")
	}
}

// Otherwise the next connection would send it, and the lease would not be free when the tenure is over.
func TestARenewalThatWaitsForAConnectionIsWithdrawn(t *testing.T) {
	for name, withdraw := range map[string]func(*lease.Tenure){
		"by StopRenewing":          (*lease.Tenure).StopRenewing,
		"by the end of the tenure": func(tenure *lease.Tenure) { tenure.FencedOut(errors.New("a newer token was seen")) },
	} {
		inBubble(t, func(t *testing.T, store *transporttest.Store) {
			n := newNode(t, store, "node-a", lease.Options{})
			tenure := n.mustAcquire(t)
			synctest.Wait()
			renewals := n.scripted("SET", harmless)
			n.conn.Cut()
			time.Sleep(ttl * 4 / 10) // by then a renewal is due
			withdraw(tenure)
			n.conn.Restore()
			time.Sleep(ttl)
			if got := renewals(); got > 0 {
				t.Errorf("%s: %d renewals were sent", name, got)
			}
		})
	}
}

// wallClock is the wall clock of a machine, which can be stepped.
type wallClock struct{ off atomic.Int64 }

func (w *wallClock) set(off time.Duration) { w.off.Store(int64(off)) }

func (w *wallClock) now() time.Time { return time.Now().Add(time.Duration(w.off.Load())) }

// Whatever the wall clocks of the store and the holder do, the tenure goes on and its token
// is accepted for fenced keys. After its release another node acquires the lease at once, with
// a greater token.
func TestInvariants4And48ATenureOutlivesStepsOfAnHourOnEitherSide(t *testing.T) {
	const hour, year = time.Hour, 8760 * time.Hour
	for _, test := range []struct {
		name          string
		store, holder []time.Duration // how far the clock is off in each phase
	}{
		{"the store's clock steps", []time.Duration{0, hour, 0, -hour, 0}, []time.Duration{0, 0, 0, 0, 0}},
		{"the store's clock is set right", []time.Duration{hour, 0}, []time.Duration{0, 0}},
		{"the store's clock is set right from years behind", []time.Duration{0, 20 * year}, []time.Duration{20 * year, 20 * year}},
		{"the holder's clock steps", []time.Duration{0, 0, 0, 0, 0}, []time.Duration{0, hour, 0, -hour, 0}},
		{"the holder's clock stays ahead", []time.Duration{0, 0, 0}, []time.Duration{hour, hour, 2 * hour}},
		{"both step, apart", []time.Duration{0, hour, -hour, 0}, []time.Duration{0, -hour, hour, 0}},
	} {
		t.Run(test.name, func(t *testing.T) {
			inBubble(t, func(t *testing.T, store *transporttest.Store) {
				var machine, own wallClock
				machine.set(test.store[0])
				own.set(test.holder[0])
				store.SetWall(machine.now)
				time.Sleep(10 * time.Minute) // the store has the time of day of its machine
				a := nodeOn(t, store.Connect("node-a"), transport.ClientOptions{Now: own.now}, lease.Options{})
				b := newNode(t, store, "node-b", lease.Options{})
				tenure := a.mustAcquire(t)
				token := mustToken(t, tenure)
				for phase := range test.store {
					machine.set(test.store[phase])
					own.set(test.holder[phase])
					for range 180 {
						time.Sleep(time.Second)
						if got, left := mustToken(t, tenure), tenure.Remaining(); got != token || left < ttl/3 {
							t.Fatalf("in phase %d the token %v is %v, and %v are left", phase, token, got, left)
						}
						if _, err := a.client.Set(t.Context(), "recipe", nil, transport.SetOptions{FencingToken: token}); err != nil {
							t.Fatalf("in phase %d: %v", phase, err)
						}
					}
				}
				mustRelease(t, tenure)
				began := time.Now()
				next := mustToken(t, b.mustAcquire(t))
				if took := time.Since(began); took > 0 || next.Compare(token) <= 0 {
					t.Errorf("the next tenure began after %v with token %v; the last was %v", took, next, token)
				}
				if _, err := b.client.Set(t.Context(), "recipe", nil, transport.SetOptions{FencingToken: next}); err != nil {
					t.Error(err)
				}
			})
		})
	}
}

// A program whose tests forget about the clock would find that a tenure never ends, or ended long ago.
func TestSystemClockFollowsTheTimeOfABubble(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began := lease.SystemClock()
		time.Sleep(time.Hour)
		if passed := lease.SystemClock() - began; passed != time.Hour {
			t.Errorf("%v passed, want an hour", passed)
		}
	})
}

func TestATenureIsShownInWords(t *testing.T) {
	inBubble(t, func(t *testing.T, store *transporttest.Store) {
		tenure := newNode(t, store, "node-a", lease.Options{}).mustAcquire(t)
		got := fmt.Sprint(tenure, "; ", (*lease.Tenure)(nil))
		if want := fmt.Sprintf("press-7/active, token %v, 1.8s remaining; <nil>", mustToken(t, tenure)); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	})
}

func TestAnErrorNamesTheLeaseOnce(t *testing.T) {
	inBubble(t, func(t *testing.T, store *transporttest.Store) {
		n, other := twoNodes(t, store, lease.Options{})
		tenure := n.mustAcquire(t)
		_, held := other.TryAcquire(t.Context())
		store.Authorize(func(string, statestore.Verb, string) bool { return false })
		_, refused := other.TryAcquire(t.Context())
		_, unread := other.Holder(t.Context())
		var observed error
		for _, observed = range other.Observe(t.Context()) {
			break
		}
		released := tenure.Release(t.Context())
		_, token := tenure.Token()
		errs := []error{held, refused, unread, observed, released, token, context.Cause(tenure.Context())}
		for _, options := range []lease.Options{{}, {AcquireDelay: time.Second}, {InstantFailover: true}} {
			failing, conn := newFailing(t, store, "node-c", options)
			conn.fail(refusal(transport.ErrNotAuthorized))
			ctx, cancel := context.WithTimeout(t.Context(), ttl)
			_, err := failing.Acquire(ctx)
			cancel()
			errs = append(errs, err)
		}
		for _, err := range errs {
			if err == nil || strings.Count(err.Error(), name) != 1 {
				t.Errorf("%v\ndoes not name the lease once", err)
			}
		}
	})
}
