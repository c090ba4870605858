package lease_test

import (
	"context"
	"errors"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tenurelock/tenure/internal/await"
	"github.com/tenurelock/tenure/lease"
	"github.com/tenurelock/tenure/statestore"
	"github.com/tenurelock/tenure/transport/transporttest"
)

func mustRestart(t *testing.T, store *transporttest.Store, options statestore.Options) {
	t.Helper()
	if err := store.Restart(options); err != nil {
		t.Fatal(err)
	}
}

// A renewal that reached the empty store would set the key again, and the tenure would go on
// without the fences of the keys that it had claimed.
func TestInvariant47ATenureEndsWithTheDataOfItsStore(t *testing.T) {
	for _, test := range []struct {
		hidden  bool // the store has no identity
		options lease.Options
		want    error
	}{
		{false, lease.Options{}, lease.ErrStoreReplaced},
		{false, lease.Options{NoWatch: true}, lease.ErrStoreReplaced},
		{false, lease.Options{EndOnDisconnect: true}, lease.ErrConnectionLost},
		{true, lease.Options{}, lease.ErrDeleted},
		{true, lease.Options{NoWatch: true}, lease.ErrDeleted},
		{true, lease.Options{InstantFailover: true}, lease.ErrConnectionLost},
	} {
		inBubble(t, func(t *testing.T, store *transporttest.Store) {
			store.HideIdentity(test.hidden)
			n := newNode(t, store, "node-a", test.options)
			tenure := n.mustAcquire(t)
			time.Sleep(5*ttl + ttl/7)
			var set atomic.Bool
			store.Tap(func(a transporttest.Applied) {
				set.Store(set.Load() || a.Command.Verb == statestore.VerbSet && a.Reply.Outcome == statestore.OK)
			})
			mustRestart(t, store, statestore.Options{})
			n.conn.Restore()
			await.Receive(tenure.Context().Done())
			mustBeOver(t, tenure, test.want)
			_ = tenure.Release(t.Context())
			if set.Load() {
				t.Error("the empty store took a renewal")
			}
		})
	}
}

// A store that keeps its data keeps its identity, so the tenure goes on.
func TestATenureSurvivesAConnectionAndAStoreThatKeepItsKey(t *testing.T) {
	for _, hidden := range []bool{false, true} {
		inBubble(t, func(t *testing.T, store *transporttest.Store) {
			store.HideIdentity(hidden)
			n := newNode(t, store, "node-a", lease.Options{NoWatch: true})
			tenure := n.mustAcquire(t)
			looks := n.scripted("GET", harmless)
			for range 3 {
				n.conn.Cut()
				time.Sleep(ttl / 10)
				n.conn.Restore()
				time.Sleep(3 * ttl)
			}
			if err := context.Cause(tenure.Context()); err != nil {
				t.Errorf("identity hidden %v: it ended: %v", hidden, err)
			}
			// Once for each new connection, and once more if it waited for the connection.
			least, most := int64(0), int64(0)
			if hidden {
				least, most = 3, 6
			}
			if got := looks(); got < least || got > most {
				t.Errorf("identity hidden %v: it looked %d times, want %d to %d", hidden, got, least, most)
			}
		})
	}
}

// The question and the renewal must go over one connection: another connection may lead to
// a store that has lost the key.
func TestInvariant47ARenewalIsNotSentOverAnUnconfirmedConnection(t *testing.T) {
	inBubble(t, func(t *testing.T, store *transporttest.Store) {
		store.HideIdentity(true)
		// Between the question and the renewal the tenure reads its clock.
		var looked, restarted atomic.Bool
		var n node
		steady := lease.SystemClock
		n = newNode(t, store, "node-a", lease.Options{NoWatch: true, Clock: func() time.Duration {
			if looked.Load() && !restarted.Swap(true) {
				_ = store.Restart(statestore.Options{})
				n.conn.Restore()
			}
			return steady()
		}})
		tenure := n.mustAcquire(t)
		var set atomic.Bool
		store.Tap(func(a transporttest.Applied) {
			looked.Store(looked.Load() || a.Command.Verb == statestore.VerbGet)
			set.Store(set.Load() || a.Command.Verb == statestore.VerbSet)
		})
		n.conn.Cut()
		n.conn.Restore()
		await.Receive(tenure.Context().Done())
		if err := context.Cause(tenure.Context()); !errors.Is(err, lease.ErrDeleted) {
			t.Errorf("it ended with %v, want ErrDeleted", err)
		}
		if !restarted.Load() || set.Load() {
			t.Errorf("restarted %v; it renewed the lease at the empty store: %v", restarted.Load(), set.Load())
		}
	})
}

