package lease_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
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
