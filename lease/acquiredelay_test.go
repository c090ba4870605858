package lease_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tenurelock/tenure/internal/await"
	"github.com/tenurelock/tenure/lease"
	"github.com/tenurelock/tenure/transport"
	"github.com/tenurelock/tenure/transport/transporttest"
)

const acquireDelay = ttl / 4

func TestAWaiterWithAnAcquireDelayLeavesTheLeaseToOneWithout(t *testing.T) {
	for _, silence := range []bool{false, true} {
		for _, dies := range []bool{false, true} {
			t.Run(fmt.Sprintf("notifications lost %v, holder dies %v", silence, dies), func(t *testing.T) {
				inBubble(t, func(t *testing.T, store *transporttest.Store) {
					holder := newNode(t, store, "holder", lease.Options{})
					polite := newNode(t, store, "polite", lease.Options{AcquireDelay: acquireDelay})
					hasty := newNode(t, store, "hasty", lease.Options{})
					for _, n := range []node{polite, hasty} {
						n.conn.Silence(silence)
					}
					tenure := holder.mustAcquire(t)
					ctx, cancel := context.WithCancel(t.Context())
					late := make(chan error, 1)
					go func() {
						_, err := polite.Acquire(ctx)
						late <- err
					}()
					synctest.Wait()
					acquired := acquireInBackground(t.Context(), t, hasty)
					time.Sleep(5 * ttl)
					tries := polite.scripted("SET", harmless)
					if dies {
						holder.conn.Cut()
					} else if err := tenure.Release(t.Context()); err != nil {
						t.Fatal(err)
					}
					await.Receive(acquired)
					time.Sleep(5 * ttl)
					cancel()
					if err := await.Receive(late); !errors.Is(err, context.Canceled) {
						t.Errorf("the waiter with the delay: %v, want Canceled", err)
					}
					if got := tries(); got > 0 && !silence {
						t.Errorf("it tried %d times, although it was told that the lease was taken", got)
					}
				})
			})
		}
	}
}

func TestInvariant26ForgedNotificationsDoNotHoldUpAWaiterWithAnAcquireDelay(t *testing.T) {
	for _, words := range [][]string{{"SET", "VALUE", "forger:1"}, {"DELETE"}} {
		t.Run(words[0], func(t *testing.T) {
			inBubble(t, func(t *testing.T, store *transporttest.Store) {
				conn := &forger{Conn: store.Connect("node-a")}
				client, err := transport.NewClient(conn, transport.ClientOptions{})
				if err != nil {
					t.Fatal(err)
				}
				defer client.Close()
				l, err := lease.New(client, name, lease.Options{TTL: ttl, AcquireDelay: acquireDelay})
				if err != nil {
					t.Fatal(err)
				}
				began := time.Now()
				acquired := acquireInBackground(t.Context(), t, node{Lease: l, client: client, conn: conn.Conn})
				for range 9 {
					time.Sleep(acquireDelay / 10)
					conn.forge(words...)
				}
				await.Receive(acquired)
				if waited := time.Since(began); waited < acquireDelay || waited > acquireDelay+10*time.Millisecond {
					t.Errorf("acquired after %v, want %v", waited, acquireDelay)
				}
			})
		})
	}
}

func TestInvariant28OneReleaseCausesAtMostOneTryByEachWaiterWithAnAcquireDelay(t *testing.T) {
	inBubble(t, func(t *testing.T, store *transporttest.Store) {
		tenure := newNode(t, store, "holder", lease.Options{}).mustAcquire(t)
		ctx, cancel := context.WithCancel(t.Context())
		const waiters = 10
		var tries, looks [waiters]func() int64
		ended := make(chan struct{})
		for i := range waiters {
			n := newNode(t, store, "waiter-"+string(rune('a'+i)), lease.Options{AcquireDelay: acquireDelay})
			go func() {
				if _, err := n.Acquire(ctx); err == nil {
					await.Receive(ctx.Done())
				}
				ended <- struct{}{}
			}()
			synctest.Wait()
			tries[i], looks[i] = n.counted("SET", "GET")
		}
		total := func(counts [waiters]func() int64) (sum int64) {
			for _, count := range counts {
				sum += count()
			}
			return sum
		}
		time.Sleep(10 * ttl)
		if got := total(tries) + total(looks); got != 0 {
			t.Errorf("%d requests while the holder renewed, want none", got)
		}
		if err := tenure.Release(t.Context()); err != nil {
			t.Fatal(err)
		}
		time.Sleep(acquireDelay + ttl/16) // before the winner's first renewal
		if got := total(tries); got < 1 || got > waiters {
			t.Errorf("%d tries by %d waiters after one release", got, waiters)
		}
		if got := total(looks); got > 2*waiters { // one when it became free, one when it was taken
			t.Errorf("%d looks by %d waiters after one release", got, waiters)
		}
		cancel()
		for range waiters {
			await.Receive(ended)
		}
	})
}

