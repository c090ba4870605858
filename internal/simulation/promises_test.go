package simulation

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tenurelock/tenure/internal/await"
	"github.com/tenurelock/tenure/lease"
	"github.com/tenurelock/tenure/statestore"
	"github.com/tenurelock/tenure/transport"
	"github.com/tenurelock/tenure/transport/transporttest"
)

// The simulation gives each message a time of its own. That would spread the tries of many
// waiters even if the library did not.
func TestInvariant28WaitersSpreadTheirTriesAfterARelease(t *testing.T) {
	const waiters = 20
	synctest.Test(t, func(t *testing.T) {
		store := transporttest.Start(t)
		newLease := func(id string) *lease.Lease {
			client, _ := store.Client(t, id, transport.ClientOptions{})
			l, err := lease.New(client, lockKey, lease.Options{TTL: ttl, Clock: lease.MonotonicClock()})
			if err != nil {
				t.Fatal(err)
			}
			return l
		}
		tenure, err := newLease("holder").Acquire(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		var waiting sync.WaitGroup
		for i := range waiters {
			l := newLease(fmt.Sprint("waiter ", i))
			waiting.Go(func() { _, _ = l.Acquire(ctx) })
		}
		synctest.Wait()
		var mu sync.Mutex
		tries := make(map[time.Time]int)
		store.Tap(func(a transporttest.Applied) {
			if a.Command.Verb == statestore.VerbSet {
				mu.Lock()
				defer mu.Unlock()
				tries[a.At]++
			}
		})
		if err := tenure.Release(t.Context()); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Second)
		store.Tap(nil)
		cancel()
		await.Done(waiting.Wait)
		total := 0
		for at, n := range tries {
			total += n
			if n > 2 {
				t.Errorf("%d tries at the same instant, %v", n, at)
			}
		}
		if total == 0 || total > waiters {
			t.Errorf("%d tries by %d waiters", total, waiters)
		}
	})
}

// The simulation reaches this only now and then: the key is deleted, another client takes the
// lease, and the holder gets no notification of either.
func TestInvariant6ARefusedRenewalEndsATenureThatHearsNoNotification(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := transporttest.Start(t)
		client, conn := store.Client(t, "holder", transport.ClientOptions{})
		l, err := lease.New(client, lockKey, lease.Options{TTL: ttl, Margin: margin, Clock: lease.MonotonicClock()})
		if err != nil {
			t.Fatal(err)
		}
		tenure, err := l.Acquire(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(ttl) // its watch is registered by now
		conn.Silence(true)
		other, _ := store.Client(t, "other", transport.ClientOptions{})
		if _, err := other.Set(t.Context(), lockKey, []byte("other:1"), transport.SetOptions{}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(renewEvery + time.Millisecond)
		synctest.Wait()
		if err := tenure.Err(); !errors.Is(err, lease.ErrLost) {
			t.Errorf("after its renewal was refused: %v, want ErrLost", err)
		}
		if left := tenure.Remaining(); left > 0 {
			t.Errorf("after its renewal was refused: %v left", left)
		}
	})
}
