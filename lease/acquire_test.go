package lease_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tenurelock/tenure/internal/await"
	"github.com/tenurelock/tenure/lease"
	"github.com/tenurelock/tenure/statestore"
	"github.com/tenurelock/tenure/transport"
	"github.com/tenurelock/tenure/transport/transporttest"
)

func TestTryAcquireOfAHeldLeaseNamesTheHolder(t *testing.T) {
	inBubble(t, func(t *testing.T, store *transporttest.Store) {
		a := newNode(t, store, "node-a", lease.Options{Holder: "gateway:left"}) // a colon is allowed
		b := newNode(t, store, "node-b", lease.Options{})
		a.mustAcquire(t)
		_, err := b.TryAcquire(t.Context())
		var held *lease.HeldError
		if !errors.As(err, &held) || !errors.Is(err, lease.ErrHeld) {
			t.Fatalf("error %v, want a HeldError", err)
		}
		if held.Holder.Name != "gateway:left" || !held.Holder.Held {
			t.Errorf("%+v", held)
		}
	})
}

func TestInvariant22TwoProcessesWithOneHolderNameExcludeEachOther(t *testing.T) {
	inBubble(t, func(t *testing.T, store *transporttest.Store) {
		a := newNode(t, store, "node-a", lease.Options{Holder: "gateway"})
		b := newNode(t, store, "node-b", lease.Options{Holder: "gateway"})
		a.mustAcquire(t)
		for _, n := range []node{a, b} { // not even the same process twice
			if _, err := n.TryAcquire(t.Context()); !errors.Is(err, lease.ErrHeld) {
				t.Errorf("a second tenure under the same name: %v, want ErrHeld", err)
			}
		}
	})
}

func TestAReleaseWakesAWaiter(t *testing.T) {
	inBubble(t, func(t *testing.T, store *transporttest.Store) {
		a, b := newNode(t, store, "node-a", lease.Options{}), newNode(t, store, "node-b", lease.Options{})
		tenure := a.mustAcquire(t)
		acquired := acquireInBackground(t.Context(), t, b)
		time.Sleep(3 * ttl)
		released := time.Now()
		if err := tenure.Release(t.Context()); err != nil {
			t.Fatal(err)
		}
		await.Receive(acquired)
		if waited := time.Since(released); waited > 10*time.Millisecond {
			t.Errorf("the waiter took over after %v, want within the jitter of a release", waited)
		}
	})
}

func TestInvariant25ADeadHolderIsSucceededWithinTTLAndJitterWithoutAnyNotification(t *testing.T) {
	for _, test := range []struct {
		name  string
		harm  func(node)
		limit time.Duration
	}{
		{"notifications arrive", func(node) {}, ttl + 10*time.Millisecond},
		{"every notification is lost", func(n node) { n.conn.Silence(true) }, ttl + ttl/10},
		{"no watch can be registered", func(n node) {
			n.scripted("KEYNOTIFY", always(transporttest.Fault{LoseRequest: true}))
		}, ttl + ttl/10},
	} {
		t.Run(test.name, func(t *testing.T) {
			for _, lifetime := range []time.Duration{0, ttl / 2, 5*ttl + ttl/7, 20 * ttl} {
				inBubble(t, func(t *testing.T, store *transporttest.Store) {
					a, b := newNode(t, store, "node-a", lease.Options{}), newNode(t, store, "node-b", lease.Options{})
					test.harm(b)
					a.mustAcquire(t)
					acquired := acquireInBackground(t.Context(), t, b)
					time.Sleep(lifetime)
					synctest.Wait()
					died := time.Now()
					a.conn.Cut()
					await.Receive(acquired)
					if waited := time.Since(died); waited > test.limit {
						t.Errorf("after a life of %v the successor came %v after the death, want at most %v", lifetime, waited, test.limit)
					}
				})
			}
		})
	}
}

func TestInvariant10AcquireAfterWaitingHasMostOfTheTTLLeft(t *testing.T) {
	inBubble(t, func(t *testing.T, store *transporttest.Store) {
		a, b := newNode(t, store, "node-a", lease.Options{}), newNode(t, store, "node-b", lease.Options{})
		a.mustAcquire(t)
		a.conn.Cut()
		tenure := b.mustAcquire(t)
		if left := tenure.Remaining(); left < ttl-ttl/10-ttl/6 {
			t.Errorf("%v are left", left)
		}
	})
}

func TestInvariant10AProcessThatStoodStillDuringItsAcquisitionAsksAgain(t *testing.T) {
	inBubble(t, func(t *testing.T, store *transporttest.Store) {
		var stop skewed
		n := newNode(t, store, "node-a", lease.Options{Clock: stop.clock()})
		if _, err := n.Holder(t.Context()); err != nil { // the client knows its store, or would ask again for that
			t.Fatal(err)
		}
		requests := n.scripted("SET", func(number int64) transporttest.Fault {
			if number == 1 {
				stop.jump(ttl) // between the sending and the reply, unseen by any timer
			}
			return transporttest.Fault{}
		})
		tenure := n.mustAcquire(t)
		if got := requests(); got != 2 {
			t.Errorf("%d requests, want 2", got)
		}
		if left := tenure.Remaining(); left != ttl-ttl/10 {
			t.Errorf("%v are left", left)
		}
	})
}

