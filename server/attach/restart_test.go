package attach_test

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/tenurelock/tenure/fencing"
	"github.com/tenurelock/tenure/internal/await"
	"github.com/tenurelock/tenure/internal/mosquitto"
	"github.com/tenurelock/tenure/lease"
	"github.com/tenurelock/tenure/server/attach"
	"github.com/tenurelock/tenure/server/internal/testsupport"
	"github.com/tenurelock/tenure/transport"
)

// The lease lasts longer than the test is patient: what happens to a tenure, happens by
// the restart.
func TestATenureOutlivesARestartOfTheBrokerUnlessItsConnectionReleasesIt(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name    string
		end     func(*mosquitto.Broker)
		instant bool
	}{
		{"the broker is killed", (*mosquitto.Broker).Kill, false},
		{"the broker is stopped", (*mosquitto.Broker).Stop, false},
		{"the broker is killed, instant failover", (*mosquitto.Broker).Kill, true},
		{"the broker is stopped, instant failover", (*mosquitto.Broker).Stop, true},
	} {
		t.Run(test.name, func(t *testing.T) {
			broker, a := begin(t, fmt.Sprintf("persistence true\npersistence_location %s/\n", t.TempDir()), attach.Options{})
			options := lease.Options{TTL: 3 * testsupport.Patience, InstantFailover: test.instant}
			holder := testsupport.Dial(t, broker.Address, transport.Options{ClientID: "node-a", KeepAlive: 3 * testsupport.Patience})
			standby := testsupport.Dial(t, broker.Address, transport.Options{ClientID: "node-b"})
			tenure, token := mustAcquire(t, holder, options)
			guard := fencing.NewGuard(holder, tenure)
			if _, err := guard.Set(t.Context(), fencedKey, []byte("before")); err != nil {
				t.Fatal(err)
			}
			test.end(broker)
			broker.Run()
			testsupport.Eventually(t, "the store is back", func() bool { return a.Stats().Attachments == 2 })

			if test.instant {
				await.Receive(tenure.Context().Done())
				if _, err := tenure.Token(); !errors.Is(err, lease.ErrConnectionLost) {
					t.Errorf("its token: %v, want ErrConnectionLost", err)
				}
				if _, err := guard.Set(t.Context(), fencedKey, []byte("after")); err == nil {
					t.Error("the guard of a lost tenure writes")
				}
				return
			}
			if got, err := tenure.Token(); err != nil || got != token {
				t.Errorf("its token: %v, %v; want %v", got, err, token)
			}
			// The first request may meet the end of the old connection.
			testsupport.Eventually(t, "the leader writes", func() bool {
				_, err := guard.Set(t.Context(), fencedKey, []byte("after"))
				return err == nil
			})
			rival := leaseOf(t, standby, leaseKey, lease.Options{TTL: time.Minute})
			testsupport.Eventually(t, "the other asks the store", func() bool {
				_, err := rival.TryAcquire(t.Context())
				if err == nil {
					t.Error("the lease is granted twice")
				}
				return errors.Is(err, lease.ErrHeld)
			})
			testsupport.MustHold(t, standby, fencedKey, "after")
		})
	}
}

func TestAStoreDoesNotComeBackWhereAnotherHasServedMeanwhile(t *testing.T) {
	t.Parallel()
	broker := mosquitto.Start(t, "")
	through, first, client := attachThrough(t, broker)
	through.Refuse(true)
	through.Cut()
	second := testsupport.Attach(t, broker.Address, attach.Options{})
	testsupport.MustHold(t, client, "k", "")
	stop(t, second)
	through.Refuse(false)
	if err := first.Result(); !errors.Is(err, attach.ErrAnotherStore) {
		t.Errorf("the first store: %v, want ErrAnotherStore", err)
	}
	if _, err := client.Get(t.Context(), "k"); !errors.Is(err, transport.ErrNoStore) {
		t.Errorf("a request: %v, want ErrNoStore", err)
	}
	testsupport.Attach(t, broker.Address, attach.Options{}) // without delay
	testsupport.MustHold(t, client, "k", "")
}
