package attach_test

import (
	"errors"
	"testing"
	"time"

	"github.com/tenurelock/tenure/lease"
	"github.com/tenurelock/tenure/server/attach"
	"github.com/tenurelock/tenure/server/internal/testsupport"
	"github.com/tenurelock/tenure/statestore"
	"github.com/tenurelock/tenure/transport"
)

// The second store is started while the first still serves, and cannot reach the broker at
// first. What the first grants until it dies must run out before the second grants.
func TestInvariant47HoldOffBeginsWhenAnAttachedStoreBeginsToAnswer(t *testing.T) {
	t.Parallel()
	broker, first := begin(t, "", attach.Options{})
	const ttl = 3 * time.Second
	second, err := attach.New("mqtt://"+broker.Address, attach.Options{Store: statestore.Options{HoldOff: ttl}})
	if err != nil {
		t.Fatal(err)
	}
	time.Sleep(ttl) // in which it does not reach the broker
	holder := leaseOf(t, testsupport.Dial(t, broker.Address, transport.Options{ClientID: "holder"}), "l", lease.Options{TTL: ttl})
	if _, err := holder.Acquire(t.Context()); err != nil {
		t.Fatal(err)
	}
	stop(t, first)
	testsupport.ServeAttached(t, second).MustBeReady()
	other := leaseOf(t, testsupport.Dial(t, broker.Address, transport.Options{ClientID: "other"}), "l", lease.Options{TTL: ttl})
	if _, err := other.TryAcquire(t.Context()); !errors.Is(err, lease.ErrHeld) {
		t.Errorf("TryAcquire: %v, want ErrHeld: the holder of the first store may believe still", err)
	}
}
