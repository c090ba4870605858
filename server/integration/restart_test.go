package integration_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/tenurelock/tenure/fencing"
	"github.com/tenurelock/tenure/lease"
	"github.com/tenurelock/tenure/server/internal/testsupport"
	"github.com/tenurelock/tenure/server/servertest"
	"github.com/tenurelock/tenure/transport"
)

// Before the store had an identity, every renewal of a tenure that watches nothing put its
// key back at the restarted server, and the previous holder's token was good again.
func TestInvariant47OverMQTTATenureEndsWithTheServerThatGrantedIt(t *testing.T) {
	t.Parallel()
	s := servertest.New(t)
	ctx, cancel := context.WithTimeout(t.Context(), testsupport.Patience)
	defer cancel()
	client := s.Client(t, "node-a")
	l, err := lease.New(client, "press-7/active", lease.Options{TTL: 2 * time.Second, NoWatch: true})
	if err != nil {
		t.Fatal(err)
	}
	for range 3 {
		tenure, err := l.Acquire(ctx)
		if err != nil {
			t.Fatal(err)
		}
		guard := fencing.NewGuard(client, tenure)
		if _, err := guard.Claim(ctx, "press-7/setpoint"); err != nil {
			t.Fatal(err)
		}
		s.Restart()
		_, err = guard.Set(ctx, "press-7/setpoint", []byte("stale"))
		for errors.Is(err, transport.ErrOutcomeUnknown) { // it left before the connection was lost
			_, err = guard.Set(ctx, "press-7/setpoint", []byte("stale"))
		}
		if err == nil {
			t.Error("the restarted server took a write of a tenure that it did not grant")
		}
		select {
		case <-tenure.Context().Done():
			if err := context.Cause(tenure.Context()); !errors.Is(err, lease.ErrStoreReplaced) {
				t.Errorf("the tenure ended with %v, want ErrStoreReplaced", err)
			}
		case <-ctx.Done():
			t.Fatal("the tenure goes on")
		}
		witness := s.Client(t, "")
		for _, key := range []string{"press-7/active", "press-7/setpoint"} {
			if entry, err := witness.Get(ctx, key); err != nil || entry.Exists {
				t.Errorf("the restarted server holds %q: %+v, %v", key, entry, err)
			}
		}
	}
}
