package lease_test

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tenurelock/tenure/internal/await"
	"github.com/tenurelock/tenure/lease"
	"github.com/tenurelock/tenure/transport/transporttest"
)

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