func TestInvariant19AnAcquisitionOfUnknownOutcomeIsResolved(t *testing.T) {
	t.Run("by repeating it", func(t *testing.T) {
		inBubble(t, func(t *testing.T, store *transporttest.Store) {
			n := newNode(t, store, "node-a", lease.Options{})
			n.scripted("SET", func(number int64) transporttest.Fault {
				return transporttest.Fault{LoseReply: number <= 2}
			})
			if _, err := n.TryAcquire(t.Context()); err != nil {
				t.Errorf("TryAcquire: %v", err)
			}
		})
	})
	t.Run("by freeing it when the caller gives up", func(t *testing.T) {
		inBubble(t, func(t *testing.T, store *transporttest.Store) {
			n := newNode(t, store, "node-a", lease.Options{})
			n.scripted("SET", always(transporttest.Fault{LoseReply: true}))
			ctx, cancel := context.WithTimeout(t.Context(), ttl/4)
			defer cancel()
			if _, err := n.Acquire(ctx); !errors.Is(err, transport.ErrOutcomeUnknown) {
				t.Errorf("Acquire: %v, want ErrOutcomeUnknown", err)
			}
			synctest.Wait()
			if holder, err := n.Holder(t.Context()); err != nil || holder.Held {
				t.Errorf("a silent holder is left: %+v, %v", holder, err)
			}
		})
	})
	t.Run("a caller that gives up while waiting leaves nothing", func(t *testing.T) {
		inBubble(t, func(t *testing.T, store *transporttest.Store) {
			a, b := newNode(t, store, "node-a", lease.Options{}), newNode(t, store, "node-b", lease.Options{})
			tenure := a.mustAcquire(t)
			ctx, cancel := context.WithTimeout(t.Context(), 3*ttl)
			defer cancel()
			if _, err := b.Acquire(ctx); !errors.Is(err, context.DeadlineExceeded) || errors.Is(err, transport.ErrOutcomeUnknown) {
				t.Errorf("Acquire: %v, want DeadlineExceeded and a known outcome", err)
			}
			if err := tenure.Release(t.Context()); err != nil {
				t.Fatal(err)
			}
			time.Sleep(ttl)
			if holder, err := a.Holder(t.Context()); err != nil || holder.Held {
				t.Errorf("it is held: %+v, %v", holder, err)
			}
		})
	})
}

func TestInvariant19ARequestThatCameLateIsResolvedWhenTheCallerGivesUpWaiting(t *testing.T) {
	inBubble(t, func(t *testing.T, store *transporttest.Store) {
		holder := newNode(t, store, "node-a", lease.Options{})
		tenure := holder.mustAcquire(t)
		n := newNode(t, store, "node-b", lease.Options{})
		n.conn.Silence(true)
		n.scripted("SET", func(number int64) transporttest.Fault {
			if number == 1 {
				return transporttest.Fault{HoldRequest: time.Second}
			}
			return transporttest.Fault{} // refused: node-a has it
		})
		time.AfterFunc(900*time.Millisecond, func() { _ = tenure.Release(context.Background()) })
		ctx, cancel := context.WithTimeout(t.Context(), 1500*time.Millisecond)
		defer cancel()
		if _, err := n.Acquire(ctx); !errors.Is(err, transport.ErrOutcomeUnknown) {
			t.Errorf("Acquire: %v, want ErrOutcomeUnknown: its first request may have been applied", err)
		}
		time.Sleep(200 * time.Millisecond)
		if held, err := holder.Holder(t.Context()); err != nil || held.Held {
			t.Errorf("after it was given up: %+v, %v; want no holder", held, err)
		}
	})
}

func TestInvariant28OneReleaseCausesAtMostOneTryByEachWaiter(t *testing.T) {
	inBubble(t, func(t *testing.T, store *transporttest.Store) {
		const waiters = 10
		holder := newNode(t, store, "holder", lease.Options{})
		tenure := holder.mustAcquire(t)
		ctx, cancel := context.WithCancel(t.Context())
		var counts [waiters]func() int64
		ended := make(chan struct{})
		for i := range waiters {
			n := newNode(t, store, "waiter-"+string(rune('a'+i)), lease.Options{})
			go func() {
				if _, err := n.Acquire(ctx); err == nil {
					await.Receive(ctx.Done())
				}
				ended <- struct{}{}
			}()
			synctest.Wait()
			counts[i] = n.scripted("SET", harmless)
		}
		time.Sleep(10 * ttl)
		total := func() (sum int64) {
			for _, count := range counts {
				sum += count()
			}
			return sum
		}
		if got := total(); got != 0 {
			t.Errorf("%d tries while the holder renewed, want none", got)
		}
		if err := tenure.Release(t.Context()); err != nil {
			t.Fatal(err)
		}
		time.Sleep(ttl / 13) // before the winner's first renewal
		if got := total(); got < 1 || got > waiters {
			t.Errorf("%d tries by %d waiters after one release", got, waiters)
		}
		cancel()
		for range waiters {
			await.Receive(ended)
		}
	})
}

