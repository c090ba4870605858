package lease_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/tenurelock/tenure/lease"
	"github.com/tenurelock/tenure/statestore"
	"github.com/tenurelock/tenure/transport/transporttest"
)

// The first request that a waiter sends to a restarted store is bound to the one before.
// That it is refused for this is no obstacle: the next one can be granted.
func TestAWaiterGoesOnAtOnceWithTheStoreThatTookThePlace(t *testing.T) {
	inBubble(t, func(t *testing.T, store *transporttest.Store) {
		var heard told
		n := newNode(t, store, "node-a", lease.Options{OnWaiting: heard.hear})
		if _, err := n.client.Get(t.Context(), "anything"); err != nil { // it knows the store
			t.Fatal(err)
		}
		if err := store.Restart(statestore.Options{}); err != nil {
			t.Fatal(err)
		}
		var asked []time.Time // after the connection was back
		store.Tap(func(a transporttest.Applied) {
			if a.Command.Verb == statestore.VerbSet {
				asked = append(asked, time.Now())
			}
		})
		go func() {
			time.Sleep(10 * ttl) // so that pauses between attempts are long
			n.conn.Restore()
		}()
		n.mustAcquire(t)
		if late := time.Since(asked[0]); late > 0 {
			t.Errorf("it acquired the lease %v after its first request", late)
		}
		heard.mu.Lock()
		defer heard.mu.Unlock()
		if len(heard.causes) != 1 {
			t.Errorf("it was told of %v, want the missing connection only", heard.causes)
		}
	})
}

// Whoever looks for the holder while a new store grants nothing must not look for ever:
// there is none.
func TestARefusalInAHoldOffDoesNotClaimThatSomebodyHoldsTheLease(t *testing.T) {
	inBubble(t, func(t *testing.T, store *transporttest.Store) {
		if err := store.Restart(statestore.Options{HoldOff: time.Hour}); err != nil {
			t.Fatal(err)
		}
		var told []error
		n := newNode(t, store, "node-a", lease.Options{OnWaiting: func(cause error) { told = append(told, cause) }})
		_, err := n.TryAcquire(t.Context())
		ctx, cancel := context.WithTimeout(t.Context(), ttl)
		defer cancel()
		_, waited := n.Acquire(ctx)
		for _, err := range []error{err, waited} {
			if !errors.Is(err, lease.ErrHeld) || !strings.Contains(err.Error(), "hold-off") || strings.Contains(err.Error(), "held by") {
				t.Errorf("the error %q, want one that tells of the hold-off, and of no holder", err)
			}
		}
		if len(told) != 1 || !strings.Contains(told[0].Error(), "hold-off") {
			t.Errorf("OnWaiting was told %v, want the hold-off once", told)
		}
	})
}
