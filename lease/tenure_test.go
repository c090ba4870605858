package lease_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tenurelock/tenure/hlc"
	"github.com/tenurelock/tenure/internal/await"
	"github.com/tenurelock/tenure/lease"
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