func TestInvariant28AStoreOverQuotaIsNotAskedInAHotLoop(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store, err := transporttest.NewStore(statestore.Options{MaxKeys: 1})
		if err != nil {
			t.Fatal(err)
		}
		defer store.Close()
		other, _ := store.Client(t, "other", transport.ClientOptions{})
		if _, err := other.Set(t.Context(), "full", nil, transport.SetOptions{}); err != nil {
			t.Fatal(err)
		}
		n := newNode(t, store, "node-a", lease.Options{})
		if _, err := n.TryAcquire(t.Context()); !errors.Is(err, transport.ErrQuotaExceeded) {
			t.Errorf("TryAcquire: %v, want ErrQuotaExceeded", err)
		}
		tries := n.scripted("SET", harmless)
		ctx, cancel := context.WithTimeout(t.Context(), 10*ttl)
		defer cancel()
		if _, err := n.Acquire(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("Acquire: %v, want to have waited", err)
		}
		if got := tries(); got < 3 || got > 80 { // RenewEvery is a sixth of the TTL
			t.Errorf("%d tries in 10 TTL", got)
		}
		if _, err := other.Del(t.Context(), "full", transport.DelOptions{}); err != nil {
			t.Fatal(err)
		}
		n.mustAcquire(t)
	})
}

func TestAcquireWaitsForAConnection(t *testing.T) {
	inBubble(t, func(t *testing.T, store *transporttest.Store) {
		n := newNode(t, store, "node-a", lease.Options{})
		n.conn.Cut()
		acquired := acquireInBackground(t.Context(), t, n)
		time.Sleep(5 * ttl)
		n.conn.Restore()
		if tenure := await.Receive(acquired); tenure != nil {
			mustToken(t, tenure)
		}
	})
}

func TestAcquireEndsWhenTheClientIsTakenOver(t *testing.T) {
	inBubble(t, func(t *testing.T, store *transporttest.Store) {
		a, b := newNode(t, store, "node-a", lease.Options{}), newNode(t, store, "node-b", lease.Options{})
		tenure := a.mustAcquire(t)
		store.Connect("node-a")
		store.Connect("node-b")
		if _, err := b.Acquire(t.Context()); !errors.Is(err, transport.ErrSessionTakenOver) {
			t.Errorf("Acquire: %v, want ErrSessionTakenOver", err)
		}
		await.Receive(tenure.Context().Done())
		if err := context.Cause(tenure.Context()); !errors.Is(err, transport.ErrSessionTakenOver) {
			t.Errorf("cause %v, want ErrSessionTakenOver", err)
		}
	})
}

// The client registers each watch again now and then, and reads the key. The renewal that it
// reads may be old.
func TestInvariant25ARefreshedWatchDoesNotPutOffAWaiterThatHearsNothing(t *testing.T) {
	inBubble(t, func(t *testing.T, store *transporttest.Store) {
		holder, waiting := newNode(t, store, "node-a", lease.Options{}), newNode(t, store, "node-b", lease.Options{})
		waiting.conn.Silence(true)
		holder.mustAcquire(t)
		acquired := acquireInBackground(t.Context(), t, waiting)
		time.Sleep(10 * ttl)
		// The holder dies some time before the watch is registered again.
		var died time.Time
		registered := make(chan struct{})
		waiting.scripted("KEYNOTIFY", func(number int64) transporttest.Fault {
			if number == 1 {
				died = time.Now()
				holder.conn.Cut()
				close(registered)
			}
			return transporttest.Fault{HoldRequest: 7 * ttl / 10}
		})
		await.Receive(registered)
		await.Receive(acquired)
		if took := time.Since(died); took > ttl+ttl/10 {
			t.Errorf("it holds the lease %v after its holder died, want TTL + Jitter at most", took)
		}
	})
}

// A closed client cannot release the lease, so the error must say that it may be held.
func TestInvariant19CloseBeforeATenureBeginsLeavesNoSilentHolder(t *testing.T) {
	inBubble(t, func(t *testing.T, store *transporttest.Store) {
		n := newNode(t, store, "node-a", lease.Options{Clock: nil})
		if _, err := n.client.Get(t.Context(), name); err != nil {
			t.Fatal(err)
		}
		// The third call of the clock follows the reply.
		looks, steady := 0, lease.SystemClock
		l, err := lease.New(n.client, name, lease.Options{TTL: ttl, Clock: func() time.Duration {
			if looks++; looks == 3 {
				_ = n.client.Close()
			}
			return steady()
		}})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := l.TryAcquire(t.Context()); !errors.Is(err, transport.ErrClosed) || !errors.Is(err, transport.ErrOutcomeUnknown) {
			t.Errorf("TryAcquire: %v, want ErrClosed and ErrOutcomeUnknown", err)
		}
	})
}
