package simulation

import (
	"context"
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
func TestInvariant28WaitersTryAtOnceAfterAReleaseAndSpreadAfterTheNext(t *testing.T) {
	const waiters = 1000
	synctest.Test(t, func(t *testing.T) {
		store := transporttest.Start(t)
		newLease := func(id string) *lease.Lease {
			client, _ := store.Client(t, id, transport.ClientOptions{})
			l, err := lease.New(client, lockKey, lease.Options{TTL: ttl})
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
		acquired := make(chan *lease.Tenure, waiters)
		var waiting sync.WaitGroup
		for i := range waiters {
			l := newLease(fmt.Sprint("waiter ", i))
			waiting.Go(func() {
				if tenure, err := l.Acquire(ctx); err == nil {
					acquired <- tenure
				}
			})
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
		counted := func() (total, most int) {
			mu.Lock()
			defer mu.Unlock()
			for _, n := range tries {
				total, most = total+n, max(most, n)
			}
			clear(tries)
			return total, most
		}
		release := func(tenure *lease.Tenure) (next *lease.Tenure, after time.Duration) {
			released := time.Now()
			if err := tenure.Release(t.Context()); err != nil {
				t.Error(err)
			}
			next = await.Receive(acquired)
			return next, time.Since(released)
		}

		tenure, after := release(tenure)
		if after != 0 {
			t.Errorf("the next holder came %v after a release, want at once", after)
		}
		time.Sleep(ttl / 100) // before the winner's first renewal
		if total, _ := counted(); total == 0 || total > waiters {
			t.Errorf("%d tries by %d waiters after one release", total, waiters)
		}

		if _, after = release(tenure); after > 10*time.Millisecond {
			t.Errorf("the next holder came %v after a release that followed another one, want 10 ms at most", after)
		}
		time.Sleep(ttl / 100)
		if total, most := counted(); total == 0 || total > waiters || most > 3 {
			t.Errorf("%d tries by %d waiters, of which %d came at the same instant, after a second release", total, waiters, most)
		}

		store.Tap(nil)
		cancel()
		await.Done(waiting.Wait)
	})
}