// The connection is lost between the decision to renew and the request, and the next one
// follows at once.
func TestInvariant53ATenureThatEndsWithItsConnectionSendsNothingOnTheNext(t *testing.T) {
	for _, options := range []lease.Options{{InstantFailover: true}, {EndOnDisconnect: true}} {
		inBubble(t, func(t *testing.T, store *transporttest.Store) {
			var acquired, cut atomic.Bool
			var n node
			renewing, steady := make(chan struct{}, 1), lease.SystemClock
			options.Clock = func() time.Duration {
				// Tenure.renew reads the clock last before the request leaves.
				if acquired.Load() && calledBy(").renew") && !cut.Swap(true) {
					n.conn.Cut()
					n.conn.Restore()
					renewing <- struct{}{}
				}
				return steady()
			}
			n = newNode(t, store, "node-a", options)
			tenure := n.mustAcquire(t)
			acquired.Store(true)
			sent := n.counted()
			await.Receive(renewing)
			time.Sleep(2 * ttl)
			mustBeOver(t, tenure, lease.ErrConnectionLost)
			if sent("SET") > 0 {
				t.Errorf("it sent %d renewals over the next connection", sent("SET"))
			}
		})
	}
}

// calledBy reports whether the clock that calls it was called by a method of this name, and not
// by a function that the method calls.
func calledBy(method string) bool {
	var caller [1]uintptr
	runtime.Callers(3, caller[:])
	frame, _ := runtime.CallersFrames(caller[:]).Next()
	return strings.HasSuffix(frame.Function, method)
}

func TestInvariant53ReleaseSendsNothingAfterTheConnectionOfTheWill(t *testing.T) {
	inBubble(t, func(t *testing.T, store *transporttest.Store) {
		n := newNode(t, store, "node-a", lease.Options{InstantFailover: true})
		tenure := n.mustAcquire(t)
		n.conn.Cut()
		deleted := n.scripted("VDEL", harmless)
		n.conn.Restore()
		if err := tenure.Release(t.Context()); !errors.Is(err, lease.ErrConnectionLost) {
			t.Errorf("Release: %v, want ErrConnectionLost", err)
		}
		if deleted() > 0 {
			t.Error("it was released over the next connection")
		}
	})
}

// A store that was restarted without its data lets the earlier store's holders run out.
func TestInvariant47NoLeaseIsGrantedDuringHoldOffAndWaitersGetItAfter(t *testing.T) {
	inBubble(t, func(t *testing.T, store *transporttest.Store) {
		n := newNode(t, store, "node-a", lease.Options{})
		waiting := newNode(t, store, "node-b", lease.Options{})
		n.mustAcquire(t)
		acquired := acquireInBackground(t.Context(), t, waiting)
		time.Sleep(ttl)
		n.conn.Cut() // it is alive, and believes in its tenure
		restarted := time.Now()
		mustRestart(t, store, statestore.Options{HoldOff: 2 * ttl})
		waiting.conn.Restore()
		if _, err := waiting.TryAcquire(t.Context()); !errors.Is(err, lease.ErrHeld) {
			t.Errorf("TryAcquire during hold-off: %v, want ErrHeld", err)
		}
		await.Receive(acquired)
		if after := time.Since(restarted); after < 2*ttl || after > 2*ttl+ttl/5 {
			t.Errorf("the lease was granted after %v, want soon after the hold-off of %v", after, 2*ttl)
		}
	})
}

