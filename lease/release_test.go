package lease_test

import (
	"strings"
	"testing"
	"time"

	"github.com/tenurelock/tenure/internal/await"
	"github.com/tenurelock/tenure/lease"
	"github.com/tenurelock/tenure/transport"
	"github.com/tenurelock/tenure/transport/transporttest"
)

func TestReleaseIsNilOnlyWhenTheStoreHoldsNothing(t *testing.T) {
	inBubble(t, func(t *testing.T, store *transporttest.Store) {
		n := newNode(t, store, "node-a", lease.Options{NoWatch: true})
		other := newNode(t, store, "other", lease.Options{})
		tenure := n.mustAcquire(t)
		renewing := make(chan struct{}, 1)
		n.conn.SetFault(func(r transport.Request) transporttest.Fault {
			if strings.Contains(string(r.Payload), "VDEL") {
				return transporttest.Fault{LoseRequest: true}
			}
			select {
			case renewing <- struct{}{}:
			default:
			}
			// Within RequestTimeout, which is ttl/6.
			return transporttest.Fault{HoldRequest: ttl/6 - time.Millisecond, LoseReply: true}
		})
		await.Receive(renewing)
		time.Sleep(time.Millisecond)
		if err := tenure.Release(t.Context()); err != nil {
			t.Errorf("Release: %v", err)
			return
		}
		if h, err := other.Holder(t.Context()); err != nil || h.Held {
			t.Errorf("Release returned nil, and the store holds %+v, %v", h, err)
		}
	})
}