// A store in hold-off names no holder to wait for, and does not notify when the hold-off ends.
func TestAWaiterThatFirstAsksDuringHoldOffGetsTheLeaseSoonAfter(t *testing.T) {
	inBubble(t, func(t *testing.T, store *transporttest.Store) {
		const hold = ttl / 2
		var waiting waitingCauses
		n := newNode(t, store, "node-a", lease.Options{OnWaiting: waiting.hear})
		mustRestart(t, store, statestore.Options{HoldOff: hold})
		began := time.Now()
		n.conn.Restore()
		_, err := n.TryAcquire(t.Context())
		n.mustAcquire(t)
		if after := time.Since(began); after < hold || after > hold+ttl/5 {
			t.Errorf("the lease was granted after %v, want soon after the hold-off of %v", after, hold)
		}
		for _, err := range append(waiting.all(), err) { // there is no holder, so an operator must not search for one
			if !errors.Is(err, lease.ErrHeld) || !strings.Contains(err.Error(), "hold-off") || strings.Contains(err.Error(), "held by") {
				t.Errorf("the error %q, want one that names the hold-off and no holder", err)
			}
		}
	})
}

// A store that kept its data in a journal keeps its identity and its leases: a tenure goes on if
// the store is back in time. The last renewals cost no write, and are no loss: after the crash
// the lease has its whole lifetime again.
func TestInvariant59ATenureSurvivesACrashOfADurableStore(t *testing.T) {
	for _, down := range []time.Duration{0, ttl / 10, ttl / 2} {
		for _, options := range []lease.Options{{}, {NoWatch: true}} {
			synctest.Test(t, func(t *testing.T) {
				store := transporttest.StartDurable(t, new(transporttest.Journal))
				holder, waiter := twoNodes(t, store, options)
				tenure := holder.mustAcquire(t)
				token := mustToken(t, tenure)
				acquired := acquireInBackground(t.Context(), t, waiter)
				for range 20 {
					time.Sleep(ttl + ttl/7)
					store.Crash(0)
					time.Sleep(down)
					if err := store.Recover(); err != nil {
						t.Fatal(err)
					}
					holder.conn.Restore()
					waiter.conn.Restore()
				}
				time.Sleep(5 * ttl)
				if err := context.Cause(tenure.Context()); err != nil || mustToken(t, tenure) != token {
					t.Fatalf("down for %v at a time, the tenure ended with %v", down, err)
				}
				if len(acquired) > 0 {
					t.Fatal("two nodes hold the lease")
				}
				mustRelease(t, tenure)
				if next := mustToken(t, await.Receive(acquired)); next.Compare(token) <= 0 {
					t.Errorf("the next token is %v; the former was %v", next, token)
				}
			})
		}
	}
}

// The renewal has no answer, and another request of the client meets the new store.
func TestInvariant47ATenureEndsWithItsStoreWhileARenewalWaitsForItsReply(t *testing.T) {
	inBubble(t, func(t *testing.T, store *transporttest.Store) {
		n := newNode(t, store, "node-a", lease.Options{NoWatch: true})
		tenure := n.mustAcquire(t)
		time.Sleep(ttl) // it has renewed itself
		hangs := make(chan struct{})
		n.scripted("SET", func(int64) transporttest.Fault {
			select {
			case <-hangs:
			default:
				close(hangs)
			}
			return transporttest.Fault{LoseReply: true}
		})
		await.Receive(hangs)
		if err := store.Replace(statestore.Options{Identity: "another"}); err != nil {
			t.Fatal(err)
		}
		if _, err := n.client.Get(t.Context(), "other"); err != nil {
			t.Fatal(err)
		}
		met := time.Now()
		await.Receive(tenure.Context().Done())
		if after := time.Since(met); after > ttl/20 || !errors.Is(context.Cause(tenure.Context()), lease.ErrStoreReplaced) {
			t.Errorf("the tenure ended %v after another store answered, with %v", after, context.Cause(tenure.Context()))
		}
	})
}
